"""Measures how many launches a process may be ahead of its device, and which launch calls waited for that.

A launch is queued for the device. Once the queue is full a launch call lasts until there is a place: until the kernel
that was launched a queue's depth before it has ended. So a long call that returns as something ends on the device, with
as many launches under way as other such calls meet, was a wait for the device, and no work of the host. (Measured on an
H100: 1,022 launches on each stream, and one place that becomes free lets one call go on.)

What the profiler and the driver do within a call, as a launch: it holds up the thread that calls.

A launch that makes CUPTI ask for a buffer, or that loads a kernel's code, takes milliseconds instead of microseconds
(pytorch/kineto#1020). The thread that launches goes on when that is done. Kineto records it beside all threads, and not
whose it is; Nsight Systems with its thread.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from kair_engine.arrays import NONE, Bools, Ints, present
from kair_engine.frozen import dataclass
from kair_engine.trace.model import KairWarning, LaunchQueue, short_warning

LONGER_BY_NS: Final = 20_000
"""Than its usual time a call must last longer, and `LONGER` times as long, to tell of a full queue."""
LONGER: Final = 3.0
SHORTEST_NS: Final = 10_000
"""No shorter call is looked at: behind short kernels calls wait for less than a full queue is told by."""
USUAL: Final = 0.1
"""The quantile of a call's times that is usual: nine of ten calls can have waited."""
MOST_USUAL: Final = 3.0
"""Times the usual time of the commonest call: what waits in every call shows no usual time of its own."""
LONGEST_USUAL_NS, OF_EACH_NODE_NS = 20_000, 3_000
"""No launch takes longer that waits for nothing, of a CUDA graph by so much for each of its nodes: where all calls do,
they all wait. (Measured: 6 to 13 µs, at most 35; graphs 2.4 to 4 µs a node.)"""
RETURNS_NS, EARLIER_NS = 20_000, 1_000
"""A waiting call returns at most so long after the end that made room, and by clocks' rounding so little before it."""
LOOKED_AT: Final = 1 << 18
"""Calls that tell what a call usually takes."""
FEWEST: Final = 3
"""Long calls that a depth is told by."""
MOST: Final = 0.5
"""Of the time that long calls take: so much must be of those that meet the same queue, and return as something ends."""
AS_FULL: Final = 0.8
"""Of the depth: so many launches are under way where a long call waits. Some kernels take more than one place."""


@dataclass(frozen=True)
class QueueWaits:
    """A process' launch queue, and which launches waited for a place in it."""

    queue: LaunchQueue
    ids: Ints
    """The numbers of their calls, in order."""
    waited_ns: Ints
    """How long each waited."""


@dataclass(frozen=True)
class Work:
    """What a process' devices ran: arrays with one entry per operation."""

    launch: Ints
    """The number of the call that launched it, or NONE."""
    stream: Ints
    over_ns: Ints
    earlier: Bools
    """Whether it was launched before the recording began."""


