"""One clock for the job, from what all members of a collective do together: leaving it; else from transfers.

Collectives that can be trusted, on one clock.

When a step began, on each rank's own clock: with the rank itself, or at one moment for the whole job.
"""

from functools import cached_property

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints, dense, present
from kair_engine.frozen import dataclass
from kair_engine.results import StepClock
from kair_engine.stats import median, median_by
from kair_engine.timeline.collectives import (
    Collectives,
    disagreement_ns,
    instance_median,
    match,
    of_unknown_ends,
)
from kair_engine.trace.large_steps import LargeStep, large_steps
from kair_engine.trace.loading import each_step
from kair_engine.trace.model import Trace
from kair_engine.trace.operations import COLLECTIVE, RECV, Operations

_SWEEPS = 500
_SETTLED_NS = 100.0
"""Kernels' own timestamps are no better than this."""
_TOLERANCE_NS = 50_000.0
"""50 µs by which a receive may end before its send began: timestamps, and drift within a step."""


@dataclass(frozen=True)
class Clocks:
    """What to subtract from each rank's times, and how well that works.

    `offset_ns` has one entry per position in the step's ranks. `residual_ns` is the median distance of a
    member's end from its collective's median end after the correction; None without collectives.
    """

    offset_ns: Floats
    residual_ns: float | None


def align(collectives: Collectives, ranks: int) -> Clocks:
    """Offset of a clock: the median over collectives of (its ranks' end − the collective's median end), per process
    group.

    Process groups that share clocks are fitted to one another: within one, an offset shows only against the others
    in it. Of a pair each would take half of the other's. What no collective connects, transfers do: see `_connected`.
    """
    clock = _clocks_of(collectives.ops, ranks)
    offset = np.zeros(ranks)
    if not len(collectives):
        return Clocks(offset, None)
    together = _leaves_together(collectives)
    if not together.any():
        return Clocks(_connected(collectives, offset, clock), None)
    if (clock != clock[0]).any():
        member = clock[collectives.ops.rank[collectives.row]]
        difference = disagreement_ns(collectives, offset)
        community = collectives.community[collectives.instance]
        pair = dense(np.stack((community, member)))[together]
        _, first = np.unique(pair, return_index=True)
        seen = median_by(pair, difference[together])[first]
        of_community, of_clock = community[together][first], member[together][first]
        clocks = int(clock.max()) + 1
        offset = _fit(of_community, of_clock, seen, clocks)[clock]
        offset = _connected(collectives, offset, _joined_by(of_community, of_clock, clocks)[clock])
    return Clocks(offset, float(np.median(np.abs(disagreement_ns(collectives, offset)[together]))))


def _clocks_of(ops: Operations, ranks: int) -> Ints:
    """Per position a number of its clock, counted from 0."""
    return np.arange(ranks) if ops.clock is None else dense(ops.clock[None])


def _leaves_together(collectives: Collectives) -> Bools:
    """Per member: is it of a true collective, whose members leave at one time?

    A send may end long before its receive. Of transfers that run as one kernel the recording may not have the ends:
    clocks that were fitted to them would prove any match of theirs.
    """
    rows = collectives.row
    return np.asarray((collectives.ops.kind[rows] == COLLECTIVE) & ~of_unknown_ends(collectives.ops, rows))


def _fit(community: Ints, rank: Ints, seen: Floats, ranks: int) -> Floats:
    """Offsets o with seen ≈ o[rank] − shift[community], least squares by alternating means; o has median 0.

    `rank` and `ranks` are of clocks: those that no collective sees stay at 0.
    """
    offset, shift = np.zeros(ranks), np.zeros(int(community.max()) + 1)
    in_rank = np.maximum(np.bincount(rank, minlength=ranks), 1)
    in_community = np.maximum(np.bincount(community), 1)
    for _ in range(_SWEEPS):
        before = offset
        offset = np.bincount(rank, weights=seen + shift[community], minlength=ranks) / in_rank
        shift = np.bincount(community, weights=offset[rank] - seen) / in_community
        if np.abs(offset - before).max() < _SETTLED_NS:
            break
    known = present(rank)
    offset[known] -= median(offset[known])
    return offset


def _joined_by(community: Ints, rank: Ints, ranks: int) -> Ints:
    """Per rank a number, equal for those that collectives connect, directly or over others."""
    part = np.arange(ranks)
    while True:
        lowest = np.full(int(community.max()) + 1, ranks)
        np.minimum.at(lowest, community, part[rank])
        joined = part.copy()
        np.minimum.at(joined, rank, lowest[community])
        joined = joined[joined]
        if (joined == part).all():
            return part
        part = joined


