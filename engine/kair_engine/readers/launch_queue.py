"""Measures how many launches a process may be ahead of its device, and which launch calls waited for that.

A launch is queued for the device. Once the queue is full, a launch call blocks until a place is free: until the kernel
that was launched a queue's depth earlier has ended. So a long call that returns just as something ends on the device,
with as many launches pending as during other such calls, was waiting for the device and is no work of the host.
(Measured on an H100: 1,022 launches on each stream; one free place lets one call go on.)

Also moves overheads into calls: work of the profiler and the driver within a call, such as a launch, blocks its thread.

A launch for which CUPTI requests a buffer, or that loads a kernel's code, takes milliseconds instead of microseconds
(pytorch/kineto#1020), and its thread goes on only afterwards. Kineto records such overheads without their thread;
Nsight Systems records the thread.
"""

from typing import Final

import numpy as np

from kair_engine.arrays import NONE, Bools, Int64s, present
from kair_engine.frozen import dataclass
from kair_engine.trace.model import KairWarning, LaunchQueue, short_warning

LONGER_BY_NS: Final = 20_000
"""A call indicates a full queue only if it exceeds its usual time by this, and is `LONGER` times as long."""
LONGER: Final = 3.0
SHORTEST_NS: Final = 10_000
"""Shorter calls are ignored: behind short kernels calls wait for less than what a full queue can be detected by."""
USUAL: Final = 0.1
"""The quantile of a call's times that counts as usual: nine of ten calls can have waited."""
MOST_USUAL: Final = 3.0
"""Limit of a usual time, in usual times of the commonest call: a function whose calls all wait has no usual time."""
LONGEST_USUAL_NS, OF_EACH_NODE_NS = 20_000, 3_000
"""Longest launch without a wait, plus an allowance per node of a CUDA graph: if all calls are longer, they all wait.
(Measured: 6 to 13 µs, at most 35; graphs 2.4 to 4 µs a node.)"""
RETURNS_NS, EARLIER_NS = 20_000, 1_000
"""A waiting call returns at most this long after the end that made room, or, by rounding, this little before it."""
LOOKED_AT: Final = 1 << 18
"""Number of calls from which usual times are taken."""
FEWEST: Final = 3
"""Long calls that determine a depth."""
MOST: Final = 0.5
"""Share of the long calls' time that must be in calls that meet the same queue and return as something ends."""
AS_FULL: Final = 0.8
"""Share of the depth that must be pending while a long call waits. Some kernels take more than one place."""


@dataclass(frozen=True)
class QueueWaits:
    """A process' launch queue, and the launches that waited in it."""

    queue: LaunchQueue
    ids: Int64s
    """The numbers of their calls, in order."""
    waited_ns: Int64s
    """The wait of each."""


@dataclass(frozen=True)
class Work:
    """Operations on a process' devices: arrays with one entry per operation."""

    launch: Int64s
    """The number of the call that launched it, or NONE."""
    stream: Int64s
    over_ns: Int64s
    earlier: Bools
    """Whether it was launched before the recording began."""


