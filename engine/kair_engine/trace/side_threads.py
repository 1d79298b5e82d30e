"""Finds threads of a job without devices that nothing waits for, as far as a step shows.

A thread delays the program if the program, or a communicating thread, resumes just as the thread ends something, more
often than by chance: an independent thread also ends something just before some of those times. Checkpoint writers,
loggers and prefetchers run independently. They are on no critical path, and make no rank slow.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from kair_engine.arrays import Bools, Ints
from kair_engine.frozen import dataclass
from kair_engine.stats import binomial_tail

if TYPE_CHECKING:
    from kair_engine.trace.operations import Operations

SHORTEST_WAIT_NS = 500_000
"""Between two operations of a thread; on busy cores, threads pause for less without waiting for anything."""
GOES_ON_NS = 100_000
"""A thread resumes within this time after what it waited for: a wake-up on a busy core takes as long."""
CHANCE = 1e-5
"""Threads delay others if chance would let their ends precede the others' resumptions so often with at most this
probability: a hundred steps of a thousand ranks are tested, and a thread that is waited for may be accused."""
_MAIN, _COMMUNICATES = -1, -2


def side_threads(ops: "Operations", rows: Ints, computing: Ints) -> Bools:
    """Return per operation whether its thread, in a job without devices, is one that nothing waits for.

    `rows` are the operations on threads, `computing` those of them that compute.
    """
    result = np.zeros(len(ops), dtype=bool)
    if not len(ops) or ops.has_device:
        return result
    ruled = ops.communication | (ops.lane == ops.main_lane[ops.rank])
    if np.isin(ops.lane_key[rows], np.unique(ops.lane_key[ruled])).all():
        return result
    computes = np.zeros(len(ops), dtype=bool)
    computes[computing] = True
    threads = [_Thread.of(ops, rows[ops.lane_key[rows] == lane], computes) for lane in np.unique(ops.lane_key[rows])]
    by_sort: dict[int, list[_Thread]] = {_MAIN: [], _COMMUNICATES: []}
    for one in threads:
        by_sort.setdefault(one.sort, []).append(one)
    alone, queue = set(by_sort) - {_MAIN, _COMMUNICATES}, [_MAIN, _COMMUNICATES]
    while queue:  # a thread that delays an awaited one is awaited, too
        waiting = queue.pop()
        held = {sort for sort in alone if _hold_up(by_sort[sort], by_sort[waiting])}
        alone -= held
        queue += held
    for one in threads:
        result[one.rows] = one.sort in alone
    return result


@dataclass(frozen=True)
class _Thread:
    """When a thread of a rank was busy, and when it resumed after a long time without begins or ends."""

    rows: Ints
    rank: int
    sort: int
    """Sort of the thread: the code of its most frequent name, or one of those above."""
    begin_ns: int
    """Begin of the step on its rank."""
    end_ns: int
    begin: Ints
    end: Ints
    quiet_since: Ints
    goes_on: Ints

    @classmethod
    def of(cls, ops: "Operations", rows: Ints, computes: Bools) -> "_Thread":
        """Return the thread whose rows are `rows`."""
        order, rank = rows[np.argsort(ops.start_ns[rows], kind="stable")], int(ops.rank[rows[0]])
        begins = int(ops.begin_ns[rank])
        start, end = ops.start_ns[order], ops.end_ns[order]
        moments = np.unique(np.concatenate(([begins], start, end)))
        long = np.flatnonzero(np.diff(moments) >= SHORTEST_WAIT_NS)
        quiet_since, goes_on = moments[long], moments[long + 1]
        # Within an operation that computes, a thread waits for nothing.
        computing = order[computes[order]]
        if len(computing):
            since, until = _outermost(ops.start_ns[computing], ops.end_ns[computing], apart_ns=0)
            at = np.searchsorted(since, quiet_since, side="right") - 1
            waits = (at < 0) | (goes_on > until[np.maximum(at, 0)])
            quiet_since, goes_on = quiet_since[waits], goes_on[waits]
        if ops.lane[rows[0]] == ops.main_lane[rank]:
            sort = _MAIN
        else:
            sort = _COMMUNICATES if ops.communication[rows].any() else int(np.bincount(ops.name[rows]).argmax())
        spans = _outermost(start, end, apart_ns=0)
        return cls(rows, rank, sort, begins, begins + int(ops.length_ns[rank]), *spans, quiet_since, goes_on)

    def busy_by(self, time: Ints) -> Ints:
        """Return how long the thread had been busy by each time."""
        length = self.end - self.begin
        at = np.searchsorted(self.begin, time, side="right") - 1
        found = np.maximum(at, 0)
        reached = np.minimum(time, self.end[found]) - self.begin[found]
        return np.where(at < 0, 0, (np.cumsum(length) - length)[found] + reached)


def _outermost(begin: Ints, end: Ints, apart_ns: int) -> tuple[Ints, Ints]:
    """Join spans, ordered by begin, that overlap or are at most `apart_ns` apart."""
    reach = np.maximum.accumulate(end)
    opens = np.concatenate(([True], begin[1:] > reach[:-1] + apart_ns))
    return begin[opens], reach[np.concatenate((opens[1:], [True]))]


def _hold_up(threads: Sequence[_Thread], waiting: Sequence[_Thread]) -> bool:
    """Return whether threads delay those of another sort on their ranks, mostly and more often than by chance.

    Tested for all of their ends, and for the ends of longer stretches: work of successive calls is handed over as one.
    """
    of_rank: dict[int, list[_Thread]] = {}
    for other in waiting:
        of_rank.setdefault(other.rank, []).append(other)
    pairs = [(one, other) for one in threads for other in of_rank.get(one.rank, ())]
    for apart_ns in (0, GOES_ON_NS):
        tried = [found for one, other in pairs for found in _tried(one, other, apart_ns)]
        hits, times = (sum(of[at] for of in tried) for at in (0, 1))
        by_chance = sum(times * chance for _, times, chance in tried) / max(times, 1)
        if hits and 2 * hits >= times and binomial_tail(int(hits), int(times), by_chance) < CHANCE:
            return True
    return False


def _tried(one: _Thread, other: _Thread, apart_ns: int) -> Iterator[tuple[int, int, float]]:
    """Yield how often `other` resumed after an end of `one`, out of how many times, and how often by chance.

    Only long quiet times of `other` count in which `one` was mostly busy.
    """
    busy = one.busy_by(other.goes_on) - one.busy_by(other.quiet_since)
    mostly = 2 * busy >= other.goes_on - other.quiet_since
    since, until = other.quiet_since[mostly], other.goes_on[mostly]
    # An operation that ends with the step may continue in the next one.
    end = _outermost(one.begin, one.end, apart_ns)[1]
    end = end[end < one.end_ns - GOES_ON_NS]
    if len(until):
        last = np.concatenate(([one.begin_ns - GOES_ON_NS - 1], end))[np.searchsorted(end, until, side="right")]
        hits = int(np.count_nonzero((until - last <= GOES_ON_NS) & (last > since)))
        yield hits, len(until), min(len(end) * GOES_ON_NS / max(one.end_ns - one.begin_ns, 1), 1.0)
