"""validation/accuracy simulates training jobs: collectives, pipelines and faults behave as on a real cluster."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from compute_faults import (
    ChangingCulprit,
    SequenceImbalance,
    SlowGpu,
    SlowHost,
    SlowKernel,
    StageImbalance,
)
from costs import LEAVE_SPREAD_NS, Noise
from fault_model import Fault, Truth
from host_faults import ClockSkew, GarbageCollection, HostBound, SlowInput, Stall
from kineto import write_kineto
from layouts import STANDARD, Group, JobLayout
from network_faults import SlowEdge, SlowLink
from pipeline import one_forward_one_backward
from programs import program_of
from recording import Recording
from simulator import JobSpec, simulate
from table import arrow_table, write_table

from kair_engine.readers.kineto.reader import read_kineto
from kair_engine.trace.format import SCHEMA
from kair_engine.triage.analysis import triage

DP4 = JobLayout("dp", 4)
PIPELINE = JobLayout("3d", dp=2, pp=2, tp=2, microbatches=3)
FSDP4 = JobLayout("fsdp", 4)
LAYOUTS = (DP4, PIPELINE, FSDP4)
SILENCE = Noise(operation=0, spread=0, fetch=0, tail_probability=0)


def simulated(
    layout: JobLayout, *faults: Fault, steps: int = 2, seed: int = 1, noise: Noise | None = None
) -> Recording:
    return simulate([JobSpec(layout, steps, seed, faults, noise or Noise())])[0]


def table_of(recording: Recording, *, host_operators: bool = False) -> pl.DataFrame:
    """The operations table with texts instead of codes, and each operation's end."""
    arrow = arrow_table(recording.columns(host_operators=host_operators), microbatch=True)
    frame = pl.from_arrow(arrow)
    assert isinstance(frame, pl.DataFrame)
    texts = [name for name in frame.columns if frame[name].dtype == pl.Categorical]
    return frame.with_columns(
        *(pl.col(name).cast(pl.String) for name in texts), end_ns=pl.col("start_ns") + pl.col("duration_ns")
    )


def on_device(recording: Recording) -> pl.DataFrame:
    return table_of(recording).filter(pl.col("lane").str.starts_with("stream"))


def collectives(recording: Recording) -> pl.DataFrame:
    """Every collective, send and receive once: its members, and when they came and left."""
    rows = on_device(recording).filter(pl.col("group").is_not_null())
    return rows.group_by("step", "group", "group_seq", "name").agg(
        pl.len().alias("members"),
        pl.col("kind").sort(),
        pl.col("rank"),
        pl.col("peer"),
        last_start=pl.col("start_ns").max(),
        first_end=pl.col("end_ns").min(),
        last_end=pl.col("end_ns").max(),
    )


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.kind)
def test_members_of_a_collective_leave_it_together_once_the_last_has_come(layout: JobLayout) -> None:
    found = collectives(simulated(layout))
    assert (found["last_end"] - found["first_end"]).max() <= LEAVE_SPREAD_NS
    assert (found["first_end"] > found["last_start"]).all()
    sizes = {f"{group.name} {group.rank_list}": len(group.ranks) for group in layout.groups.all}
    assert found["members"].to_list() == [sizes[group] for group in found["group"]]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.kind)
def test_no_kernel_begins_before_its_launch_returned(layout: JobLayout) -> None:
    table = table_of(simulated(layout))
    launches = table.filter(pl.col("lane").str.starts_with("thread")).select("rank", "correlation", launched="end_ns")
    kernels = table.filter(pl.col("lane").str.starts_with("stream"))
    both = kernels.join(launches, on=["rank", "correlation"], how="left")
    assert len(both) == len(kernels)
    assert (both["start_ns"] > both["launched"]).all()


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.kind)
def test_a_stream_runs_one_operation_at_a_time_and_the_table_is_in_order(layout: JobLayout) -> None:
    table = table_of(simulated(layout, GarbageCollection(0.5, 5, visible=True)))
    assert table.equals(table.sort("step", "rank", "lane", "start_ns", maintain_order=True))
    streams = table.filter(pl.col("lane").str.starts_with("stream")).sort("rank", "lane", "start_ns")
    before = pl.col("end_ns").shift().over("rank", "lane")
    assert streams.filter(pl.col("start_ns") < before).is_empty()


def test_sends_meet_their_receives() -> None:
    pairs = collectives(simulated(PIPELINE)).filter(pl.col("kind").list.contains("send"))
    assert len(pairs) == 2 * 2 * PIPELINE.microbatches * PIPELINE.ranks_per_stage
    assert pairs["kind"].to_list() == [["recv", "send"]] * len(pairs)
    assert [sorted(ranks) for ranks in pairs["peer"]] == [sorted(ranks) for ranks in pairs["rank"]]


