"""Finds where a series of steps becomes slower within a recording: from which step on, until which, by how much.

Links, roles and whole steps are asked (localize/links.py, localize/since.py): each is compared with its own past, so no
peer is needed. A candidate is a run of steps with steps before it, and none or some after it; the medians of both are
compared on the log scale, so that a rise is a factor. A change has to pass three tests, and has the largest p of two:

    noise     the rise in standard errors of both medians, times the number of candidates
    prior     the rise in what healthy things change by for good: a moderated t (localize/peers.py)
    order     the slow steps lie in one run: steps that are slow now and then lie anywhere (Fisher's exact test)
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints
from kair_engine.frozen import dataclass
from kair_engine.localize.anomalies import FALSE_ALARM_RATE
from kair_engine.localize.noise import autocorrelation, inflation_of
from kair_engine.localize.peers import Spread, moderated, tails
from kair_engine.stats import MAD_TO_SIGMA, columns_sorted, median

FEWEST_EACH_SIDE = 3
"""A change needs this many steps before it, in it, and after it where it ends: the median of three is the smallest
that a single odd step, as the first one is, does not move."""
MOST_CUTS = 12
"""Changes begin and end at this many places at most, at first; then the best one's ends are moved to where they fit."""
MOST_CHANGED = 0.25
"""Of the things that are compared with one another, so many may have changed at one time."""
BY_ORDER = 0.05
"""Slow steps count as one run if steps in random order would form it less often than this, over all candidates. The
usual level suffices, since the test only keeps pauses in single steps out."""
NO_CHANGE = 0.5
"""The chance of what does not rise."""
_MEDIAN_VARIANCE = math.pi / 2
"""The variance of a median of normal values, in variances of their mean."""


@dataclass(frozen=True)
class Change:
    """A run of steps in which something takes longer than in the other ones."""

    begin: int
    """The place of its first step."""
    end: int
    """The place after its last one: the number of steps where it lasts."""
    before: float
    """The median of the other steps, in the values' unit."""
    since: float
    """The median of its steps."""
    p_value: float
    """The chance that a healthy series changes so; corrected for all places that were tried, and for nothing else."""

    @property
    def factor(self) -> float:
        """How many times longer it takes."""
        return self.since / max(self.before, 1e-9)

    def within(self, steps: int) -> Bools:
        """Return which of so many steps are its own."""
        return Candidate(self.begin, self.end).within(steps)


class Candidate(NamedTuple):
    """Steps [begin, end) against the others."""

    begin: int
    end: int

    def within(self, steps: int) -> Bools:
        """Which steps are its own."""
        at = np.arange(steps)
        return (at >= self.begin) & (at < self.end)


def change_points(values: Floats, spread: Spread, *, relative: bool = False) -> list[Change | None]:
    """Per column of (steps × things) its rise that is least likely by chance; None where it never takes longer.

    `values` are times of any unit; `spread` is what healthy things change by for good, as a share. `relative`: what
    all things do together is no change of any; then a thing has to rise by itself as well as above the others.
    """
    steps, things = values.shape
    candidates = _candidates(steps)
    if not candidates or not things:
        return [None] * things
    logs, tests = np.log(np.maximum(values, 1e-9)), len(candidates)
    chances = np.stack([_chances(logs, one.within(steps), spread, tests, relative=relative) for one in candidates])
    best = np.argmin(chances, axis=0)
    return [
        _change(values[:, at], _moved(logs[:, at], candidates[best[at]]), float(chances[best[at], at]))
        if chances[best[at], at] < NO_CHANGE
        else None
        for at in range(things)
    ]


