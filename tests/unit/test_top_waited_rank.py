"""Whom most waiting is for is accused where its own time is the longest, too; figures in percent of the step."""

from dataclasses import replace

import numpy as np
import pytest
from support import waiting
from support.excess_builder import COMMUNICATION, COMPUTE, HOST, INPUT, STEP_NS, Percents, job, quiet

from kair_engine.localize.anomalies import Anomaly
from kair_engine.localize.localization import conclude
from kair_engine.results.blame import BlameResult
from kair_engine.triage.ranks.top_waited_rank import with_top_waited_rank

STEPS, SLOW = 12, 1


def waiting_for(rank: int, share: float, *, ranks: int, percent: float = 30) -> BlameResult:
    return waiting.waiting_for(rank, share, ranks=ranks, steps=STEPS, percent=percent)


def sharing_cores(percents: tuple[float, ...], row: int = COMPUTE, noise: float = 1.0) -> Percents:
    """Each rank's excess in every step, give or take some noise."""
    made = quiet(STEPS, len(percents), percent=noise)
    made[:, row] += np.array(percents)
    return made


def accused(percents: Percents, blamed: BlameResult) -> tuple[Anomaly, ...]:
    found = conclude(job(percents))
    assert found.anomalies == ()  # no test of stage 1 finds anybody
    return with_top_waited_rank(found, blamed).anomalies


# A quota on rank 1; rank 3 has the core that they share for itself meanwhile, so that healthy ranks differ much.
QUOTA = sharing_cores((0, 28, 0, -12))


def test_the_rank_that_most_wait_for_is_accused_where_it_is_slow_by_itself() -> None:
    (found,) = accused(QUOTA, waiting_for(SLOW, 0.99, ranks=4))
    assert (found.kind, found.positions, found.class_index) == ("persistent", (SLOW,), COMPUTE)
    assert found.excess_ns / STEP_NS == pytest.approx(0.28, abs=0.01)
    # On top of four ranks in all of twelve steps.
    assert found.p_value == pytest.approx(4 * 4.0**-STEPS)


@pytest.mark.parametrize(
    ("percents", "blamed"),
    [
        (QUOTA, waiting_for(SLOW, 0.38, ranks=4)),
        (QUOTA, waiting_for(SLOW, 0.99, ranks=4, percent=4)),
        (QUOTA, waiting_for(2, 0.99, ranks=4)),
        (sharing_cores((0, 6.5, -2, -7)), waiting_for(SLOW, 0.99, ranks=4)),
        (sharing_cores((0, 4, 0, -2)), waiting_for(SLOW, 0.99, ranks=4)),
    ],
    ids=["others are waited for too", "waited for little", "another is", "others differ as much", "slower by little"],
)
def test_nobody_is_accused_for_being_waited_for_alone(percents: Percents, blamed: BlameResult) -> None:
    assert accused(percents, blamed) == ()


@pytest.mark.parametrize(
    ("percents", "row", "share", "is_accused"),
    [
        ((0, 16, -2, 2), HOST, 0.45, True),
        ((0, 16, -2, 2), HOST, 0.35, False),
        ((0, 12, -2, 2), HOST, 0.45, False),
        ((0, 16, -9, 4), HOST, 0.45, False),
        ((0, 5.7, -3.5), COMPUTE, 0.45, False),
    ],
    ids=["steadily longer", "waited for little", "as ranks can differ", "others differ as much", "of three ranks"],
)
def test_of_several_that_are_waited_for_one_is_accused_that_takes_longest_in_step_after_step(
    percents: tuple[float, ...], row: int, share: float, is_accused: bool
) -> None:
    """Of three others it is not known how much healthy ones differ: no test finds it by that."""
    found = accused(sharing_cores(percents, row), waiting_for(SLOW, share, ranks=len(percents)))
    assert [one.positions for one in found] == ([(SLOW,)] if is_accused else [])


def test_who_is_on_top_now_and_then_is_not_accused() -> None:
    percents = sharing_cores((0, 0, 0, 0), noise=12)
    percents[::2, COMPUTE, SLOW] += 30
    assert with_top_waited_rank(conclude(job(percents)), waiting_for(SLOW, 0.9, ranks=4)).anomalies == ()


def test_what_began_within_the_recording_counts_from_there() -> None:
    """In no class much, in all steps together little; but most waiting is for it, and its own time changed."""
    percents = quiet(30, 2, percent=0.5)
    percents[20:, :, SLOW] += np.array([5, 2.5, 2.5, 5])
    (found,) = accused(percents, waiting.waiting_for(SLOW, 0.9, ranks=2, steps=30))
    assert (found.positions, found.since) == ((SLOW,), conclude(job(percents)).job.steps[20].step)
    assert accused(percents, waiting.waiting_for(0, 0.9, ranks=2, steps=30)) == ()


def test_of_two_ranks_delays_of_all_classes_count_together() -> None:
    """A spread of 6 % in one class is too little by itself; and the other's part of the excess is as far below."""
    percents = quiet(STEPS, 2, percent=0.5)
    for row, part in ((COMPUTE, 2.5), (COMMUNICATION, 2.0), (HOST, 1.2), (INPUT, 1.2)):
        percents[:, row] += np.array([-part, part])
    (found,) = accused(percents, waiting_for(SLOW, 0.9, ranks=2))
    assert found.positions == (SLOW,)
    assert found.p_value < 0.05
    assert found.excess_ns / STEP_NS == pytest.approx(0.05, abs=0.01)


def test_of_two_ranks_a_slowness_that_fades_is_one_ranks() -> None:
    """From 36 % to 11 %: one step resembles the next, but no spell of the other's would hide in that."""
    percents = quiet(STEPS, 2, percent=0.5)
    percents[:, COMPUTE] += np.linspace(36, 11, STEPS)[:, None] * np.array([-1, 1])
    assert [one.positions for one in accused(percents, waiting_for(SLOW, 1.0, ranks=2))] == [(SLOW,)]


def test_what_is_found_anyway_stays_as_it_is() -> None:
    found = conclude(job(sharing_cores((0, 28, 0, 0), noise=0.2)))
    assert [one.positions for one in found.anomalies] == [(SLOW,)]
    assert with_top_waited_rank(found, waiting_for(SLOW, 0.99, ranks=4)) is found


def test_without_communication_nobody_waits() -> None:
    blamed = replace(waiting_for(SLOW, 0.99, ranks=4), collectives=0)
    assert accused(QUOTA, blamed) == ()