def _connected(collectives: Collectives, offset: Floats, part: Ints) -> Floats:
    """Return the offsets with those parts of the job on one clock that only transfers connect: no receive ends before
    its send began.

    That bounds by how much one part's clock is ahead of another's, from both sides where they send both ways. A clock
    within the bounds is believed; else it is in their middle, as NTP has it.
    """
    ops, first = collectives.ops, collectives.starts
    transfers = first[ops.kind[collectives.row[first]] != COLLECTIVE]
    if not len(transfers) or (part == part[0]).all():
        return offset
    rows = collectives.row[transfers[:, None] + np.arange(2)]
    rows = np.where((ops.kind[rows[:, :1]] == RECV), rows[:, ::-1], rows)
    (sender, receiver), (sent, received) = ops.rank[rows].T, rows.T
    at_most = ops.end_ns[received] - offset[receiver] - ops.start_ns[sent] + offset[sender]
    bounds: dict[tuple[int, int], float] = {}
    links = zip(part[sender].tolist(), part[receiver].tolist(), at_most.tolist(), strict=True)
    for one, other, most in links:
        if one != other:
            bounds[one, other] = min(most, bounds.get((one, other), np.inf))
    ahead = _along(bounds, part)
    return np.asarray(offset + [ahead.get(one, 0.0) for one in part.tolist()])


def _along(bounds: dict[tuple[int, int], float], part: Ints) -> dict[int, float]:
    """Per part how much its clock is ahead, from the largest part on along the transfers between them."""
    beside: dict[int, list[int]] = {}
    for one, other in bounds:
        beside.setdefault(one, []).append(other)
        beside.setdefault(other, []).append(one)
    numbers, sizes = np.unique(part, return_counts=True)
    ahead: dict[int, float] = {}
    for root in numbers[np.argsort(-sizes, kind="stable")].tolist():
        waiting = [root] if root in beside and root not in ahead else []
        for one in waiting:
            ahead.setdefault(one, 0.0)
            for other in beside[one]:
                if other not in ahead:
                    ahead[other] = ahead[one] + _ahead(
                        -bounds.get((other, one), np.inf), bounds.get((one, other), np.inf)
                    )
                    waiting.append(other)
    return ahead


def _ahead(least: float, most: float) -> float:
    """0 where that is within the bounds, else their middle, or the one that is known."""
    if least - _TOLERANCE_NS <= 0 <= most + _TOLERANCE_NS:
        return 0.0
    return (least + most) / 2 if np.isfinite(least + most) else least if np.isfinite(least) else most


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
    """Match the collectives, align the clocks by their ends, and drop what cannot be one collective.

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
    starts. Judged by the median over the name (on streams: of a stream), since single ends can be off. Transfers whose
    ends are unknown are judged one by one.
    """
    ops, row = collectives.ops, collectives.row
    result = np.ones(len(collectives), dtype=bool)
    if not len(collectives):
        return result
    offset = clocks.offset_ns[ops.rank[row]]
    end_spread = _spread(ops.end_ns[row] - offset, collectives.starts)
    start_spread = _spread(ops.start_ns[row] - offset, collectives.starts)
    first = row[collectives.starts]
    transfers = of_unknown_ends(ops, first)
    result[transfers] = end_spread[transfers] <= SAME_EXIT_NS[True]
    unknown = np.flatnonzero((ops.group[first] == NONE) & (ops.kind[first] == COLLECTIVE) & ~transfers)
    if not len(unknown):
        return result
    on_stream = ops.on_stream[first[unknown]]
    kind = dense(np.stack((ops.name[first[unknown]], np.where(on_stream, ops.lane_key[first[unknown]], NONE))))
    apart, begun = median_by(kind, end_spread[unknown]), median_by(kind, start_spread[unknown])
    limit = np.where(on_stream, SAME_EXIT_NS[True], SAME_EXIT_NS[False])
    result[unknown] = apart <= np.maximum(limit, 0.5 * begun)
    return result


def _spread(values: Floats, starts: Ints) -> Floats:
    """How far the values of each instance's members lie apart."""
    return np.asarray(np.maximum.reduceat(values, starts) - np.minimum.reduceat(values, starts))


def _only(collectives: Collectives, good: Bools) -> Collectives:
    kept = good[collectives.instance]
    renumbered = (np.cumsum(good) - 1)[collectives.instance[kept]]
    dropped = int(np.count_nonzero(~good))
    return Collectives(collectives.ops, collectives.row[kept], renumbered, collectives.rejected + dropped)


def first_step(trace: Trace) -> Operations:
    """Return the first chosen step; of one that is too large to be held whole, what its ranks meet in."""
    step = trace.select(trace.steps[:1])
    large = bool(large_steps(step))
    return LargeStep.read(trace, trace.steps[0], len)[0].operations() if large else next(each_step(step))


def offsets_ns(trace: Trace, ranks: Ints) -> Ints:
    """Return what to subtract from each rank's times, by the first chosen step: it hardly moves within a
    recording.
    """
    ops = first_step(trace)
    offset = np.zeros(len(ranks), dtype=np.int64)
    aligned = align(match(ops), len(ops.ranks)).offset_ns
    offset[np.searchsorted(ranks, ops.ranks)] = aligned.round().astype(np.int64)
    return offset


def begin_ns(ops: Operations, clock: StepClock) -> Ints:
    """Per rank of the step its begin; of the clock `job` that of the rank that began first, on each one's own clock."""
    if clock == "rank" or not len(ops.ranks):
        return ops.begin_ns
    offset = align(match(ops), len(ops.ranks)).offset_ns.round().astype(np.int64)
    return np.asarray((ops.begin_ns - offset).min() + offset)