class Calls:
    """The calls of a process' runtime: what some of them take, and those that may have waited."""

    def __init__(self) -> None:
        self._seen: list[tuple[Ints, Ints]] = []
        self._long: list[tuple[Ints, ...]] = []
        self._room = LOOKED_AT

    def see(self, ids: Ints, name: Ints, begin_ns: Ints, duration_ns: Ints) -> None:
        """Take in some, by their numbers and the functions that were called, as small numbers."""
        self._seen.append((name[: self._room].copy(), duration_ns[: self._room].copy()))
        self._room -= len(self._seen[-1][0])
        long = np.flatnonzero(duration_ns > SHORTEST_NS)
        self._long.append((ids[long], name[long], begin_ns[long], duration_ns[long]))

    def long(self, ids: Ints, nodes: Ints) -> tuple[Ints, "LongCalls"]:
        """Return (the numbers of those that may have waited, those), among the calls with these numbers.

        `nodes` is how many operations each launched.
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


def queue_of(calls: Calls, ids: Ints, work: Work) -> QueueWaits | None:
    """Return the launch queue of a process whose calls have these numbers, in order; None where none was full."""
    at, known = found_ids(ids, work.launch)
    launching = present(at[known])
    place = np.searchsorted(launching, at[known])
    long_ids, long = calls.long(ids[launching], np.bincount(place))
    last, stream = np.full(len(launching), NONE), np.zeros(len(launching), np.int64)
    np.maximum.at(last, place, work.over_ns[known])
    stream[place] = work.stream[known]
    before = np.flatnonzero(work.earlier)
    # What one call launched has its number, of all of a CUDA graph.
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


def are_earlier(launch: Ints, stream: Ints, start_ns: Ints, launched: Bools) -> Bools:
    """Which operations on devices were launched before the recording began.

    Launches are numbered in their order: these have smaller numbers than any that was recorded, and come before all
    such operations of their stream. `launched` are those whose call was recorded.
    """
    if not launched.any():
        return np.zeros(len(launch), dtype=bool)
    first = np.full(int(stream.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, stream[launched], start_ns[launched])
    smallest = int(launch[launched & (launch >= 0)].min(initial=np.iinfo(np.int64).max))
    known = (first[stream] < np.iinfo(np.int64).max) & (launch >= 0)
    return np.asarray(~launched & known & (launch < smallest) & (start_ns < first[stream]))


def launched_before(name: str, count: int) -> KairWarning:
    """Return that so many operations of a file are of steps that it does not hold."""
    were = "1 operation was" if count == 1 else f"{count:,} operations were"
    text = f"{were} launched before the recording of {name} began, and left out"
    return short_warning("launched_before", text)


def found_ids(ids: Ints, wanted: Ints) -> tuple[Ints, Bools]:
    """Where each wanted number is among the sorted ones, and whether it is there."""
    if not len(ids):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), np.bool_)
    at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    return at, (ids[at] == wanted) & (wanted >= 0)


@dataclass(frozen=True)
class Launched:
    """What a process launched, in the order of its launch calls."""

    over_ns: Ints
    """Per call when the last operation that it launched ended."""
    stream: Ints
    """On which that ran, as a small number."""
    earlier_ns: Ints
    """When operations ended that were launched before the recording began, in their order."""
    earlier_stream: Ints


@dataclass(frozen=True)
class LongCalls:
    """Launch calls that lasted longer than such calls usually do."""

    place: Ints
    """Among all launch calls."""
    begin_ns: Ints
    duration_ns: Ints
    usual_ns: Ints
    """What such a call takes when it waits for nothing."""


def usual_ns(name: Ints, duration_ns: Ints) -> Ints:
    """Per name of a function, given as small numbers, what a call of it takes that waits for nothing.

    `name` and `duration_ns` are of some calls, of one process. What no call is of takes what the commonest function
    does, and so do the names after the last: that is one entry more.
    """
    often = np.append(np.bincount(name), 0)
    usual = np.zeros(len(often), dtype=np.int64)
    for at in np.flatnonzero(often).tolist():
        usual[at] = np.sort(duration_ns[name == at])[int(USUAL * (often[at] - 1))]
    commonest = int(usual[int(np.argmax(often))])
    usual[often == 0] = commonest
    return np.minimum(usual, MOST_USUAL * commonest).astype(np.int64)


def is_long(duration_ns: Ints, usual: Ints) -> Bools:
    """Which calls last so long that they may have waited for a place in the queue."""
    return np.asarray((duration_ns > usual + LONGER_BY_NS) & (duration_ns > LONGER * usual))


def waits_for_place(of: Launched, long: LongCalls) -> tuple[LaunchQueue, Ints] | None:
    """Return (the queue, how long each of the long calls waited for a place in it, ns).

    None where no queue was full: calls that last long then do so for reasons of their own. Whether launches of a
    process share one queue or each stream has its own is not recorded: what explains more holds.
    """
    telling = is_long(long.duration_ns, long.usual_ns)
    if np.count_nonzero(telling) < FEWEST:
        return None
    found = [(per_stream, *_under_way(of, long, per_stream=per_stream)) for per_stream in (True, False)]
    told = [(*_depth(of, long, under_way, telling), *one) for one in found for under_way in (one[2],)]
    explained, depth, _, per_stream, before, under_way = max(told, key=lambda one: (round(one[0], 1), one[2]))
    if explained < MOST:
        return None
    # Of the first calls it is not recorded what fills the queue. Calls that tell of none wait only where it is full to
    # the last place, by one or two for clocks.
    full = (under_way >= AS_FULL * (depth - 1)) & _as_something_ends(of, long.begin_ns + long.duration_ns)
    waited = (telling & (full | (before < depth))) | (under_way >= depth - 2)
    return LaunchQueue(depth, per_stream), np.where(waited, long.duration_ns - long.usual_ns, 0)


def _under_way(of: Launched, long: LongCalls, *, per_stream: bool) -> tuple[Ints, Ints]:
    """Per long call how many launches come before it in its queue, as far as recorded; and how many of them still had a
    place when it returned.

    Places become free in the order of the launches: what ran on another stream meanwhile keeps its place until all
    before it is over, as behind a collective that waits for other ranks. Then several become free at once, of which the
    call took the first: the others count.
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


