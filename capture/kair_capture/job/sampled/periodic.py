"""Samples one step in so many without being asked, and more seldom where that would cost too much.

Ranks are compared where they sampled the same steps: all keep to the interval of the one that can afford least.

At no time has a rank's sampling cost more than its share of the time so far, and one window. Steps that it was asked
for count, and go before; so do those of other ranks, for which it waits, as far as a coordinator tells of them.
"""

from collections import deque
from math import ceil, log2
from statistics import median, median_low
from typing import Final

INTERVAL_EVENT: Final = "sampling interval"
"""Name of the event that tells the agent how many steps there are from one to the next."""
_REMEMBERED: Final = 16
_COSTS: Final = 5
_EASIER: Final = 0.8
"""So much of the budget a shorter interval must leave unused: one on the edge would come and go."""


class Periodic:
    """Of one rank; it waits for no other, which may be dead.

    Intervals are `every` times a power of two: until ranks hear of each other's, the steps of the longer interval are
    among those of the shorter.
    """

    def __init__(self, every: int, share: float) -> None:
        """`every`: at most one step in so many. `share`: of the time, that sampling may take; 1 sets no bound."""
        self.interval = self._every = every
        self._share = share
        self._steps: deque[int] = deque(maxlen=_REMEMBERED)
        self._costs: deque[int] = deque(maxlen=_COSTS)
        self._spent = self._elapsed = 0

    def is_due(self, step: int, job_overhead: float = 0.0, job_interval: int = 0) -> bool:
        """Whether to sample this step.

        `job_overhead`: the share of the time that sampling took on all ranks. `job_interval`: the longest of theirs.
        """
        if step % max(self.interval, job_interval) or not self._share:
            return False
        return self._is_free or (self._spent <= self._share * self._elapsed and job_overhead <= self._share)

    def passed(self, length: int) -> None:
        """A step that was not sampled is over, ns."""
        self._steps.append(length)
        self._elapsed += length

    def spent(self, lengths: list[int], pauses: int, *, is_own: bool) -> None:
        """A window is over: its steps, and how long training stood still for its profiler, ns.

        `is_own`: nobody asked for it, and it came to its end: it tells what the next one will cost.
        """
        usual = median(self._steps) if self._steps else 0.0
        cost = pauses + round(sum(max(length - usual, 0.0) for length in lengths))
        self._spent += cost
        self._elapsed += round(usual * len(lengths))
        if is_own:
            self._costs.append(cost)
            self._space(usual)

    @property
    def overhead(self) -> float:
        """The share of the time that sampling took."""
        return self._spent / self._elapsed if self._elapsed else 0.0

    @property
    def _is_free(self) -> bool:
        return self._share >= 1

    def _space(self, usual: float) -> None:
        if self._is_free or not usual:
            return
        # The first window also sets the profiler up, once and for all.
        fewest = median_low(self._costs) / (self._share * usual)
        needed = self._interval_of(fewest)
        if needed > self.interval or self._interval_of(fewest / _EASIER) < self.interval:
            self.interval = needed

    def _interval_of(self, steps: float) -> int:
        return self._every << ceil(log2(max(steps / self._every, 1.0)))
