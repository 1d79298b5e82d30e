"""Unites spans of time of several ranks, and tells how much of others they cover."""

import numpy as np

from kair_engine.arrays import Floats, Ints
from kair_engine.frozen import dataclass

BETWEEN_RANKS_NS = 1_000_000_000
"""What is near in time lies far apart if it is of two ranks."""


@dataclass(frozen=True)
class Clock:
    """One axis for all ranks' times, rank after rank; times are of one step."""

    low: int
    span: int

    @classmethod
    def of(cls, *times: Ints) -> "Clock":
        """An axis that has room for these times."""
        known = [of for of in times if len(of)]
        low = min((int(of.min()) for of in known), default=0)
        return cls(low, max((int(of.max()) for of in known), default=0) - low + BETWEEN_RANKS_NS)

    def at(self, rank: Ints, time_ns: Ints) -> Ints:
        """Where a rank's time lies."""
        return np.asarray(rank * self.span + (time_ns - self.low))

    def rank(self, at: Ints) -> Ints:
        """Whose time it is."""
        return np.asarray(at // self.span)


@dataclass(frozen=True)
class Spans:
    """Spans that neither touch nor overlap, in order, on a clock's axis."""

    begin: Ints
    end: Ints

    @classmethod
    def united(cls, begin: Ints, end: Ints) -> "Spans":
        """What at least one of them covers; those without a length count for nothing."""
        begin, end = begin[end > begin], end[end > begin]
        order = np.argsort(begin, kind="stable")
        begin, until = begin[order], np.maximum.accumulate(end[order])
        first = np.flatnonzero(np.concatenate(([True], begin[1:] > until[:-1]))) if len(begin) else order
        last = np.concatenate((first[1:] - 1, [len(begin) - 1])) if len(begin) else order
        return cls(begin[first], until[last])

    @property
    def length_ns(self) -> Ints:
        """Of each."""
        return self.end - self.begin

    def within(self, begin: Ints, end: Ints) -> Ints:
        """How much of each of these the spans cover."""
        return self._before(end) - self._before(begin)

    def by_rank(self, clock: Clock, ranks: int, of: Ints) -> Floats:
        """(ranks): a figure of each span added up."""
        return np.bincount(clock.rank(self.begin), weights=of, minlength=ranks).astype(float)

    def _before(self, at: Ints) -> Ints:
        """What they cover in all until then."""
        if not len(self.begin):
            return np.zeros(len(at), dtype=np.int64)
        total = np.concatenate(([0], np.cumsum(self.length_ns)))
        place = np.searchsorted(self.begin, at, side="right") - 1
        found = np.maximum(place, 0)
        inside = np.minimum(at - self.begin[found], self.length_ns[found])
        return np.where(place < 0, 0, total[found] + inside)
