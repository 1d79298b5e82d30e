"""Waiting of every pair of ranks, added up over steps."""

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from kair_engine.arrays import Bools, Ints
from kair_engine.ranks import Rank
from kair_engine.results.blame import RankWaiting
from kair_engine.timeline.collectives import Collectives

MOST_PAIRS = 4096
"""Listed one by one, the longest waiting first: every pair of up to 64 ranks."""
_HALF = 32


def _none() -> Ints:
    return np.zeros(0, dtype=np.int64)


@dataclass
class PairWaiting:
    """The waiting of each pair of ranks in ns, in how many collectives; arrays with an entry per pair, in order."""

    pair: Ints = field(default_factory=_none)
    """The rank that was waited for in the upper half, the one that waited in the lower."""
    waited_ns: Ints = field(default_factory=_none)
    times: Ints = field(default_factory=_none)

    def add(self, collectives: Collectives, explained: Ints) -> None:
        """Adds what the members of these instances waited for the one that arrived last."""
        ops = collectives.ops
        counted = np.zeros(len(collectives), dtype=bool)
        counted[explained] = True
        member = np.flatnonzero(counted[collectives.instance] & (collectives.wait_ns > 0))
        rank = ops.ranks[ops.rank[collectives.row]].astype(np.int64)
        awaited = rank[collectives.last][collectives.instance[member]]
        pair = awaited << _HALF | rank[member]
        self._add(pair, collectives.wait_ns[member], np.ones(len(member), dtype=np.int64))

    def merge(self, other: "PairWaiting") -> None:
        """Adds what other steps came to."""
        self._add(other.pair, other.waited_ns, other.times)

    def _add(self, pair: Ints, waited_ns: Ints, times: Ints) -> None:
        pair = np.concatenate((self.pair, pair))
        waited, often = np.concatenate((self.waited_ns, waited_ns)), np.concatenate((self.times, times))
        order = np.argsort(pair, kind="stable")
        starts = np.flatnonzero(np.diff(pair[order], prepend=-1))
        if len(starts):
            self.pair = pair[order][starts]
            self.waited_ns = np.add.reduceat(waited[order], starts)
            self.times = np.add.reduceat(often[order], starts)

    def listed(self, for_ranks: Collection[int] | None = None, by_rank: int | None = None) -> tuple[RankWaiting, ...]:
        """Pairs, the longest waiting first; what is beyond MOST_PAIRS is summed for each rank that was waited for.

        With `for_ranks` only the waiting for these, and that of `by_rank` for anybody.
        """
        awaited, waiter = self.pair >> _HALF, self.pair & ((1 << _HALF) - 1)
        asked = np.ones(len(self.pair), dtype=bool)
        if for_ranks is not None:
            asked = np.isin(awaited, list(for_ranks)) | (waiter == (-1 if by_rank is None else by_rank))
        order = np.flatnonzero(asked)[np.argsort(-self.waited_ns[asked], kind="stable")]
        listed, rest = order[:MOST_PAIRS], order[MOST_PAIRS:]
        pairs = [self._row(Rank(int(waiter[at])), Rank(int(awaited[at])), at) for at in listed]
        others = [self._row(None, Rank(int(rank)), rest[awaited[rest] == rank]) for rank in np.unique(awaited[rest])]
        return (*pairs, *sorted(others, key=lambda row: -row.waited_us))

    def _row(self, waiter: Rank | None, awaited: Rank, at: Ints | Bools) -> RankWaiting:
        return RankWaiting(waiter, awaited, float(self.waited_ns[at].sum()) / 1e3, int(self.times[at].sum()))
