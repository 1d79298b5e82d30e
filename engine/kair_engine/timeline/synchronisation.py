"""Collectives that can be trusted, on one clock."""

from functools import cached_property

import numpy as np

from kair_engine.arrays import NONE, Bools, Ints
from kair_engine.frozen import dataclass
from kair_engine.timeline.clocks import Clocks, align
from kair_engine.timeline.collectives import Collectives, instance_median, match
from kair_engine.trace.operations import COLLECTIVE, RECV, Operations

OVERLAP_TOLERANCE_NS = 50_000
"""Besides the clocks' own residual: kernels' timestamps and launch jitter."""


SAME_EXIT_NS = {True: 200_000, False: 5_000_000}
"""Members of one collective end within this time, on streams (49 µs seen) and on threads (milliseconds with gloo)."""

_NAME = "synchronisation"


@dataclass(frozen=True)
class Synchronisation:
    """One step's trusted collectives and the clocks they imply."""

    collectives: Collectives
    clocks: Clocks

    @cached_property
    def own_ns(self) -> Ints:
        """Each instance's self time: the shortest duration among its members.

        A send on a thread may be over at once, its data buffered: there the transfer begins when both have begun, and
        ends with the receive. That takes the clocks; where both leave together, durations do.
        """
        collectives, ops = self.collectives, self.collectives.ops
        own = collectives.own_ns.copy()
        if not len(own):
            return own
        first = collectives.starts
        edge = (ops.kind[collectives.row[first]] != COLLECTIVE) & ~ops.on_stream[collectives.row[first]]
        for instance in np.flatnonzero(edge).tolist():
            rows = collectives.row[first[instance] : first[instance] + 2]
            begun = ops.start_ns[rows] - self.clocks.offset_ns[ops.rank[rows]]
            receive = int(np.argmax(ops.kind[rows] == RECV))
            ended = ops.end_ns[rows[receive]] - self.clocks.offset_ns[ops.rank[rows[receive]]]
            own[instance] = np.clip(ended - begun.max(), 0, ops.duration_ns[rows[receive]])
        return own

    @cached_property
    def lateness_of_last_ns(self) -> Ints:
        """Per instance, how much later than its members' median arrival the last one came."""
        if not len(self.collectives):
            return np.zeros(0, dtype=np.int64)
        wait = self.collectives.wait_ns.astype(float)
        median = instance_median(self.collectives, wait)[self.collectives.starts]
        return median.astype(np.int64)


def synchronise(ops: Operations) -> Synchronisation:
    """Matches the collectives, aligns the clocks by their ends, and drops what cannot be one collective.

    Nobody leaves before the last one came: members that do not overlap in time were matched wrongly (two
    process groups whose operators carry the same name, say). Twice, since wrong ones disturb the clocks.
    """
    if ops.remembered is None:
        return _synchronised(ops)
    if _NAME not in ops.remembered:
        ops.remembered[_NAME] = _synchronised(ops)
    known: Synchronisation = ops.remembered[_NAME]
    return known


def _synchronised(ops: Operations) -> Synchronisation:
    collectives = match(ops)
    for _ in range(2):
        clocks = align(collectives, len(ops.ranks))
        good = _overlapping(collectives, clocks) & _leaving_together(collectives, clocks)
        if good.all():
            return Synchronisation(collectives, clocks)
        collectives = _only(collectives, good)
    return Synchronisation(collectives, align(collectives, len(ops.ranks)))


def _overlapping(collectives: Collectives, clocks: Clocks) -> Bools:
    """Per instance: do all its members overlap in time, within the clocks' residual?"""
    if not len(collectives):
        return np.zeros(0, dtype=bool)
    ops, row = collectives.ops, collectives.row
    offset = clocks.offset_ns[ops.rank[row]]
    latest_start = np.maximum.reduceat(ops.start_ns[row] - offset, collectives.starts)
    earliest_end = np.minimum.reduceat(ops.end_ns[row] - offset, collectives.starts)
    tolerance = 3 * (clocks.residual_ns or 0) + OVERLAP_TOLERANCE_NS
    # A send may be over before its receive begins.
    point_to_point = ops.kind[row[collectives.starts]] != COLLECTIVE
    return np.asarray((latest_start <= earliest_end + tolerance) | point_to_point)


def _leaving_together(collectives: Collectives, clocks: Clocks) -> Bools:
    """Per instance: False where the process group is unknown and those of its name do not end together.

    That is how several process groups look whose kernels carry one name: their ends differ about as much as their
    starts. Judged by the median over the name, since single ends can be off.
    """
    ops, row = collectives.ops, collectives.row
    result = np.ones(len(collectives), dtype=bool)
    if not len(collectives):
        return result
    offset = clocks.offset_ns[ops.rank[row]]
    ends, starts = ops.end_ns[row] - offset, ops.start_ns[row] - offset
    end_spread = np.maximum.reduceat(ends, collectives.starts) - np.minimum.reduceat(ends, collectives.starts)
    start_spread = np.maximum.reduceat(starts, collectives.starts) - np.minimum.reduceat(starts, collectives.starts)
    first = row[collectives.starts]
    unknown = (ops.group[first] == NONE) & (ops.kind[first] == COLLECTIVE)
    for name in np.unique(ops.name[first[unknown]]):
        of_name = unknown & (ops.name[first] == name)
        apart = float(np.median(end_spread[of_name]))
        limit = SAME_EXIT_NS[bool(ops.on_stream[first[of_name][0]])]
        result[of_name] = apart <= max(limit, 0.5 * float(np.median(start_spread[of_name])))
    return result


def _only(collectives: Collectives, good: Bools) -> Collectives:
    kept = good[collectives.instance]
    renumbered = (np.cumsum(good) - 1)[collectives.instance[kept]]
    dropped = int(np.count_nonzero(~good))
    return Collectives(collectives.ops, collectives.row[kept], renumbered, collectives.rejected + dropped)
