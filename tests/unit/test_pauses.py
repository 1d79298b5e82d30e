"""Recordings of one or two steps: a rank whose host pauses again and again between the collectives."""

from pathlib import Path

import pytest
from support.pauses_builder import RANKS, Pauses, table
from support.trace_builder import trace

from kair_engine.localize.analysis import localize
from kair_engine.localize.excess import job_excess
from kair_engine.triage.analysis import triage


def pauses(folder: Path, pausing: Pauses, stretches: int = 6) -> list[int]:
    """How many pauses each rank is charged with in one step."""
    (step,) = job_excess(trace(folder, table(1, stretches, pausing))).steps
    return step.pauses.tolist()


def test_every_stretch_in_which_one_host_pauses_counts_once(tmp_path: Path) -> None:
    assert pauses(tmp_path, {2: [0, 1, 3, 5], 6: [4]}) == [0, 0, 4, 0, 0, 0, 1, 0]


def test_a_stretch_in_which_half_of_the_ranks_pause_is_the_programs(tmp_path: Path) -> None:
    assert pauses(tmp_path / "half", {rank: [1] for rank in range(4)} | {7: [2]}) == [0] * 7 + [1]
    assert pauses(tmp_path / "fewer", {rank: [1] for rank in range(3)}) == [1] * 3 + [0] * 5


def test_a_pause_of_less_than_a_percent_of_the_step_does_not_count(tmp_path: Path) -> None:
    assert pauses(tmp_path, {2: [0, 1, 3, 5]}, stretches=60) == [0] * RANKS


@pytest.mark.parametrize(
    ("steps", "pausing", "count"),
    [(1, {2: [0, 1, 2, 3, 5], 6: [4]}, 5), (2, {2: [1, 2, 4], 6: [3]}, 6)],
    ids=["one step", "two steps"],
)
def test_the_host_that_pauses_more_often_than_chance_has_it_is_found(
    tmp_path: Path, steps: int, pausing: Pauses, count: int
) -> None:
    made = trace(tmp_path, table(steps, 6, pausing))
    result = triage(made)
    (finding,) = result.findings
    assert (finding.ranks, finding.cause, finding.pattern) == ((2,), "host", "intermittent")
    assert finding.steps == tuple(range(steps))
    # Its peers' hosts issue a stretch every 100 µs: without the pauses the job would hardly be faster.
    assert finding.time_lost_us_per_step <= 50
    assert any(one.kind == "others_nearly_as_late" for one in finding.evidence)
    counts = {score.rank: score.large_delays for score in localize(made).scores}
    assert counts == {0: 0, 1: 0, 2: count, 3: 0, 4: 0, 5: 0, 6: steps, 7: 0}


@pytest.mark.parametrize("pausing", [{}, {2: [1, 3]}, {2: [0, 1, 3, 5], 6: [4]}, {r: [r % 6] for r in range(RANKS)}])
def test_a_few_pauses_accuse_nobody(tmp_path: Path, pausing: Pauses) -> None:
    assert triage(trace(tmp_path, table(1, 6, pausing))).findings == ()
