"""A step that takes longer than all others together; µs by hand."""

from pathlib import Path

import pytest
from support.stopping_threads import RANKS, STEPS, steps

from kair_engine.triage.analysis import triage
from kair_tui.render.warnings import warnings_in_words

STOPPED = {(step, rank): 3500.0 for step in (1, 4) for rank in range(RANKS)}


def test_what_all_ranks_lose_shows_beside_a_giant_step(tmp_path: Path) -> None:
    """Of five steps two have a stop of 3 ms; the sixth holds a collective of 60 ms, 28 times the other steps' mean."""
    result = triage(steps(tmp_path, STOPPED, met={2: 60_000}))
    (found,) = result.findings
    assert (result.verdict, found.cause, found.ranks, result.steps) == ("job_wide", "contention", (), (0, 1, 3, 4, 5))
    assert found.time_lost_us_per_step == pytest.approx(3000 * 2 / 5)
    assert result.step_time_us == pytest.approx((3 * 950 + 2 * 3950) / 5)
    (told,) = (one for one in warnings_in_words(result.warnings) if one.code == "giant_step")
    assert told.message == (
        "step 2 took 60.9 ms, longer than the 5 others together (10.8 ms), and no single rank was waited for: one step "
        "accuses nobody, and all figures leave it out"
    )


def test_who_was_waited_for_in_it_is_told_and_left_open(tmp_path: Path) -> None:
    result = triage(steps(tmp_path, {(2, 1): 60_000.0}))
    assert (result.verdict, result.findings) == ("inconclusive", ())
    (told,) = (one for one in result.warnings if one.code == "giant_step")
    assert told.ranks == (1,)
    item = result.open[0]
    assert (item.kind, item.ranks, item.steps) == ("event", (1,), (2,))
    assert (item.took_us, item.usual_us) == (pytest.approx(60_450), pytest.approx(950))
    assert item.us_per_step == pytest.approx(59_500 / 6)


def test_steps_that_are_longer_but_not_than_all_others_count(tmp_path: Path) -> None:
    """Four of 950 µs, one of 3950, which make 7.75 ms, and one of 5.7."""
    took = {(1, rank): 3500.0 for rank in range(RANKS)} | {(4, rank): 5250.0 for rank in range(RANKS)}
    result = triage(steps(tmp_path, took))
    assert result.steps == tuple(range(STEPS))
    assert "giant_step" not in {one.code for one in result.warnings}
