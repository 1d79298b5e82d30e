"""Ranks that begin a step late: what they did at the end of the step before."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.places import CASES2
from support.trace_builder import trace

from kair_engine.blame import analysis
from kair_engine.blame.analysis import blame
from kair_engine.recording.opening import open_trace
from kair_engine.results.blame import STEP_BEGIN, STEP_END, BlameResult
from kair_engine.trace.model import Trace

# Two steps of a kernel and a collective; rank 3's first one is 300 µs longer, and the second begins so much later.
BEFORE = """
step 1: 0+500
3 step   | 0+800
0-3 main | launch 2+3 ^1 | c10d::allreduce_ 20+10 | launch 22+3 ^2
0-3 gpu7 | gemm 10+390 ^1
0-3 gpu20 | allreduce@dp#1 400+90 ^2
"""
AFTER = """
step 2: 500+500
0-2 main  | launch 502+3 ^3 | c10d::allreduce_ 520+10 | launch 522+3 ^4
0-2 gpu7  | gemm 510+50 ^3
0-2 gpu20 | allreduce@dp#2 560+330 ^4
3 step    | 800+200
3 main    | launch 802+3 ^3 | c10d::allreduce_ 820+10 | launch 822+3 ^4
3 gpu7    | gemm 810+50 ^3
3 gpu20   | allreduce@dp#2 860+30 ^4
"""
IDLE = (3, STEP_END, "host", True)


def causes(result: BlameResult) -> list[tuple[int, str | None, str, bool]]:
    return [(one.rank, one.operator, one.cause, one.is_edge) for one in result.root_causes]


def made(folder: Path, *tables: str) -> Trace:
    return trace(folder, "\n".join(tables))


def test_what_a_host_does_after_its_device_is_the_host_s(tmp_path: Path) -> None:
    result = blame(made(tmp_path, BEFORE, AFTER))
    assert causes(result) == [IDLE]
    assert result.root_causes[0].steps == (2,)
    assert result.unattributed_us == 0
    (path,) = result.paths
    assert (path.cause, path.chain[-1].operator, path.chain[-1].role_in_path) == ("host", STEP_END, "edge")


def test_a_scope_or_an_operation_around_most_of_it_names_it(tmp_path: Path) -> None:
    logs = "step 1: 0+500\n3 main | log_metrics 480+320 :scope | aten::item 500+40"
    assert causes(blame(made(tmp_path / "scope", BEFORE, logs, AFTER))) == [(3, "log_metrics", "host", False)]
    collects = "step 1: 0+500\n3 main | whole_step 1+799 :scope | gc 490+300 :gc"
    found = causes(blame(made(tmp_path / "garbage", BEFORE, collects, AFTER)))
    assert found == [(3, "gc", "garbage_collection", False)]


def test_what_all_ranks_do_there_makes_nobody_late(tmp_path: Path) -> None:
    """Rank 3's step is longer by another kernel: its device was busy until then."""
    busy = "step 1: 0+500\n3 gpu7 | gemm 495+304"
    assert causes(blame(made(tmp_path, BEFORE, busy, AFTER))) == [(3, STEP_BEGIN, "unknown", True)]


def test_without_the_step_before_nobody_can_tell(tmp_path: Path) -> None:
    alone = made(tmp_path, BEFORE, AFTER).select([2])
    assert causes(blame(alone)) == [(3, STEP_BEGIN, "unknown", True)]
    later = AFTER.replace("step 2", "step 3")
    assert causes(blame(made(tmp_path / "apart", BEFORE, later))) == [(3, STEP_BEGIN, "unknown", True)]


def test_where_the_step_before_was_reduced_elsewhere_the_answer_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = blame(made(tmp_path, BEFORE, AFTER))
    monkeypatch.setattr("kair_engine.trace.batches.ROWS_AT_A_TIME", 1)
    monkeypatch.setattr(analysis, "over_parts", lambda of, reduce: (reduce(of.select([step])) for step in of.steps))
    assert blame(replace(made(tmp_path, BEFORE, AFTER))) == whole


@pytest.mark.slow
@pytest.mark.skipif(not CASES2.is_dir(), reason="needs ../shared")
@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("end_of_step_host", (0, STEP_END, "host", True)),
        ("end_of_step_logging_marked", (0, "log_metrics", "host", False)),
    ],
)
def test_who_logs_at_the_end_of_its_steps_is_named_with_that(
    tmp_path: Path, case: str, expected: tuple[int, str, str, bool]
) -> None:
    result = blame(open_trace(CASES2 / case / "input", cache=tmp_path))
    assert causes(result)[0] == expected
    assert result.root_causes[0].share > 0.9