def varying(values: Floats, by: float) -> Ints:
    """Return the columns of (steps × things) that take this share longer in one part of the steps than in another.

    The parts are so short that every change has most of the steps of one.
    """
    parts = np.array_split(values, max(len(values) // FEWEST_EACH_SIDE, 1))
    medians = np.stack([median(part, axis=0) for part in parts])
    return np.flatnonzero(medians.max(axis=0) > (1 + by) * medians.min(axis=0))


def _candidates(steps: int) -> list[Candidate]:
    first, last = FEWEST_EACH_SIDE, steps - FEWEST_EACH_SIDE
    if last < first:
        return []
    cuts = np.unique(np.linspace(first, last, min(MOST_CUTS, last - first + 1)).round().astype(np.int64)).tolist()
    ends = [(begin, end) for begin in cuts for end in (*cuts, steps) if end >= begin + FEWEST_EACH_SIDE]
    return [Candidate(begin, end) for begin, end in ends]


def _chances(logs: Floats, within: Bools, spread: Spread, tests: int, *, relative: bool) -> Floats:
    """Per thing the chance that it rises so between the other steps and these; NO_CHANGE where it does not."""
    inside, outside = logs[within], logs[~within]
    low, high = median(outside, axis=0), median(inside, axis=0)
    rise, left = high - low, logs - np.where(within[:, None], high, low)
    variance = variance_of_median(left) * (len(left) / len(inside) + len(left) / len(outside))

    def by_noise() -> Floats:
        t = rise / np.sqrt(np.maximum(variance, 1e-18))
        return np.asarray(np.minimum(tests * tails(t, max(len(logs) - 2.0, 1.0)), NO_CHANGE))

    # Most show no change even where steps count as independent, which is where a change shows most.
    if (by_noise() >= NO_CHANGE).all():
        return np.full(len(rise), NO_CHANGE)
    variance *= inflation_of(len(left), autocorrelation(left, columns_sorted(left)))
    _, by_prior = against_prior(rise, variance, spread, relative=relative)
    chance, middle = np.maximum(by_prior, by_noise()), (low + high) / 2
    asked = np.flatnonzero(chance < FALSE_ALARM_RATE)
    if not len(asked):
        return chance
    ordered = _chance_of_order(
        (inside > middle)[:, asked].sum(axis=0), (outside > middle)[:, asked].sum(axis=0), within
    )
    chance[asked] = np.where(tests * ordered < BY_ORDER, chance[asked], NO_CHANGE)
    return chance


def against_prior(rise: Floats, variance: Floats, spread: Spread, *, relative: bool) -> tuple[Floats, Floats]:
    """Return per thing its t, and the chance that a healthy one comes to rise so for good.

    `relative`: above none, and above the things that rose least. A quarter of the things, one at least, may have
    changed together: they hide one another in a spread of all. That of the others is too small by what was left out.
    """
    if not relative or len(rise) == 1:
        return moderated(rise, np.zeros(len(rise)), 0, 1.0, variance, spread)
    hidden = max(1, int(len(rise) * MOST_CHANGED))
    calm = np.sort(rise)[: len(rise) - hidden]
    of_calm = float(calm.var(ddof=1)) if len(calm) > 1 else 0.0
    above = np.minimum(rise, rise - calm.mean())
    between = np.maximum(of_calm * (1 + 2 * hidden / len(rise)), variance)
    return moderated(above, between, len(calm) - 1, 1 + 1 / len(calm), variance, spread)


def _chance_of_order(slow_inside: Ints, slow_outside: Ints, within: Bools) -> Floats:
    """Per thing the chance that of its slow steps as many or more lie within, were their order any: hypergeometric."""
    steps, size = len(within), int(within.sum())
    of = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, steps + 1)))))
    slow = slow_inside + slow_outside
    total = of[steps] - of[slow] - of[steps - slow]
    result = np.zeros(len(slow))
    for inside in range(int(slow_inside.min()), size + 1):
        outside = slow - inside
        fits = (inside >= slow_inside) & (outside >= 0) & (outside <= steps - size)
        others = np.clip(outside, 0, steps - size)
        ways = of[size] - of[inside] - of[size - inside] + of[steps - size] - of[others] - of[steps - size - others]
        result += np.where(fits, np.exp(ways - total), 0.0)
    return result


def variance_of_median(left: Floats) -> Floats:
    """Return per thing the variance of the median of its steps, by what they are off it (steps × things).

    By what most steps are off, but no less than by half of what all are: a median of few steps is moved by those that
    are far off. Steps count as independent.
    """
    size = np.abs(left)
    spread = np.maximum(MAD_TO_SIGMA * median(size, axis=0), size.mean(axis=0) / 2)
    return np.asarray(spread**2 * (_MEDIAN_VARIANCE / len(left)))


def _moved(logs: Floats, one: Candidate) -> Candidate:
    """Return the candidate with both ends where two levels fit the series best, by the least sum of distances.

    An end at the last step stays there.
    """
    steps, lasts = len(logs), one.end == len(logs)
    within = one.within(steps)
    low, high = float(median(logs[~within])), float(median(logs[within]))
    # What a step costs within the run beyond what it costs outside: a run's cost is a difference of sums.
    costs = np.concatenate(([0.0], np.cumsum(np.abs(logs - high) - np.abs(logs - low))))
    middle = (one.begin + one.end) // 2
    begins = np.arange(FEWEST_EACH_SIDE, max(middle, FEWEST_EACH_SIDE) + 1)
    begin = int(begins[np.argmax(costs[begins])])
    if lasts:
        return Candidate(min(begin, steps - FEWEST_EACH_SIDE), steps)
    ends = np.arange(max(middle, begin + FEWEST_EACH_SIDE), steps - FEWEST_EACH_SIDE + 1)
    return Candidate(begin, int(ends[np.argmin(costs[ends])])) if len(ends) else one


def _change(values: Floats, one: Candidate, chance: float) -> Change:
    within = one.within(len(values))
    before, since = float(median(values[~within])), float(median(values[within]))
    return Change(one.begin, one.end, before, since, chance)


def same_time(one: Change, other: Change) -> bool:
    """Whether both changes have more than half of the shorter one's steps in common."""
    common = min(one.end, other.end) - max(one.begin, other.begin)
    return 2 * common > min(one.end - one.begin, other.end - other.begin)


def overlapping(changes: Sequence[Change]) -> bool:
    """Whether all of them are of the same time as the first."""
    return all(same_time(changes[0], other) for other in changes[1:])
