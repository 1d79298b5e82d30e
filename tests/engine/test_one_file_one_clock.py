"""Ranks that one host's recorder wrote into one file: one clock, steps and transfers matched by it."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from support.nsys_builder import Export, thread_of
from support.xplane_builder import BEGIN_NS, PlaneBuilder, message

from kair_engine.recording.opening import open_trace
from kair_engine.timeline.account import account
from kair_engine.timeline.clocks import synchronise
from kair_engine.trace.loading import each_step
from kair_engine.trace.model import Trace
from kair_engine.triage.analysis import triage
from kair_engine.views.overview import info
from kair_tui.render.triage import triage_totals

EXCHANGE = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def exchanging(folder: Path, begins: list[float], *, ends: list[float] | None = None, files: int = 1) -> Trace:
    """Eight steps of 1 ms, in which each rank exchanges from its `begins` until 700 µs (or its `ends`)."""
    exports = [Export(folder / "job" / f"report{number}.sqlite") for number in range(files)]
    for rank, begin in enumerate(begins):
        export, thread = exports[rank * files // len(begins)], thread_of(4000 + rank)
        for step in range(8):
            at = 1000.0 * step
            export.span(thread, f"step {step}", at, at + 990)
            export.kernel(thread, "gemm(float*)", at + 30, at + begin - 5, launched=at + 10)
            end = at + (700 if ends is None else ends[rank])
            export.kernel(thread, EXCHANGE, at + begin, end, launched=at + 20, stream=15 + rank)
            export.kernel(thread, "adam(float*)", at + 710, at + 900, launched=at + 30)
    for export in exports:
        export.close()
    return open_trace(folder / "job", cache=folder / "cache")


def test_exchanges_of_unknown_ends_are_matched_by_the_order_of_their_streams(tmp_path: Path) -> None:
    """Rank 1 comes 200 µs later in each step: rank 0 waits a fifth of its step."""
    trace = exchanging(tmp_path, [300, 500])
    for ops in each_step(trace):
        sync = synchronise(ops)
        assert (len(sync.collectives), sync.collectives.rejected) == (1, 0)
        assert sync.collectives.wait_ns.tolist() == [200_000, 0]
        assert not sync.clocks.offset_ns.any()
    found = info(trace)
    assert (found.collectives, found.matched_collectives) == (8, 8)
    assert (found.clock.source, found.clock.max_offset_us) == ("file", 0)
    result = triage(trace)
    assert result.waiting_us_per_step == pytest.approx(200)
    assert result.bar is not None
    assert result.bar.waiting_share == pytest.approx(0.1, abs=0.01)


def test_exchanges_that_end_at_different_times_are_not_one(tmp_path: Path) -> None:
    """Two pipelines' ranks, say: each has one exchange a step, and not with the other."""
    found = info(exchanging(tmp_path, [300, 300], ends=[400, 690]))
    assert (found.collectives, found.matched_collectives) == (8, 0)


def test_exchanges_set_no_clock(tmp_path: Path) -> None:
    """Of two files the clocks may be apart by anything: a steady shift would make any two exchanges end together."""
    found = info(exchanging(tmp_path, [300, 300], ends=[400, 690], files=2))
    assert (found.matched_collectives, found.clock.source) == (0, "none")


def test_chips_whose_steps_are_counted_from_different_executions_are_matched_by_their_clock(tmp_path: Path) -> None:
    """Chip 0 ran two modules more before the first common one; three all-reduces are all that the chips share."""
    planes = []
    for chip in range(4):
        plane = PlaneBuilder(f"/device:TPU:{chip}")
        starts = [*([0.0, 1000.0] if chip == 0 else []), *(3000.0 * turn + 3000 for turn in range(8))]
        modules, operations = [], []
        for run, start in enumerate(starts):
            modules.append(plane.event("jit_f(7)", start, 2500, run_id=run))
            operations.append(plane.event("fusion.1", start + 1, 2000 + 10 * chip))
            if 3000 <= start < 12_000:
                operations.append(plane.event("all-reduce.3", start + 2100, 300 + chip))
        plane.line("XLA Modules", modules, begin_ns=BEGIN_NS)
        plane.line("XLA Ops", operations, begin_ns=BEGIN_NS)
        planes.append(plane.plane())
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "tpu.xplane.pb").write_bytes(b"".join(planes) + message(4, "tpu-host"))
    trace = open_trace(tmp_path / "job", cache=tmp_path / "cache")
    found = info(trace)
    assert (found.collectives, found.matched_collectives) == (3, 3)
    assert (found.clock.source, found.clock.max_offset_us) == ("file", 0)
    for ops in each_step(trace):
        assert np.ptp(ops.begin_ns) == 0, "all ranks' steps are of one execution"


@pytest.mark.slow
def test_communication_that_nothing_matches_is_unknown_and_not_no_waiting(tmp_path: Path) -> None:
    """100 and 390 of the 990 µs of a step: 24.7 % of both ranks' time."""
    trace = exchanging(tmp_path, [300, 300], ends=[400, 690])
    unmatched = account(trace).filter(kind="unmatched").group_by("step", "rank").agg(pl.col("ns").sum())
    assert sorted(unmatched.rows()) == [
        (step, rank, (100_000, 390_000)[rank]) for step in trace.steps for rank in (0, 1)
    ]
    result = triage(trace)
    assert result.bar is not None
    assert (result.bar.waiting_is_known, result.bar.unknown_us) == (False, pytest.approx(245))
    assert "how long ranks wait is unknown: 24.7 % of their time is communication" in triage_totals(result)
    assert "no_collectives" not in {one.code for one in result.warnings}
