"""The corpus of real takes: drawn by seed, told by what was measured, and scored by hand-made takes."""

from __future__ import annotations

from typing import Any

import pytest
from drawing import draw
from take_report import page
from take_scoring import score


def test_half_of_all_takes_are_healthy_and_the_same_seed_draws_the_same() -> None:
    takes = [draw(seed) for seed in range(300)]
    assert takes == [draw(seed) for seed in range(300)]
    healthy = sum(not take.faults for take in takes)
    assert 0.4 < healthy / len(takes) < 0.6
    assert {take.parallel for take in takes} == {"ddp", "fsdp2", "pipeline", "two_groups"}
    assert all(2 <= take.ranks <= 8 and 3 <= take.steps <= 40 for take in takes)


def take(own_ms: list[list[float]], faults: list[dict[str, Any]], load: str = "none") -> dict[str, Any]:
    """A take.json whose ranks took so many ms for themselves in each step (steps × ranks); a step is as long."""
    ranks = len(own_ms[0])
    steps = [
        [
            {
                "begin_ns": 0,
                "end_ns": int(max(of_step) * 1e6),
                "run_ns": int(of_step[rank] * 1e6),
                "delay_ns": 0,
                "injected_wall_ns": 0,
                "injected_run_ns": 0,
                "injected_delay_ns": 0,
            }
            for of_step in own_ms
        ]
        for rank in range(ranks)
    ]
    drawn = {
        "seed": 1,
        "ranks": ranks,
        "steps": len(own_ms),
        "load": load,
        "parallel": "ddp",
        "host_of_rank": [0] * ranks,
        "faults": faults,
    }
    return {"take": drawn, "stops": [], "ranks": [{"steps": of_rank} for of_rank in steps]}


def said(*findings: tuple[str, list[int]], verdict: str = "straggler") -> dict[str, Any]:
    rows = [{"cause": cause, "ranks": ranks, "time_lost_us_per_step": 1000.0} for cause, ranks in findings]
    return {"verdict": verdict, "findings": rows}


SLEEP = {"kind": "sleep", "ranks": [1], "onset": 0}
SLOW = [[100.0, 120.0, 100.0, 100.0]] * 8


def test_the_severity_is_what_was_measured() -> None:
    scored = score(take(SLOW, [SLEEP]), said(("host", [1])))
    assert scored.severity == pytest.approx(20 / 120)
    assert (scored.right_rank, scored.right_cause, scored.innocents) == (True, True, ())


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (said(("compute", [1])), (True, False, ())),
        (said(("host", [2])), (False, False, (2,))),
        (said(("contention", []), verdict="job_wide"), (False, False, ())),
    ],
)
def test_wrong_answers_are_told_apart(answer: dict[str, Any], expected: tuple[bool, bool, tuple[int, ...]]) -> None:
    scored = score(take(SLOW, [SLEEP]), answer)
    assert (scored.right_rank, scored.right_cause, scored.innocents) == expected


def test_a_rank_that_is_measurably_slower_is_no_innocent_and_accused_all_the_same() -> None:
    scored = score(take(SLOW, [], load="steady"), said(("contention", [1])))
    assert scored.kind == "healthy" and scored.accused == (1,) and scored.innocents == ()


def test_the_table_counts_healthy_takes_in_which_a_rank_is_accused() -> None:
    takes = [
        score(take([[100.0] * 4] * 8, []), said(verdict="no_straggler")),
        score(take([[100.0] * 4] * 8, []), said(("host", [0]))),
        score(take(SLOW, [SLEEP]), said(("host", [1]))),
    ]
    rows = page(takes).splitlines()
    assert any(row.startswith("| healthy, no load: a rank accused") and "1 of 2: 50.0 %" in row for row in rows)
    assert any("≥ 10 % of the step, ≥ 8 steps: rank and cause" in row and "1 of 1: 100.0 %" in row for row in rows)