def _depth(of: Launched, long: LongCalls, under_way: Ints, telling: Bools) -> tuple[float, int, float]:
    """Return (the share of the telling calls that meet a full queue, how deep that is, the share that agree on it
    exactly).

    Shares are of the time that the calls take beyond the usual. (0, NONE, 0) where they meet none.
    """
    under_way, returned = under_way[telling], (long.begin_ns + long.duration_ns)[telling]
    lasted = (long.duration_ns - long.usual_ns)[telling].astype(float)
    fullest = int(under_way.max())
    if fullest < 1:
        return 0.0, NONE, 0.0
    usual = int(np.bincount(np.maximum(under_way, 0), weights=lasted).argmax())
    full = (under_way >= AS_FULL * usual) & _as_something_ends(of, returned)
    if usual < AS_FULL * fullest or np.count_nonzero(full) < FEWEST:
        return 0.0, NONE, 0.0
    total = float(lasted.sum())
    return float(lasted[full].sum()) / total, usual + 1, float(lasted[full & (under_way == usual)].sum()) / total


def _as_something_ends(of: Launched, returned_ns: Ints) -> Bools:
    """Which calls return right after an operation on a device was over."""
    over = np.sort(np.concatenate((of.over_ns, of.earlier_ns)))
    at = np.searchsorted(over, returned_ns + EARLIER_NS, side="right") - 1
    return np.asarray((at >= 0) & (returned_ns - over[np.maximum(at, 0)] <= RETURNS_NS))


Int64s = npt.NDArray[np.int64]
MOST_WITHIN: Final = 8
"""A call that holds more overheads than this waits for something else."""
MAKE_UP: Final = 0.5
"""A call of which overheads make up less than this part waits for something else, too."""


def before_their_calls(
    overheads: Int64s, is_call: Bools, thread: Int64s, start: Int64s, duration: Int64s, *, threads_told: bool
) -> tuple[Int64s, Int64s, Int64s]:
    """(thread, start, duration) of rows, ns, with overheads on the thread of the call that they fall into.

    That is the shortest one that holds them whole, of their own thread if that is told. Calls that wait anyway, as
    synchronisations, are to be left out of `is_call`. The call itself, and those around it on its thread, begin when
    they are over. What falls into none stays where it is.
    """
    if not len(overheads):
        return thread, start, duration
    end = start + duration
    overhead, call = _held(overheads, is_call, thread if threads_told else None, start, end)
    # Of several calls that hold one, the shortest is written last.
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
    """Pairs of (an overhead, a call that holds it whole, and does little else), of one thread where these are told."""
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
