"""Unites spans of time of several ranks, and returns how much of others they cover."""

from typing import Final

import numpy as np

from kair_engine.arrays import NONE, Floats, Ints
from kair_engine.frozen import dataclass
from kair_engine.trace.operations import Operations

BETWEEN_RANKS_NS: Final = 1_000_000_000
"""What is near in time lies far apart if it is of two ranks."""
_AXIS: Final = 1 << 62
_NEVER: Final = 1 << 62


@dataclass(frozen=True)
class Clock:
    """One axis for all ranks' times, rank after rank; times are of one step."""

    low: Ints
    """(ranks): each one's earliest time. One rank's clock may be decades off another's."""
    length: Ints
    """(ranks): from it to the latest."""
    begin: Ints
    """(ranks): where on the axis its times begin."""

    @classmethod
    def of(cls, ops: Operations) -> "Clock":
        """Return an axis that has room for the operations; times that no axis has room for lie at their rank's end."""
        ranks = len(ops.ranks)
        low, high = np.full(ranks, _NEVER), np.full(ranks, -_NEVER)
        if len(ops):
            first = np.flatnonzero(np.diff(ops.rank, prepend=NONE))
            np.minimum.at(low, ops.rank[first], np.minimum.reduceat(ops.start_ns, first))
            np.maximum.at(high, ops.rank[first], np.maximum.reduceat(ops.end_ns, first))
        length = np.clip(high - low, 0, _AXIS // max(ranks, 1) - BETWEEN_RANKS_NS)
        ends = np.cumsum(length + BETWEEN_RANKS_NS)
        return cls(low, length, ends - length - BETWEEN_RANKS_NS)

    def at(self, rank: Ints, time_ns: Ints) -> Ints:
        """Where a rank's time lies."""
        return np.asarray(self.begin[rank] + np.clip(time_ns - self.low[rank], 0, self.length[rank]))

    def rank(self, at: Ints) -> Ints:
        """Whose time it is."""
        return np.asarray(np.searchsorted(self.begin, at, side="right") - 1)


@dataclass(frozen=True)
class Spans:
    """Spans that neither touch nor overlap, in order, on a clock's axis."""

    begin: Ints
    end: Ints

    @classmethod
    def united(cls, begin: Ints, end: Ints) -> "Spans":
        """Return what at least one of them covers; those without a length count for nothing."""
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
        """Return what they cover in all until then."""
        if not len(self.begin):
            return np.zeros(len(at), dtype=np.int64)
        total = np.concatenate(([0], np.cumsum(self.length_ns)))
        place = np.searchsorted(self.begin, at, side="right") - 1
        found = np.maximum(place, 0)
        inside = np.minimum(at - self.begin[found], self.length_ns[found])
        return np.where(place < 0, 0, total[found] + inside)
