"""The contrast of moments: what all ranks do in a few steps, and work that another rank has most of each time."""

from collections.abc import Collection

import numpy as np
import pytest
from support.excess_builder import COMPUTE, HOST, INPUT, STEP_NS, Percents, job, nothing, quiet

from kair_engine.localize.localization import conclude, job_patterns
from kair_engine.localize.moments import AnotherRank, Longest, Moment, changing_work, shared_moments
from kair_engine.ranks import Position

NOBODY = np.zeros(8)


def taking_turns(steps: int, percent: float, *, ranks: int = 8, row: int = COMPUTE) -> Percents:
    percents = quiet(steps, ranks)
    for step in range(steps):
        percents[step, row, (3 * step) % ranks] += percent
    return percents


def in_turns(percents: Percents, explained: Collection[Position] = ()) -> AnotherRank | None:
    made = job(percents)
    return changing_work(made, Longest.of(made, NOBODY, explained))


@pytest.mark.parametrize(("row", "cause"), [(COMPUTE, "uneven_work"), (INPUT, "input")])
def test_whoever_is_longest_in_turns_costs_all(row: int, cause: str) -> None:
    found = in_turns(taking_turns(16, 12, row=row))
    assert found is not None
    assert (found.cause, found.positions) == (cause, tuple(range(8)))
    # 12 % on the longest, an eighth of it in the mean.
    assert found.lost_ns == pytest.approx(0.105 * STEP_NS, rel=0.1)
    patterns = [one.cause for one in job_patterns(conclude(job(taking_turns(16, 9, row=row))))]
    assert patterns == [cause]


def test_what_is_one_rank_s_changes_on_nobody() -> None:
    percents = quiet(16, 8)
    percents[:, COMPUTE, 2] += 12
    assert in_turns(percents) is None
    assert in_turns(taking_turns(16, 12), [Position(rank) for rank in range(8)]) is None


def test_little_unevenness_is_ordinary() -> None:
    assert in_turns(taking_turns(16, 3)) is None
    assert in_turns(quiet(16, 8)) is None


@pytest.mark.parametrize(("every", "steps"), [(8, 24), (2, 12), (4, 9)])
def test_steps_that_all_ranks_stall_in_are_told_with_their_distance(every: int, steps: int) -> None:
    work = quiet(steps, 8)
    work[::every, INPUT] += 40
    (moment,) = shared_moments(job(nothing(steps, 8), work=work))
    assert (moment.positions, moment.class_index, moment.hit) == ((), INPUT, tuple(range(0, steps, every)))
    assert moment.every() == every
    assert moment.lost_ns == pytest.approx(0.4 * STEP_NS * len(moment.hit) / steps, rel=0.05)


def test_a_distance_needs_three_steps() -> None:
    assert Moment((), HOST, (2, 5), 1.0).every() is None
    assert Moment((), HOST, (2, 5, 9), 1.0).every() is None
