"""Chooses the ranks of a large step that are looked at operation by operation, and puts the step together for it."""

from collections.abc import Collection, Mapping

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints
from kair_engine.frozen import dataclass
from kair_engine.localize.excess import JobRoles, StepExcess, step_excess
from kair_engine.localize.rank_times import RankTimes, joined
from kair_engine.timeline.clocks import Clocks, Synchronisation, synchronise
from kair_engine.timeline.collectives import Collectives
from kair_engine.timeline.roles import Role
from kair_engine.trace.large_steps import LargeStep, as_of_some, large_steps
from kair_engine.trace.model import KairWarning, Trace, short_warning
from kair_engine.trace.operations import Operations

_LATE, _SLOW = 0.2, 0.1
"""Of the ranks that are held: the ones most waited for, and those whose own work took longest. The others are peers."""
_FEWEST = 6
"""Of a role."""


@dataclass(frozen=True)
class LargeStepDetail:
    """A large step: all operations of some ranks, of the others what they meet in."""

    sync: Synchronisation
    shown: Bools
    """Per rank of the step, whether its operations are there."""


def excess_and_detail(
    step: LargeStep, times: list[RankTimes], of: JobRoles, always: Collection[int] = ()
) -> tuple[StepExcess, LargeStepDetail]:
    """Return what stage 1 needs of all ranks, and what the walks of stage 3 need of some. Takes the step's meetings
    away.

    The ranks of `always` are among these in any case.
    """
    sync = synchronise(step.operations())
    excess = step_excess(joined(times), sync, of)
    ops = sync.collectives.ops
    own = np.nansum(excess.by_class_ns[:, np.searchsorted(of.ranks, ops.ranks)], axis=0)
    shown = _chosen(sync, own, of.role_in(ops), step.ranks_held) | np.isin(ops.ranks, list(always))
    ranks, matched = ops.ranks[shown].tolist(), _Matched.of(sync)
    # Of millions of rows one table at a time.
    del sync, ops
    return excess, LargeStepDetail(matched.seen_in(step.detail(ranks)), shown)


def with_some_peers(trace: Trace, rank: int, role_of: Mapping[int, Role]) -> tuple[Trace, tuple[KairWarning, ...]]:
    """Return the trace as of a rank and some of its peers, where steps are too large to be held whole; else as it is.

    With a warning where that is not all of them.
    """
    if not large_steps(trace):
        return trace, ()
    peers = [other for other in trace.job.ranks if role_of[other] == role_of[rank]]
    seen = as_of_some(trace, [rank, *np.random.default_rng(0).permutation(peers).tolist()])
    compared = len(seen.job.ranks) - 1
    if compared == len(peers) - 1:
        return seen, ()
    text = f"steps are too large to be held whole: compared with {compared} of its peers"
    return seen, (short_warning("some_peers", text),)


@dataclass(frozen=True)
class _Matched:
    """Collectives and clocks, without the operations that they are of."""

    place: Ints
    """Of every member, among all communication of the step."""
    instance: Ints
    rejected: int
    clocks: Clocks

    @classmethod
    def of(cls, sync: Synchronisation) -> "_Matched":
        known = sync.collectives
        place = np.searchsorted(np.flatnonzero(known.ops.communication), known.row)
        return cls(place, known.instance, known.rejected, sync.clocks)

    def seen_in(self, ops: Operations) -> Synchronisation:
        """Return the same of another table with the same communication in it."""
        row = np.flatnonzero(ops.communication)[self.place]
        return Synchronisation(Collectives(ops, row, self.instance, self.rejected), self.clocks)


def _chosen(sync: Synchronisation, own_ns: Floats, role: Ints, count: int) -> Bools:
    """Return, for every role, the ranks waited for longest, those with most work beyond their peers', and others.

    Late ranks stay a minority among the others, or being late would seem usual.
    """
    ops, collectives = sync.collectives.ops, sync.collectives
    culprit = ops.rank[collectives.row[collectives.last]]
    awaited = np.bincount(culprit, weights=collectives.total_wait_ns, minlength=len(ops.ranks))
    chosen = np.zeros(len(ops.ranks), dtype=bool)
    for code in np.unique(role).tolist():
        members = np.flatnonzero(role == code)
        wanted = min(max(round(count * len(members) / len(role)), _FEWEST), len(members))
        for by, share in ((awaited, _LATE), (own_ns, _SLOW)):
            chosen[members[np.argsort(-by[members], kind="stable")[: max(int(share * wanted), 1)]]] = True
        rest = members[~chosen[members]]
        spread = np.linspace(0, len(rest) - 1, max(wanted - (len(members) - len(rest)), 0))
        chosen[rest[spread.astype(np.int64)]] = True
    return chosen
