"""How large a fault must be for stage 1's tests to flag its rank: the tests turned round, for many drawn recordings.

Each test asks something of the victim that depends on the other ranks alone: a mean, a number of events. What is asked
is worked out once per drawn recording; the size that meets it is then found for all recordings together.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

import numpy as np

from kair_engine.anomalies import FALSE_ALARM_RATE, PRIOR_RATE, PRIOR_STEPS, SHARES
from kair_engine.arrays import Bools, Floats, Ints
from kair_engine.outlying import FEWEST_DF, SINGLE_SHARE, Peers, deviations
from kair_engine.resampling import counted_mean, cut_of
from kair_engine.stats import beta_binomial_tail, student_t_tail

SMALLEST, LARGEST = 1e-4, 1e2
"""Sizes that are tried, of whatever a fault is measured in."""
_HALVINGS = 14
"""So the size is found to 0.1 %."""


class SizeTest(Protocol):
    """What one test of stage 1 says of the victims, one per drawn recording."""

    def flags(self, size: Floats) -> Bools:
        """Where a fault of that size is flagged; once it is, a larger one is too."""


@dataclass(frozen=True)
class MeanTest:
    """Slow in the mean over steps, in the median step, and in most steps.

    All arrays are (draws × recorded steps) but `needed`, an entry per draw.
    """

    values: Floats
    apart: Floats
    """How far above its peers the victim is in each step."""
    added: Floats
    """What a fault of size 1 adds."""
    counts: Ints
    needed: Floats
    """The mean from which on chance no longer explains it."""
    at_least: float
    in_share: float

    def flags(self, size: Floats) -> Bools:
        """Where the mean, the median step and the number of steps suffice."""
        more = size[:, None] * self.added
        steps = int(self.counts[0].sum())
        apart = self.apart + more
        return np.asarray(
            (counted_mean(self.values + more, self.counts, cut_of(steps)) >= self.needed)
            & (counted_mean(apart, self.counts, (steps - 1) // 2) > self.at_least)
            & ((self.counts * (apart > 0)).sum(axis=1) > self.in_share * steps)
        )


@dataclass(frozen=True)
class EventTest:
    """Large delays that hit one rank more often than its peers. Arrays are (draws × recorded steps) but `needed`."""

    total: Floats
    added: Floats
    counts: Ints
    event: Floats
    """(recorded steps): an excess this large is an event."""
    needed: Ints
    """How many events chance does not explain."""
    at_least: float
    """What the events must cost per step, in the mean."""

    def flags(self, size: Floats) -> Bools:
        """Where the events are enough and cost enough."""
        total = self.total + size[:, None] * self.added
        hits = self.counts * (total > self.event)
        lost = (hits * total).sum(axis=1) / self.counts.sum(axis=1)
        return np.asarray((hits.sum(axis=1) >= self.needed) & (lost > self.at_least))


def smallest_sizes(tests: Sequence[SizeTest], draws: int) -> Floats:
    """The smallest size that a test flags, per draw; infinite where even the largest is not flagged."""

    def flagged(size: Floats) -> Bools:
        return np.any([test.flags(size) for test in tests], axis=0)

    low, high = np.full(draws, SMALLEST), np.full(draws, LARGEST)
    never = ~flagged(high)
    for _ in range(_HALVINGS):
        middle = np.sqrt(low * high)
        found = flagged(middle)
        low, high = np.where(found, low, middle), np.where(found, middle, high)
    return np.where(never, np.inf, high)


def needed_value(peers: Peers, place: int, p_below: float) -> float:
    """How high one rank's value must be for its p (of a single rank) to fall below `p_below`; else infinite.

    t is a straight line in the value of a rank that lies above the median: two points of it are enough.
    """
    if peers.known_df < FEWEST_DF:
        return float("inf")
    reach = float(np.ptp(peers.values)) + peers.prior_ns + 1.0
    high, higher = float(peers.values.max()) + reach, float(peers.values.max()) + 2 * reach
    (t, t_higher), df = zip(*(_of_place(peers, place, value) for value in (high, higher)), strict=True)
    wanted = critical_t(df[0], p_below * SINGLE_SHARE / len(peers.values))
    return high + (wanted - t) * reach / (t_higher - t)


@lru_cache(maxsize=4096)
def critical_t(df: float, p: float) -> float:
    """The t whose tail is `p`."""
    low, high = 0.0, 1.0
    while student_t_tail(high, df) > p and high < 1e12:
        high *= 2
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if student_t_tail(middle, df) > p else (low, middle)
    return high


@lru_cache(maxsize=4096)
def fewest_events(steps: int, others: float, looked_at: float, ranks: int) -> int:
    """The number of events in `steps` that a rank's peers do not explain, with `others` in `looked_at` steps."""
    a = PRIOR_RATE * PRIOR_STEPS + others
    b = (1 - PRIOR_RATE) * PRIOR_STEPS + looked_at - others
    tests = ranks / SHARES["intermittent"]
    low, high = 1, steps + 1
    while high - low > 1:
        middle = (low + high) // 2
        enough = tests * beta_binomial_tail(middle, steps, a, b) < FALSE_ALARM_RATE
        low, high = (low, middle) if enough else (middle, high)
    return high


def _of_place(peers: Peers, place: int, value: float) -> tuple[float, float]:
    values = peers.values.copy()
    values[place] = value
    t, df = deviations(replace(peers, values=values))
    return float(t[place]), float(df[place])
