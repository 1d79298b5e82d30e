"""A step over time: on tables small enough to draw by hand, and on a recording whose culprit is known."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.answers import recorded
from support.places import SAMPLES
from support.trace_builder import trace

from kair_engine.errors import UsageError
from kair_engine.results.timeline import TimelineResult
from kair_engine.trace.model import Trace
from kair_engine.views.rank_profile import rank_profile
from kair_engine.views.timeline import View, step_to_show, timeline
from kair_engine.views.timeline_prepared import prepare

DELAYED = """
    step 3: 0+100
    0-3 main | launch 0+2 ^1 | launch 4+2 ^2
    0-2 gpu7 | gemm 10+20 ^1
    3 gpu7   | gemm 10+60 ^1
    0-2 gpu8 | allreduce@dp#1 30+50 ^2
    3 gpu8   | allreduce@dp#1 70+10 ^2
"""
WHOLE = View(whole=True, windows=10)


def windows(result: TimelineResult) -> dict[tuple[int, str | None], str]:
    return {(row.rank, row.lane): row.windows for row in result.rows}


def test_every_window_is_what_most_of_it_goes_into(tmp_path: Path) -> None:
    result = timeline(trace(tmp_path, DELAYED), WHOLE)
    assert windows(result)[0, None] == "rccwwwwthh"
    assert windows(result)[3, None] == "rccccccthh"
    assert result.rows[0].arrivals == "...a......"
    assert result.rows[3].arrivals == ".......l.."
    assert [row.imposed_us for row in result.rows] == [0, 0, 0, 120]


def test_it_is_around_what_was_waited_for_longest(tmp_path: Path) -> None:
    around = timeline(trace(tmp_path, DELAYED), View()).around
    assert (around.operation.rank, around.operation.operator) == (3, "gemm")
    assert (around.operation.own_us, around.operation.expected_us, around.operation.excess_us) == (60, 20, 40)
    assert (around.cause, around.waited_in, around.late_rank, around.waited_us) == ("compute", "allreduce", 3, 120)


def test_the_path_goes_from_who_waited_to_what_was_slow(tmp_path: Path) -> None:
    path = timeline(trace(tmp_path, DELAYED), WHOLE).path
    assert [(stop.rank, stop.begin_us, stop.end_us, stop.role_in_path) for stop in path] == [
        (0, 30, 70, "victim"),
        (3, 10, 70, "culprit"),
    ]


def test_clocks_are_made_one(tmp_path: Path) -> None:
    straight = timeline(trace(tmp_path / "straight", DELAYED), WHOLE)
    shifted = timeline(trace(tmp_path / "shifted", DELAYED, shift={3: 500.0}), WHOLE)
    assert windows(shifted) == windows(straight)
    assert shifted.path == straight.path


def test_of_many_ranks_in_a_row_the_one_that_is_waited_for_is_shown(tmp_path: Path) -> None:
    result = timeline(trace(tmp_path, DELAYED), replace(WHOLE, rows=2))
    assert [(row.first_rank, row.last_rank, row.ranks, row.rank) for row in result.rows] == [(0, 1, 2, 0), (2, 3, 2, 3)]
    alone = timeline(trace(tmp_path / "alone", DELAYED), replace(WHOLE, ranks=(1, 2)))
    assert [row.rank for row in alone.rows] == [1, 2]


def test_threads_and_streams_unfold(tmp_path: Path) -> None:
    result = timeline(trace(tmp_path, DELAYED), replace(WHOLE, unfold=(3,), windows=50))
    lanes = {row.lane: row.windows for row in result.rows if row.rank == 3 and row.lane}
    assert lanes["stream 7"].strip(".") == "c" * 30
    assert lanes["stream 8"].strip(".") == "t" * 5
    assert [text.strip(".") for lane, text in lanes.items() if lane.startswith("thread")] == ["o.o"]


def test_the_cursor_reads_each_threads_and_streams_operation(tmp_path: Path) -> None:
    under = timeline(trace(tmp_path, DELAYED), replace(WHOLE, cursor=(1, 50.0))).under
    assert [(one.operator, one.waited_us, one.late_us) for one in under] == [("allreduce", 40, 0)]
    later = timeline(trace(tmp_path / "later", DELAYED), replace(WHOLE, cursor=(3, 75.0))).under[0]
    assert (later.operator, later.waited_us, later.late_us) == ("allreduce", 0, 40)


def test_an_operation_is_found_by_its_begin_and_its_name(tmp_path: Path) -> None:
    made = trace(tmp_path, DELAYED)
    by_time = timeline(made, View(rank=1, at_us=10.0)).around
    assert (by_time.operation.rank, by_time.operation.operator, by_time.late_rank) == (1, "gemm", 3)
    assert timeline(made, View(rank=2, operator="laun")).around.operation.operator == "launch"


@pytest.mark.parametrize(
    ("view", "says"),
    [
        (View(rank=9), "rank 9 left no trace"),
        (View(operator="conv"), "no operation matches 'conv' in step 3"),
        (View(begin_us=50.0, end_us=50.0), "the range of time is empty"),
        (View(ranks=(7, 9)), "no rank of 7-9"),
        (View(at_us=5.0), "name the rank|moment is one of a rank"),
        (View(windows=0), "windows"),
    ],
)
def test_what_makes_no_sense_is_turned_down(tmp_path: Path, view: View, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        timeline(trace(tmp_path, DELAYED), view)


def test_one_rank_alone_has_no_path(tmp_path: Path) -> None:
    result = timeline(trace(tmp_path, "step 1: 0+50\n0 main | mm 10+20 | add 31+5"), WHOLE)
    assert result.path == () == result.collectives
    assert result.around.operation.operator == "mm"
    assert result.rows[0].windows == "hhccccchhh"


@pytest.fixture(scope="module")
def sample() -> Trace:
    return recorded(SAMPLES / "slow_operator")


def test_a_recordings_windows_add_up_to_the_parts_of_kair_rank(sample: Trace) -> None:
    one = sample.select([step_to_show(sample)])
    result = timeline(one, View(whole=True, windows=10_000, ranks=(2, 2)))
    parts = {part.part: part.own_us for part in rank_profile(one, rank=2).parts}
    drawn = result.rows[0].windows
    for letter, part in (("c", "compute"), ("i", "input"), ("t", "communication"), ("w", "waiting")):
        assert drawn.count(letter) * result.window_us == pytest.approx(parts[part], abs=0.01 * result.step_us)


def test_a_step_made_ready_answers_as_one_that_is_loaded(sample: Trace) -> None:
    step = prepare(sample, step_to_show(sample))
    for view in (View(), View(rank=2, whole=True), View(rank=2, whole=True, cursor=(1, 3000.0), unfold=(0,))):
        assert timeline(sample, view, step) == timeline(sample, view)
    assert timeline(sample, View(), step).around.operation.operator == "kair_sample::mlp"
