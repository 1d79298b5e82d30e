"""Real traces recorded by others; skipped where the folder is not there."""

from pathlib import Path

import polars as pl
import pytest
from support.answers import recorded
from support.places import TRACES

from kair_engine.recording.opening import open_trace
from kair_engine.trace.model import Trace

needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason=f"the real traces are not at {TRACES}")


@pytest.fixture(scope="module")
def megatron() -> Trace:
    return recorded(TRACES / "megatron-tp8")


@needs_traces
def test_megatron_s_job(megatron: Trace) -> None:
    job = megatron.job
    assert (job.name, job.world_size, job.ranks, job.missing_ranks) == ("megatron-tp8", 8, tuple(range(8)), ())
    assert (job.steps, job.device, job.absolute_time, job.warnings) == ((3,), "NVIDIA A100-SXM4-80GB", True, ())
    assert job.operations == sum(job.step_times.operations) == megatron.scan().collect().height - 8


@needs_traces
def test_megatron_s_collectives_carry_the_same_numbers_on_all_ranks(megatron: Trace) -> None:
    rows = megatron.scan().filter(pl.col("kind").cast(pl.String) == "collective").collect()
    by_number = rows.group_by("group_seq").agg(pl.col("rank").sort(), end=pl.col("start_ns") + pl.col("duration_ns"))
    assert by_number.height == 84
    assert by_number["group_seq"].null_count() == 0
    assert by_number["rank"].to_list() == [list(range(8))] * 84
    spread = by_number.select(pl.col("end").list.max() - pl.col("end").list.min()).to_series()
    assert spread.max() == 49_000


@needs_traces
def test_megatron_s_compute_time_is_the_same_on_all_ranks(megatron: Trace) -> None:
    rows = megatron.scan().filter(pl.col("kind").cast(pl.String) == "compute").collect()
    milliseconds = rows.group_by("rank").agg(pl.col("duration_ns").sum() / 1e6)["duration_ns"]
    assert milliseconds.min() > 130
    assert milliseconds.max() < 135


@needs_traces
@pytest.mark.parametrize(
    ("name", "ranks", "world", "steps", "operations"), [("ST", 8, 8, 32, 6784), ("SE", 64, 128, 43, 107328)]
)
def test_the_what_if_jobs(*, tmp_path: Path, name: str, ranks: int, world: int, steps: int, operations: int) -> None:
    trace = open_trace(TRACES / "bytedance" / f"trace-{name}.parquet", cache=tmp_path)
    job = trace.job
    assert (len(job.ranks), job.world_size, len(job.steps), job.operations) == (ranks, world, steps, operations)
    assert (job.missing_ranks, job.warnings, job.format) == ((), (), "whatif")
    transfers = trace.scan().filter(pl.col("peer").is_not_null()).collect()
    ends = transfers.group_by("step", "group", "group_seq").agg(pl.col("kind").cast(pl.String).sort())
    assert ends["kind"].to_list() == [["recv", "send"]] * ends.height
