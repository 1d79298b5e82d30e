"""CUDA graphs that Nsight Systems records as a whole: busy time, of which nobody can tell who waited in it."""

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest
from support.nsys_builder import Export, thread_of
from support.places import CASES

from kair_engine.recording.opening import open_trace
from kair_engine.results.triage import TriageResult
from kair_engine.triage.analysis import triage
from kair_tui.render.triage import triage_in_words

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
STEPS = 10


def job(
    folder: Path,
    *,
    ranks: int = 4,
    graph: float = 800,
    gemm: float = 0,
    longer: Mapping[int, float] | None = None,
    meet: bool = True,
) -> Path:
    """Steps of a graph, a kernel beside it, and unless ranks `meet` in it an all-reduce; `longer` is what some take."""
    extra = longer or {}
    for rank in range(ranks):
        export = Export(folder / f"report{rank}.sqlite")
        export.environment(RANK=rank, WORLD_SIZE=ranks)
        thread = thread_of(4000 + rank)
        at = 0.0
        for step in range(STEPS):
            # A little noise, other on every rank: nothing is beyond nothing.
            noise = (7 * step + 3 * rank) % 5 * 0.3
            took, works = graph + noise, gemm and gemm + noise
            took, works = (took, works + extra.get(rank, 0)) if gemm else (took + extra.get(rank, 0), works)
            all_there = at + 60 + graph + gemm + max(extra.values(), default=0) + 5
            done = all_there + 40
            export.span(thread, f"step {step}", at, done + 45)
            export.graph(thread, 1, at + 50, at + 50 + took, launched=at + 20)
            if gemm:
                export.kernel(thread, "gemm(float*)", at + 51 + took, at + 51 + took + works, launched=at + 30)
            if meet:
                export.kernel(thread, NCCL, at + 52 + took + works, done, launched=at + 40, stream=20)
            export.call(thread, "cudaStreamSynchronize_v3020", at + 50, done + 2)
            export.kernel(thread, "adam(float*)", done + 10, done + 30, launched=done + 4)
            at = done + 50
        export.close()
    return folder


def answer(folder: Path, tmp_path: Path) -> TriageResult:
    return triage(open_trace(folder, cache=tmp_path / "cache"))


def codes(result: TriageResult) -> set[str]:
    return {one.code for one in result.warnings}


def test_who_is_slow_in_graphs_that_hold_all_collectives_cannot_be_told(tmp_path: Path) -> None:
    result = answer(job(tmp_path / "job", meet=False, longer={2: 150}), tmp_path)
    assert (result.verdict, result.findings) == ("inconclusive", ())
    said = triage_in_words(result).summary
    assert "nsys profile --cuda-graph-trace=node" in said
    assert "what CUDA graphs run is not recorded, 951 µs of the 1.10 ms step (86.4 %)" in said


@pytest.mark.slow
def test_the_rank_that_others_wait_for_after_its_graph_is_told(tmp_path: Path) -> None:
    result = answer(job(tmp_path / "job", longer={2: 150}), tmp_path)
    (finding,) = result.findings
    assert (result.verdict, finding.ranks, finding.cause) == ("straggler", (2,), "compute")
    assert finding.operator == "CUDA graph 1 (inside not recorded)"
    assert finding.time_lost_us_per_step == pytest.approx(150, abs=5)
    assert "graphs_not_recorded" not in codes(result)


@pytest.mark.slow
def test_of_several_ranks_any_may_have_waited_for_another_in_its_graph(tmp_path: Path) -> None:
    result = answer(job(tmp_path / "job", ranks=8, longer={2: 150, 3: 150}), tmp_path)
    assert (result.verdict, result.findings) == ("inconclusive", ())
    assert "graphs_not_recorded" in codes(result)


@pytest.mark.slow
def test_nobody_is_slow_where_ranks_meet_beside_their_graphs_and_wait_for_nobody(tmp_path: Path) -> None:
    result = answer(job(tmp_path / "job"), tmp_path)
    assert (result.verdict, result.findings) == ("no_straggler", ())


@pytest.mark.slow
def test_small_graphs_hide_nobody(tmp_path: Path) -> None:
    result = answer(job(tmp_path / "job", graph=50, gemm=800, longer={1: 120}), tmp_path)
    (finding,) = result.findings
    assert (result.verdict, finding.ranks, finding.operator) == ("straggler", (1,), "gemm(float*)")
    assert "graphs_not_recorded" not in codes(result)


def test_a_launch_whose_kernels_are_recorded_is_told_once_and_rows_without_times_are_left_out(tmp_path: Path) -> None:
    export = Export(tmp_path / "report0.sqlite")
    thread = thread_of(4000)
    export.kernel(thread, "gemm(float*)", 30, 90, launched=10)
    launch = export.graph(thread, 1, 100, 200, launched=95)
    export.graph(thread, 2, 300, 350, launched=295)
    export.graph(thread, 3, 0, 0, launched=400)
    path = export.close()
    with closing(sqlite3.connect(path)) as connection:
        # Its one kernel, as --cuda-graph-trace=node has it.
        connection.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET correlationId = ?", (launch,))
        connection.commit()
    trace = open_trace(path, cache=tmp_path / "cache")
    rows = trace.scan().select(pl.col("name", "lane", "kind").cast(pl.String), "duration_ns").collect()
    on_device = {row["name"]: row for row in rows.iter_rows(named=True) if row["lane"].startswith("stream")}
    assert set(on_device) == {"gemm(float*)", "CUDA graph 2 (inside not recorded)"}
    graph = on_device["CUDA graph 2 (inside not recorded)"]
    assert (graph["kind"], graph["duration_ns"]) == ("compute", 50_000)
    assert "graphs_as_a_whole" in {one.code for one in trace.job.warnings}


def test_older_exports_name_neither_process_nor_graph(tmp_path: Path) -> None:
    path = job(tmp_path / "job", ranks=1) / "report0.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        for column in ("globalPid", "graphId", "graphExecId", "greenContextId"):
            connection.execute(f"ALTER TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE DROP COLUMN {column}")
        connection.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN globalPid")
        connection.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_MEMCPY DROP COLUMN globalPid")
        connection.commit()
    names = open_trace(path, cache=tmp_path / "cache").scan().select(pl.col("name").cast(pl.String)).collect()
    assert "CUDA graph (inside not recorded)" in set(names["name"])


@pytest.mark.slow
@pytest.mark.skipif(not CASES.is_dir(), reason="the cases are not beside the checkout")
def test_devices_that_run_the_job_s_own_graphs_are_nobody_else_s(tmp_path: Path) -> None:
    result = answer(CASES / "nsys_graph_level" / "input", tmp_path)
    assert (result.verdict, result.findings) == ("inconclusive", ())
    (why,) = (one for one in result.warnings if one.code == "graphs_not_recorded")
    assert why.share_of_step == pytest.approx(0.91, abs=0.01)