@pytest.mark.parametrize("stage", range(4))
def test_one_forward_one_backward_holds_no_more_microbatches_than_there_are_stages_left(stage: int) -> None:
    order = list(one_forward_one_backward(JobLayout("3d", dp=1, pp=4, tp=1, microbatches=6), stage))
    held = np.cumsum([1 if direction == "forward" else -1 for direction, _ in order])
    assert held.max() == 4 - stage
    assert held.min() >= 0
    for direction in ("forward", "backward"):
        assert [microbatch for which, microbatch in order if which == direction] == list(range(6))


def test_a_stage_computes_a_microbatch_once_the_stage_before_has() -> None:
    kernels = on_device(simulated(PIPELINE)).filter(pl.col("kind") == "compute", pl.col("microbatch").is_not_null())
    spans = kernels.group_by("step", "microbatch", "phase", stage=pl.col("rank") // 4).agg(
        pl.col("start_ns").min(), pl.col("end_ns").max()
    )
    for direction, first in (("forward", 0), ("backward", 1)):
        of_direction = spans.filter(pl.col("phase") == direction)
        source, target = (of_direction.filter(pl.col("stage") == number) for number in (first, 1 - first))
        both = source.join(target, on=["step", "microbatch"], suffix="_next")
        assert len(both) == 2 * PIPELINE.microbatches
        assert (both["start_ns_next"] > both["start_ns"]).all()
        assert (both["end_ns_next"] > both["end_ns"]).all()


def test_a_step_begins_when_its_rank_has_ended_the_one_before() -> None:
    recording = simulated(DP4, steps=3)
    assert (recording.step_begin[1:] > recording.step_end[:-1]).all()
    steps = table_of(recording).filter(pl.col("name") == "step")
    assert steps.group_by("rank", "step").len()["len"].to_list() == [1] * 12
    assert steps["duration_ns"].is_between(90e6, 115e6).all()


def test_a_gpu_that_is_10_percent_slower_lengthens_the_step_by_its_computing() -> None:
    spec = JobSpec(DP4, 2, faults=(SlowGpu(2, 1.1),), noise=SILENCE)
    slow, healthy = simulate([spec, spec.healthy()])
    computing = on_device(healthy).filter(rank=2, step=0, kind="compute")["duration_ns"].sum()
    assert slow.step_time_ns - healthy.step_time_ns == pytest.approx(0.1 * computing, rel=0.02)


def test_a_fault_changes_nothing_but_what_it_is_about() -> None:
    spec = JobSpec(PIPELINE, 3, seed=5, faults=(SlowGpu(6, 1.5), Stall(1, 0.5, 0.1)))
    faulty, healthy = (on_device(recording) for recording in simulate([spec, spec.healthy()]))
    same = (pl.col("kind") == "compute") & (pl.col("rank") != 6)
    assert faulty.filter(same)["duration_ns"].equals(healthy.filter(same)["duration_ns"])
    slow = (pl.col("kind") == "compute") & (pl.col("rank") == 6)
    # Of the time that a kernel keeps the stream, a microsecond passes between it and the next one.
    ratio = (faulty.filter(slow)["duration_ns"] + 1000) / (healthy.filter(slow)["duration_ns"] + 1000)
    assert ratio.to_numpy() == pytest.approx(1.5, abs=1e-4)


def test_a_job_is_the_same_alone_and_in_a_batch() -> None:
    specs = [JobSpec(PIPELINE, 2, seed, (ChangingCulprit(1.2), GarbageCollection(0.2, 10))) for seed in range(3)]
    together = simulate(specs)
    for spec, recording in zip(specs, together, strict=True):
        (alone,) = simulate([spec])
        assert table_of(alone).equals(table_of(recording))
        assert alone.truths == recording.truths
    assert not table_of(together[0]).equals(table_of(together[1]))


def test_jobs_of_a_batch_must_be_of_one_shape() -> None:
    with pytest.raises(ValueError, match="one layout"):
        simulate([JobSpec(DP4), JobSpec(FSDP4)])