class Calls:
    """The calls of a process' runtime: a sample of durations, and those that may have waited."""

    def __init__(self) -> None:
        self._seen: list[tuple[Int64s, Int64s]] = []
        self._long: list[tuple[Int64s, ...]] = []
        self._room = LOOKED_AT

    def see(self, ids: Int64s, name: Int64s, begin_ns: Int64s, duration_ns: Int64s) -> None:
        """Add calls, by their numbers and their functions as small numbers."""
        self._seen.append((name[: self._room].copy(), duration_ns[: self._room].copy()))
        self._room -= len(self._seen[-1][0])
        long = np.flatnonzero(duration_ns > SHORTEST_NS)
        self._long.append((ids[long], name[long], begin_ns[long], duration_ns[long]))

    def long(self, ids: Int64s, nodes: Int64s) -> tuple[Int64s, "LongCalls"]:
        """Return (numbers, calls) of those that may have waited, among the calls with these numbers.

        `nodes` is the number of operations that each launched.
        """
        if not self._seen:
            return np.zeros(0, np.int64), LongCalls(*(np.zeros(0, np.int64),) * 4)
        names, lasted = map(np.concatenate, zip(*self._seen, strict=True))
        usual = usual_ns(names.astype(np.int64), lasted)
        number, name, begin, duration = map(np.concatenate, zip(*self._long, strict=True))
        usually = usual[np.minimum(name, len(usual) - 1)]
        at, known = found_ids(ids, number)
        if len(nodes):
            usually = np.minimum(usually, LONGEST_USUAL_NS + OF_EACH_NODE_NS * (nodes[at] - 1))
        kept = np.flatnonzero(known & (duration > usually))
        return number[kept], LongCalls(at[kept], begin[kept], duration[kept], usually[kept])


def queue_of(calls: Calls, ids: Int64s, work: Work) -> QueueWaits | None:
    """Return the launch queue of a process whose calls have these numbers, in order; None if none was full."""
    at, known = found_ids(ids, work.launch)
    launching = present(at[known])
    place = np.searchsorted(launching, at[known])
    long_ids, long = calls.long(ids[launching], np.bincount(place))
    last, stream = np.full(len(launching), NONE), np.zeros(len(launching), np.int64)
    np.maximum.at(last, place, work.over_ns[known])
    stream[place] = work.stream[known]
    before = np.flatnonzero(work.earlier)
    # All operations of one call, such as those of a CUDA graph, have its number.
    before = before[np.lexsort((work.over_ns[before], work.launch[before]))]
    alone = np.diff(work.launch[before], append=NONE - 1) != 0
    before = before[alone | (work.launch[before] < 0)]
    found = waits_for_place(Launched(last, stream, work.over_ns[before], work.stream[before]), long)
    if found is None:
        return None
    queue, waited = found
    waiting = np.flatnonzero(waited)
    waiting = waiting[np.argsort(long_ids[waiting], kind="stable")]
    return QueueWaits(queue, long_ids[waiting], waited[waiting])


def are_earlier(launch: Int64s, stream: Int64s, start_ns: Int64s, launched: Bools) -> Bools:
    """Return which device operations were launched before the recording began.

    Launches are numbered in order: these have smaller numbers than any recorded launch, and run before all recorded
    ones of their stream. `launched` are those whose call was recorded.
    """
    if not launched.any():
        return np.zeros(len(launch), dtype=bool)
    first = np.full(int(stream.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, stream[launched], start_ns[launched])
    smallest = int(launch[launched & (launch >= 0)].min(initial=np.iinfo(np.int64).max))
    known = (first[stream] < np.iinfo(np.int64).max) & (launch >= 0)
    return np.asarray(~launched & known & (launch < smallest) & (start_ns < first[stream]))


def launched_before(name: str, count: int) -> KairWarning:
    """Return the warning that `count` operations of a file belong to steps that it does not hold."""
    were = "1 operation was" if count == 1 else f"{count:,} operations were"
    text = f"{were} launched before the recording of {name} began, and left out"
    return short_warning("launched_before", text)


def found_ids(ids: Int64s, wanted: Int64s) -> tuple[Int64s, Bools]:
    """Return the position of each wanted number among the sorted ones, and whether it exists."""
    if not len(ids):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), np.bool_)
    at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    return at, (ids[at] == wanted) & (wanted >= 0)


@dataclass(frozen=True)
class Launched:
    """Launched operations in the order of their launch calls."""

    over_ns: Int64s
    """Per call, the end of its last operation."""
    stream: Int64s
    """The stream of that operation, as a small number."""
    earlier_ns: Int64s
    """Ends of operations that were launched before the recording began, in order."""
    earlier_stream: Int64s


