"""Whom most waiting is for is accused where its threads stood still; figures in percent of the step."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from support.excess_builder import COMPUTE, HOST, STEP_NS, job, quiet
from support.waiting import waiting_for

from kair_engine.arrays import Floats
from kair_engine.localize.anomalies import Anomaly, Preemption
from kair_engine.localize.localization import conclude
from kair_engine.ranks import Rank
from kair_engine.triage.ranks.preempted import with_preempted
from kair_engine.triage.shared_costs import of_half
from kair_engine.whatif.model import StoppedSteps

STEPS, SLOW = 8, 1
# Of the other rank the noise, of this one a stop in six of eight steps: on the job's clock a mean of 22.5 %.
STOPPED = np.array([[2, 30], [2, 0], [2, 30], [2, 30], [2, 30], [2, 30], [2, 30], [2, 0]], dtype=float)
LONG = 9.0


def accused(
    stopped: Floats,
    *,
    waited_for: int = SLOW,
    share: float = 0.99,
    row: int = COMPUTE,
    apart: Sequence[float] | None = None,
) -> tuple[Anomaly, ...]:
    """What is found of ranks whose excess no test of stage 1 tells from noise, or from how far ranks are `apart`."""
    steps, ranks = stopped.shape
    percents = quiet(steps, ranks, percent=12 if apart is None else 0.3)
    percents[:, row] += stopped / 2 if apart is None else np.array(apart)
    found = conclude(job(percents))
    assert found.anomalies == ()
    told = StoppedSteps(
        tuple(range(steps)), np.arange(ranks), stopped / 100 * STEP_NS, np.full(steps, STEP_NS, dtype=float)
    )
    return with_preempted(found, waiting_for(waited_for, share, ranks=ranks, steps=steps), told).anomalies


@pytest.mark.parametrize("row", [COMPUTE, HOST])
def test_the_rank_that_is_waited_for_is_accused_where_it_stood_still(row: int) -> None:
    (found,) = accused(STOPPED, row=row)
    assert (found.kind, found.positions, found.class_index) == ("intermittent", (SLOW,), row)
    assert found.excess_ns / STEP_NS == pytest.approx(0.205)
    assert found.preemption == Preemption((0, 2, 3, 4, 5, 6), STEPS, 6, 0, 0.225 * STEP_NS, 0.02 * STEP_NS)
    # Stops of a quarter in six of eight steps, in none of eight on the other. The prior of any rate, which counts
    # 0.013 then, gives that (28 · B(7, 11) + 8 · B(8, 10) + B(9, 9)) · 9 = 0.00226; 2 ranks, 4 sizes, a fifth of α.
    assert found.p_value == pytest.approx(2 * 4 / 0.2 * 0.013 * 0.00226, rel=0.005)


@pytest.mark.parametrize(
    ("stopped", "waited_for", "share"),
    [
        (STOPPED, 0, 0.99),
        (STOPPED, SLOW, 0.6),
        (STOPPED[:, [1, 1]], SLOW, 0.99),
        (np.where(STOPPED == 30, LONG, 0.0), SLOW, 0.99),
        (np.where(np.arange(STEPS)[:, None] == 3, STOPPED * 3, 0.0), SLOW, 0.99),
    ],
    ids=["the other is waited for", "both are", "both stand still", "for a little", "once"],
)
def test_nobody_is_accused_for_standing_still_alone(stopped: Floats, waited_for: int, share: float) -> None:
    assert accused(stopped, waited_for=waited_for, share=share) == ()


@pytest.mark.parametrize(("apart", "found"), [((-1.0, 1.0), True), ((1.0, -1.0), False)])
def test_who_stands_still_and_is_no_later_by_it_is_not_accused(apart: tuple[float, float], *, found: bool) -> None:
    assert bool(accused(STOPPED, apart=apart)) is found


def test_of_more_ranks_stops_have_to_be_rarer_by_chance() -> None:
    """Four stops in seven steps of two ranks have p = 0.015, three on one of four 0.013."""
    four, three = np.zeros((7, 2)), np.zeros((7, 4))
    four[1:5, SLOW], three[1:4, SLOW] = 30, 30
    (found,) = accused(four)
    assert found.p_value == pytest.approx(0.0153, rel=0.01)
    assert accused(three) == ()


@pytest.mark.parametrize(("share", "found"), [(0.55, True), (0.45, False)])
def test_of_four_ranks_that_all_stand_still_the_one_that_does_so_for_longest_in_each_step(
    share: float, *, found: bool
) -> None:
    """A fifth of the step on all, and 5 % more on one: all have an event in each step."""
    stopped = 20 + quiet(STEPS, 4, percent=0.3).sum(axis=1)
    stopped[:, SLOW] += 5
    anomalies = accused(stopped, share=share)
    assert [one.positions for one in anomalies] == ([(SLOW,)] if found else [])
    if found:
        assert anomalies[0].kind == "persistent"
        stood = anomalies[0].preemption
        assert stood is not None
        assert (stood.longer, len(stood.steps), stood.peers_events) == (STEPS, STEPS, 3 * STEPS)
        # The highest of four in eight of eight steps, of any of them.
        assert anomalies[0].p_value == pytest.approx(4 * 4.0**-8)


@pytest.mark.parametrize(
    ("more", "ranks"),
    [(5.0, 3), (2.0, 4), (np.array([[5], [5], [5], [-20], [5], [5], [-20], [5]]), 4)],
    ids=["of three", "for too little", "not in step after step"],
)
def test_who_stands_still_as_ranks_that_share_cores_do_is_not_accused(more: float | Floats, ranks: int) -> None:
    stopped = 20 + quiet(STEPS, ranks, percent=0.3).sum(axis=1)
    stopped[:, [SLOW]] += more
    assert accused(stopped, share=0.55) == ()


@pytest.mark.parametrize(("mates", "found"), [((), True), ((0, SLOW), False), ((2, SLOW), True), ((0, 2), True)])
def test_what_ranks_that_share_a_core_have_in_common_is_no_ones_own(mates: tuple[int, ...], *, found: bool) -> None:
    """Rank 1 stands still for 12 % of the step more than two others, rank 0 for 10 %: both are later by that."""
    more = np.array([10, 12, 0, 0])
    percents = quiet(STEPS, 4, percent=0.3)
    percents[:, COMPUTE] += more
    untold = replace(conclude(job(percents)), anomalies=())
    still = (20 + quiet(STEPS, 4, percent=0.3).sum(axis=1) + more) / 100 * STEP_NS
    told = StoppedSteps(tuple(range(STEPS)), np.arange(4), still, np.full(STEPS, STEP_NS, dtype=float))
    waited = waiting_for(SLOW, 0.55, ranks=4, steps=STEPS)
    anomalies = with_preempted(untold, waited, told, [tuple(map(Rank, mates))]).anomalies
    assert [one.positions for one in anomalies] == ([(SLOW,)] if found else [])


@pytest.mark.parametrize(("stop", "found"), [(24.0, True), (12.0, False)])
def test_stops_that_come_and_go_tell_of_a_rank_that_is_late_in_each_step(stop: float, *, found: bool) -> None:
    """Healthy ranks differ by 8 % here, this one by 20 %: as much as half of its stops make up, or less."""
    stopped = np.zeros((STEPS, 4))
    stopped[::2, SLOW] = stop
    positions = [one.positions for one in accused(stopped, share=0.55, apart=[0, 20, -12, 8])]
    assert positions == ([(SLOW,)] if found else [])


def test_nothing_is_said_of_ranks_that_were_not_replayed() -> None:
    found = conclude(job(quiet(STEPS, 2)))
    told = StoppedSteps(tuple(range(STEPS)), np.array([0]), np.zeros((STEPS, 1)), np.full(STEPS, STEP_NS, dtype=float))
    blamed = waiting_for(SLOW, 0.99, ranks=2, steps=STEPS)
    assert with_preempted(found, blamed, told) is found
    assert with_preempted(found, blamed, None) is found


@pytest.mark.parametrize(
    ("of_rank", "half"),
    [([6.0, 8.0], 7.0), ([2.0, 26.0], 0.0), ([3.0, 9.0], 6.0), ([0.0, 2.0, 20.0], 2.0), ([1.0, 5.0, 7.0, 50.0], 6.0)],
)
def test_what_half_of_the_ranks_stand_still_for_is_no_mean_of_one_and_none(of_rank: list[float], half: float) -> None:
    assert of_half(np.array(of_rank)) == half
