"""What replays say of simulated jobs, beside what the simulator says: it can run the same job without its fault."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from compute_faults import SequenceImbalance, SlowGpu, SlowHost, StageImbalance
from fault_model import Fault
from host_faults import GarbageCollection, HostBound, Stall
from layouts import STANDARD, JobLayout
from network_faults import SlowEdge, SlowLink
from recording import Recording
from simulator import JobSpec, simulate
from support.pipeline_builder import Row, written
from support.prices import price_steps
from table import arrow_table, write_table

from kair_engine.recording.opening import open_trace
from kair_engine.results.whatif import Fix, WhatifResult
from kair_engine.whatif.analysis import whatif

THREE_DIMENSIONS = JobLayout("3d", dp=2, pp=2, tp=2, microbatches=4)
PIPELINE = JobLayout("3d", dp=4, pp=2, microbatches=4)


@pytest.mark.slow
@pytest.mark.parametrize("layout", [STANDARD["dp8"], THREE_DIMENSIONS], ids=["dp8", "3d8"])
@pytest.mark.parametrize("factor", [1.1, 1.3])
def test_a_slow_gpu_is_priced_at_what_the_job_is_slower_by(layout: JobLayout, factor: float, tmp_path: Path) -> None:
    spec = JobSpec(layout, steps=8, seed=1, faults=(SlowGpu(3, factor),))
    faulty, healthy = simulate([spec, spec.healthy()])
    found = price_steps(write_table(faulty, tmp_path), [Fix(ranks=(3,), kinds=("compute",))])
    truth = 1 - healthy.step_time_ns / faulty.step_time_ns
    assert found.saved_ns[0] / faulty.step_time_ns == pytest.approx(truth, abs=0.005)
    assert found.replay_error.max() < 0.01
    assert found.replayed_ns.mean() == pytest.approx(faulty.step_time_ns, rel=0.01)
    # Not because delays are kept: without any the job takes as long.
    assert found.undelayed_ns == pytest.approx(found.measured_ns, rel=0.01)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_slow_host_is_priced_by_the_ranks_outside_it(seed: int, tmp_path: Path) -> None:
    """Half of the ranks: the lower median of all would be the slowest healthy one, a quarter too little."""
    layout = STANDARD["dp16"]
    spec = JobSpec(layout, steps=8, seed=seed, faults=(SlowHost(layout.hosts[1], 1.1),))
    faulty, healthy = simulate([spec, spec.healthy()])
    trace = write_table(faulty, tmp_path)
    host = Fix(hosts=(layout.hosts[1],), kinds=("compute",))
    same = Fix(ranks=tuple(rank for rank in trace.job.ranks if trace.job.hosts[rank] == layout.hosts[1]))
    found = price_steps(trace, [host, same])
    truth = faulty.step_time_ns - healthy.step_time_ns
    assert found.saved_ns == pytest.approx([truth] * 2, rel=0.2)


def pipeline_rows(recording: Recording) -> list[Row]:
    """A recording as a what-if trace: a computation is all that a rank's device runs of a microbatch and direction."""
    assert recording.layout.tp == 1
    frame = pl.from_arrow(arrow_table(recording.columns(host_operators=False), microbatch=True))
    assert isinstance(frame, pl.DataFrame)
    kind, phase, name = (pl.col(column).cast(pl.String) for column in ("kind", "phase", "name"))
    collective = pl.when(name.str.contains("ReduceScatter")).then(pl.lit("grads-reduce-scatter"))
    collective = collective.when(name.str.contains("AllReduce")).then(pl.lit("optimizer-clip-main-grad"))
    optype = pl.when(kind.is_in(["send", "recv"])).then(pl.concat_str(phase, kind, separator="-"))
    optype = optype.when(kind == "collective").then(collective)
    optype = optype.when(pl.col("microbatch").is_not_null()).then(pl.concat_str(phase, pl.lit("-compute")))
    optype = optype.when((kind == "compute") & (phase == "optimizer")).then(pl.lit("optimizer"))
    frame = frame.filter(pl.col("lane").cast(pl.String).str.starts_with("stream")).with_columns(
        optype.alias("optype"), end_ns=pl.col("start_ns") + pl.col("duration_ns")
    )
    # Of the optimizer only what follows the clip; parameters are gathered for the next step, after this one.
    clip = pl.col("start_ns").filter(pl.col("optype") == "optimizer-clip-main-grad").max().over("step", "rank")
    frame = frame.filter((pl.col("optype") != "optimizer") | (pl.col("start_ns") > clip), optype.is_not_null())
    once = pl.when(pl.col("optype").str.ends_with("-compute")).then(-1).otherwise(pl.col("start_ns"))
    whole = frame.group_by("step", "rank", "optype", "microbatch", once.alias("once")).agg(
        pl.col("start_ns").min(), pl.col("end_ns").max()
    )
    place = pl.col("rank").cast(pl.Int64)
    whole = whole.sort("step", "rank", "start_ns").with_columns(
        start_ts=(pl.col("start_ns") - pl.col("start_ns").min().over("step")) / 1e9,
        duration=(pl.col("end_ns") - pl.col("start_ns")) / 1e9,
        stage=place // recording.layout.dp,
        dp_rank=place % recording.layout.dp,
        mb_id=pl.col("microbatch").fill_null(-1),
        mc=pl.lit(-1),
        gmc=pl.lit(-1),
        seq_id=pl.int_range(pl.len()).over("step", "rank", "optype"),
    )
    return whole.drop("start_ns", "end_ns", "microbatch", "once").to_dicts()


def asked(folder: Path, *faults: Fault, seed: int = 1) -> WhatifResult:
    folder.mkdir(exist_ok=True)
    (recording,) = simulate([JobSpec(PIPELINE, steps=20, seed=seed, faults=faults)])
    return whatif(open_trace(written(folder, pipeline_rows(recording)), cache=folder / "cache"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_simulated_garbage_collection_is_named_and_priced(seed: int, tmp_path: Path) -> None:
    result = asked(tmp_path, GarbageCollection(0.5, 40.0), seed=seed)
    healthy = asked(tmp_path / "healthy", seed=seed)
    assert [cause.kind for cause in result.causes] == ["garbage_collection"]
    share = result.causes[0].share
    assert share is not None
    saved = share * (result.step_time_us - result.ideal_step_time_us)
    truth = result.step_time_us - healthy.step_time_us
    assert saved == pytest.approx(truth, abs=0.01 * result.step_time_us)
    assert healthy.causes == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        SlowGpu(3, 1.5),
        HostBound(3, 0.15),
        Stall(3, 0.4, 0.4),
        SlowLink(3, 8.0),
        SlowEdge(0, 2, 0, extra_ms=4.0),
        SequenceImbalance(0.3),
        StageImbalance(1, 1.5),
    ],
    ids=lambda fault: type(fault).__name__,
)
def test_other_simulated_faults_are_neither_garbage_collection_nor_flapping(fault: Fault, tmp_path: Path) -> None:
    causes = {cause.kind for cause in asked(tmp_path, fault).causes}
    assert not causes & {"garbage_collection", "communication_flapping"}