@dataclass(frozen=True)
class LongCalls:
    """Launch calls that are longer than usual."""

    place: Int64s
    """Index among all launch calls."""
    begin_ns: Int64s
    duration_ns: Int64s
    usual_ns: Int64s
    """Time that such a call takes without waiting."""


def usual_ns(name: Int64s, duration_ns: Int64s) -> Int64s:
    """Return per function (a small number) the time of a call that does not wait.

    `name` and `duration_ns` are of a sample of calls of one process. A function without a call gets the time of the
    commonest one, as does the extra last entry, which stands for all names beyond.
    """
    often = np.append(np.bincount(name), 0)
    usual = np.zeros(len(often), dtype=np.int64)
    for at in np.flatnonzero(often).tolist():
        usual[at] = np.sort(duration_ns[name == at])[int(USUAL * (often[at] - 1))]
    commonest = int(usual[int(np.argmax(often))])
    usual[often == 0] = commonest
    return np.minimum(usual, MOST_USUAL * commonest).astype(np.int64)


def is_long(duration_ns: Int64s, usual: Int64s) -> Bools:
    """Return which calls are so long that they may have waited in the queue."""
    return np.asarray((duration_ns > usual + LONGER_BY_NS) & (duration_ns > LONGER * usual))


def waits_for_place(of: Launched, long: LongCalls) -> tuple[LaunchQueue, Int64s] | None:
    """Return (the queue, how long each of the long calls waited in it, ns).

    None if no queue was full: then long calls have other reasons. It is not recorded whether the launches of a process
    share one queue or each stream has its own: the variant that explains more is used.
    """
    candidates = is_long(long.duration_ns, long.usual_ns)
    if np.count_nonzero(candidates) < FEWEST:
        return None
    found = [(per_stream, *_under_way(of, long, per_stream=per_stream)) for per_stream in (True, False)]
    variants = [(*_depth(of, long, under_way, candidates), *one) for one in found for under_way in (one[2],)]
    explained, depth, _, per_stream, before, under_way = max(variants, key=lambda one: (round(one[0], 1), one[2]))
    if explained < MOST:
        return None
    # It is not recorded what fills the queue during the first calls. Other calls wait only if it is full to the last
    # place, give or take one or two for clock errors.
    full = (under_way >= AS_FULL * (depth - 1)) & _as_something_ends(of, long.begin_ns + long.duration_ns)
    waited = (candidates & (full | (before < depth))) | (under_way >= depth - 2)
    return LaunchQueue(depth, per_stream), np.where(waited, long.duration_ns - long.usual_ns, 0)


def _under_way(of: Launched, long: LongCalls, *, per_stream: bool) -> tuple[Int64s, Int64s]:
    """Return per long call the number of recorded launches before it in its queue, and how many of them were still
    pending when it returned.

    Places become free in the order of the launches: an operation that ran on another stream keeps its place until all
    earlier ones are over, for example behind a collective that waits for other ranks. Then several become free at once,
    of which the call took the first; the others count as pending.
    """
    before, under_way = np.zeros((2, len(long.place)), dtype=np.int64)
    returned = long.begin_ns + long.duration_ns + EARLIER_NS
    of_long = of.stream[long.place]
    for stream in present(of_long).tolist() if per_stream else (NONE,):
        calls = np.flatnonzero((of_long == stream) | (stream == NONE))
        own, earlier = (
            np.flatnonzero((streams == stream) | (stream == NONE)) for streams in (of.stream, of.earlier_stream)
        )
        free = np.maximum.accumulate(np.concatenate((of.earlier_ns[earlier], of.over_ns[own])))
        before[calls] = len(earlier) + np.searchsorted(own, long.place[calls])
        latest = np.searchsorted(free, returned[calls], side="right") - 1
        first = np.searchsorted(free, free[np.maximum(latest, 0)], side="left")
        under_way[calls] = before[calls] - np.where(latest < 0, 0, first + 1)
    return before, under_way