def test_skewed_clocks_shift_whole_hosts_and_nothing_else() -> None:
    layout = JobLayout("dp", 20)
    spec = JobSpec(layout, 2, faults=(ClockSkew(1e6),))
    skewed, true = (table_of(recording) for recording in simulate([spec, spec.healthy()]))
    assert skewed.drop("start_ns", "end_ns").equals(true.drop("start_ns", "end_ns"))
    moved = pl.DataFrame({"host": true["rank"] // 8, "ns": skewed["start_ns"] - true["start_ns"]})
    offsets = moved.unique()
    assert len(offsets) == offsets["ns"].n_unique() == 3
    assert offsets["ns"].abs().max() <= 1_000_000


SMALL = JobLayout("3d", dp=4, pp=2, tp=2, microbatches=2)
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off"


@pytest.mark.parametrize(
    ("fault", "truth"),
    [
        (SlowGpu(9, 1.1), Truth("slow_gpu", "compute", (9,), ("node1",))),
        (SlowKernel(3, "gemm", 1.2), Truth("slow_kernel", "compute", (3,), ("node0",), GEMM)),
        (SlowHost("node1", 1.1), Truth("slow_host", "compute", tuple(range(8, 16)), ("node1",))),
        (HostBound(1, 0.1), Truth("host_bound", "host", (1,), ("node0",))),
        (SlowInput(1, 0.1), Truth("slow_input", "input", (1,), ("node0",))),
        (StageImbalance(1, 1.2), Truth("stage_imbalance", "stage_imbalance", tuple(range(8, 16)), ("node1",))),
        (SequenceImbalance(0.2), Truth("sequence_imbalance", "sequence_imbalance")),
        (SlowLink(10, 2), Truth("slow_link", "communication", (10,), ("node1",), group=(8, 10, 12, 14))),
        (
            SlowEdge(0, dp=2, tp=1, factor=3),
            Truth("slow_edge", "communication", (5, 13), ("node0", "node1"), edge=(5, 13)),
        ),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, Truth) else "",
)
def test_the_truth_names_the_guilty(fault: Fault, truth: Truth) -> None:
    recording, healthy = simulate([JobSpec(SMALL, 2, faults=(fault,)), JobSpec(SMALL, 2)])
    assert recording.truths == (truth,)
    assert recording.step_time_ns > healthy.step_time_ns


def test_two_faults_at_once_have_two_truths() -> None:
    truths = simulated(DP4, SlowGpu(1, 1.2), SlowInput(2, 0.1), ClockSkew(1e5)).truths
    assert [truth.fault for truth in truths] == ["slow_gpu", "slow_input"]


def test_a_host_bound_rank_costs_about_its_severity() -> None:
    for layout, rank in ((DP4, 1), (PIPELINE, 0), (PIPELINE, 7)):
        spec = JobSpec(layout, 3, faults=(HostBound(rank, 0.1),), noise=SILENCE)
        faulty, healthy = simulate([spec, spec.healthy()])
        assert faulty.step_time_ns / healthy.step_time_ns == pytest.approx(1.1, abs=0.03)


def test_stalls_and_collections_of_garbage_are_listed_by_step() -> None:
    stalled = simulated(DP4, Stall(3, 0.5, 0.2), steps=8)
    hit = {pause.step for pause in stalled.pauses}
    assert 0 < len(hit) < 8
    assert stalled.truths[0].by_step == tuple((3,) if step in hit else () for step in range(8))
    lengths = (stalled.step_end - stalled.step_begin)[:, 0]
    assert lengths[sorted(hit)].min() > lengths[sorted(set(range(8)) - hit)].max()
    collected = simulated(DP4, GarbageCollection(0.3, 20), steps=5)
    by_step = [(step, rank) for step, ranks in enumerate(collected.truths[0].by_step) for rank in ranks]
    assert sorted((pause.step, pause.rank) for pause in collected.pauses) == by_step != []


def test_a_visible_collection_of_garbage_fills_a_gap_of_the_host() -> None:
    fault = GarbageCollection(0.5, 20, visible=True)
    recording = simulated(DP4, fault, steps=3)
    table = table_of(recording, host_operators=True)
    rows = table.filter(kind="gc")
    assert len(rows) == len(recording.pauses) > 0
    for row in rows.iter_rows(named=True):
        thread = table.filter(rank=row["rank"], lane=row["lane"]).filter(~pl.col("kind").is_in(["scope", "gc"]))
        during = thread.filter(pl.col("end_ns") > row["start_ns"], pl.col("start_ns") < row["end_ns"])
        assert during.is_empty()


def test_a_changing_culprit_is_another_rank_in_each_step() -> None:
    by_step = simulated(DP4, ChangingCulprit(1.3), steps=6).truths[0].by_step
    assert [len(ranks) for ranks in by_step] == [1] * 6
    assert all(one != other for one, other in zip(by_step[1:], by_step[:-1], strict=True))


def test_long_sequences_take_longer_forward_and_backward_in_every_stage() -> None:
    noise = Noise(operation=0.001, spread=0, tail_probability=0)
    kernels = on_device(simulated(SMALL, SequenceImbalance(0.5), noise=noise)).filter(pl.col("microbatch") >= 0)
    place = {"dp": pl.col("rank") % 8 // 2, "stage": pl.col("rank") // 8}
    times = (
        kernels.filter(kind="compute").group_by("step", "microbatch", "phase", **place).agg(pl.col("duration_ns").sum())
    )
    wide = times.pivot(["phase", "stage"], index=["step", "microbatch", "dp"], values="duration_ns")
    correlation = np.corrcoef(wide.drop("step", "microbatch", "dp").to_numpy().T)
    assert correlation.shape == (4, 4)
    assert correlation.min() > 0.99


def test_only_the_collectives_of_a_slow_group_transfer_longer() -> None:
    spec = JobSpec(SMALL, 2, faults=(SlowLink(10, 3),), noise=SILENCE)
    slow, healthy = (collectives(recording) for recording in simulate([spec, spec.healthy()]))
    both = slow.join(healthy, on=["step", "group", "group_seq", "name"], suffix="_healthy")
    longer = both.with_columns(
        ratio=(pl.col("first_end") - pl.col("last_start"))
        / (pl.col("first_end_healthy") - pl.col("last_start_healthy")),
    )
    of_group = longer["rank"].list.sort() == [8, 10, 12, 14]
    assert longer.filter(of_group)["ratio"].to_numpy() == pytest.approx(3, abs=0.1)
    assert longer.filter(~of_group)["ratio"].to_numpy() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("name", STANDARD)
def test_standard_programs_are_compact(name: str) -> None:
    layout = STANDARD[name]
    for operations in program_of(layout).stages:
        assert 40 <= len(operations) / max(layout.accumulates, layout.microbatches / 8) <= 140


def test_a_long_list_of_ranks_is_cut_as_pytorch_does() -> None:
    assert Group("0", "default_pg", tuple(range(4))).rank_list == "[0, 1, 2, 3]"
    assert Group("0", "default_pg", tuple(range(64))).rank_list.endswith("28, 29, ...]")


def test_kernels_of_a_graph_are_written_without_a_collective_call_of_their_own(tmp_path: Path) -> None:
    recording = simulated(STANDARD["dp8 as CUDA graph"], steps=1)
    info = read_kineto(write_kineto(recording, tmp_path)[3], tmp_path / "fragment.parquet")
    read = pl.read_parquet(tmp_path / "fragment.parquet").with_columns(pl.col(pl.Categorical).cast(pl.String))
    assert info.ranks == (3,)
    assert read.filter(kind="collective")["group_seq"].null_count() == 5
    assert read.filter(name="cudaGraphLaunch").height == 1


@pytest.mark.slow
@pytest.mark.parametrize("collective_args", [True, False])
@pytest.mark.parametrize(
    ("layout", "steps"), [(DP4, 3), (JobLayout("3d", dp=2, pp=2, tp=2, microbatches=2), 2)], ids=["dp", "3d"]
)
def test_kineto_traces_read_back_as_the_table(
    tmp_path: Path, layout: JobLayout, steps: int, collective_args: bool
) -> None:
    recording = simulated(layout, GarbageCollection(0.3, 5, visible=True), ClockSkew(1e6), steps=steps)
    written = pl.from_arrow(arrow_table(recording.columns(host_operators=True)))
    assert isinstance(written, pl.DataFrame)
    texts = pl.col(pl.Categorical).cast(pl.String)
    unsaid = () if collective_args else ("group", "group_seq", "bytes", "peer", "kind")
    of_rank = written.with_columns(texts).drop(unsaid).partition_by("rank", maintain_order=True)
    for rank, path in enumerate(write_kineto(recording, tmp_path, collective_args=collective_args)):
        info = read_kineto(path, tmp_path / "fragment.parquet")
        assert (info.ranks, info.hosts, info.warnings) == ((rank,), {rank: "node0"}, ())
        read = pl.read_parquet(tmp_path / "fragment.parquet").with_columns(texts).drop(unsaid)
        assert read.equals(of_rank[rank])
        if layout.kind == "3d" and collective_args:
            assert info.layout is not None
            assert (info.layout.pipeline_stage, info.layout.dp_rank) == ({rank: rank // 4}, {rank: rank % 4 // 2})


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.kind)
def test_the_engine_takes_the_table(tmp_path: Path, layout: JobLayout) -> None:
    trace = write_table(simulated(layout, SlowGpu(3, 1.5), steps=12), tmp_path)
    assert pl.read_parquet_schema(trace.fragments[0]).names() == SCHEMA.names
    assert trace.job.operations == sum(trace.job.step_times.operations)
    assert (trace.job.layout is not None) == (layout.kind == "3d")
    result = triage(trace)
    assert (3,) in [finding.ranks for finding in result.findings]
    assert result.warnings == ()