def _depth(of: Launched, long: LongCalls, under_way: Int64s, candidates: Bools) -> tuple[float, int, float]:
    """Return (share of the candidate calls that meet a full queue, its depth, share that agree on it exactly).

    Shares are of the calls' time beyond the usual. (0, NONE, 0) if they meet none.
    """
    under_way, returned = under_way[candidates], (long.begin_ns + long.duration_ns)[candidates]
    lasted = (long.duration_ns - long.usual_ns)[candidates].astype(float)
    fullest = int(under_way.max())
    if fullest < 1:
        return 0.0, NONE, 0.0
    usual = int(np.bincount(np.maximum(under_way, 0), weights=lasted).argmax())
    full = (under_way >= AS_FULL * usual) & _as_something_ends(of, returned)
    if usual < AS_FULL * fullest or np.count_nonzero(full) < FEWEST:
        return 0.0, NONE, 0.0
    total = float(lasted.sum())
    return float(lasted[full].sum()) / total, usual + 1, float(lasted[full & (under_way == usual)].sum()) / total


def _as_something_ends(of: Launched, returned_ns: Int64s) -> Bools:
    """Return which calls return right after the end of a device operation."""
    over = np.sort(np.concatenate((of.over_ns, of.earlier_ns)))
    at = np.searchsorted(over, returned_ns + EARLIER_NS, side="right") - 1
    return np.asarray((at >= 0) & (returned_ns - over[np.maximum(at, 0)] <= RETURNS_NS))


MOST_WITHIN: Final = 8
"""A call with more overheads than this waits for something else."""
MAKE_UP: Final = 0.5
"""A call of which overheads are a smaller share than this waits for something else, too."""


def before_their_calls(
    overheads: Int64s, is_call: Bools, thread: Int64s, start: Int64s, duration: Int64s, *, threads_known: bool
) -> tuple[Int64s, Int64s, Int64s]:
    """Return (thread, start, duration) of rows, ns, with overheads moved to the thread of the call that contains them.

    That is the shortest call that contains them whole, of their own thread if `threads_known`. Calls that wait anyway,
    such as synchronisations, must be left out of `is_call`. The call itself, and those around it on its thread, then
    begin when the overheads end. Overheads outside all calls stay as they are.
    """
    if not len(overheads):
        return thread, start, duration
    end = start + duration
    overhead, call = _held(overheads, is_call, thread if threads_known else None, start, end)
    # Of several calls around one, the shortest is written last.
    order = np.argsort(-duration[call], kind="stable")
    overhead, call = overhead[order], call[order]
    moved, begins = thread.copy(), start.copy()
    moved[overhead] = thread[call]
    on_it = thread[call] == moved[overhead]
    np.maximum.at(begins, call[on_it], end[overhead[on_it]])
    return moved, begins, end - begins


def _held(
    overheads: Int64s, is_call: Bools, thread: Int64s | None, start: Int64s, end: Int64s
) -> tuple[Int64s, Int64s]:
    """Return pairs (overhead, call that contains it and does little else), of the same thread if threads are given."""
    overheads = overheads[np.argsort(start[overheads], kind="stable")]
    calls = np.flatnonzero(is_call)
    first = np.searchsorted(start[overheads], start[calls], side="left")
    count = np.searchsorted(start[overheads], end[calls], side="right") - first
    some = np.flatnonzero((count > 0) & (count <= MOST_WITHIN))
    call = np.repeat(calls[some], count[some])
    nth = np.arange(len(call)) - np.repeat(np.cumsum(count[some]) - count[some], count[some])
    overhead = overheads[np.repeat(first[some], count[some]) + nth]
    holds = end[call] >= end[overhead]
    if thread is not None:
        holds &= thread[call] == thread[overhead]
    overhead, call = overhead[holds], call[holds]
    within = np.zeros(len(start))
    np.add.at(within, call, end[overhead] - start[overhead])
    held_up = within[call] >= MAKE_UP * (end[call] - start[call])
    return overhead[held_up], call[held_up]
