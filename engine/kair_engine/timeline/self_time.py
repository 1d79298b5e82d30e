"""Self time of operations: what is their own doing, waiting excluded.

Sums over the calls of each operator on each rank, and how sums of different ranks are put side by side.

The step time that all commands print: what a step takes, and the mean over steps.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints, is_one_of, present
from kair_engine.frozen import dataclass
from kair_engine.timeline.clocks import Synchronisation
from kair_engine.timeline.roles import main_lane_rows
from kair_engine.timeline.spans import Clock, Spans
from kair_engine.trace.model import Trace
from kair_engine.trace.operations import GC, INPUT, PHASE_NAMES, RECV, SCOPE, SEND, Operations, lane_order, latest_ended

RECORDED_LATE_NS = 5_000_000
"""A thread can be seen going on this much before the collective it waited for is recorded as over: another
thread notes that end (with gloo 25 µs later on idle cores, milliseconds on busy ones)."""
RECORDED_LATE_SHARE = 0.1
"""After a long wait the collective may be recorded as over by this part of it later."""
ISSUED_BY = "c10d::"
"""What the names of a thread's operations begin with that hand communication to another thread."""
INPUT_PHASE = PHASE_NAMES.index("input")


def exclusive_ns(ops: Operations) -> Ints:
    """Each host operation's duration without the operations nested in it; a stream's operations whole.

    Scopes and communication take no part: a scope's row gets 0, and nothing is subtracted for it.
    """
    result = np.where(ops.kind == SCOPE, 0, ops.duration_ns)
    child = np.flatnonzero(ops.nesting.parent != NONE)
    parent = ops.nesting.parent[child]
    inside = np.minimum(ops.end_ns[child], ops.end_ns[parent]) - ops.start_ns[child]
    # Operations that cross instead of nesting can be given a parent that was over before they began.
    np.subtract.at(result, parent, np.maximum(inside, 0))
    return np.maximum(result, 0)


def own_ns(ops: Operations, sync: Synchronisation) -> Ints:
    """Self time of every row: exclusive duration; for a matched collective the shortest among its members.

    Rows inside an input fetch count as part of the fetch and get 0, as do scopes, and sends and receives whose
    other end is not recorded: how much of them was waiting is not known. What an operator of a thread waited for
    communication that it issued itself does not count as its self time; nor does a thread that nobody waits for.
    """
    result = unshared_ns(ops)
    result[sync.collectives.row] = sync.own_ns[sync.collectives.instance]
    return result


def unshared_ns(ops: Operations) -> Ints:
    """Return the same from one rank's recording: a collective's is its whole duration, a send's or receive's 0."""
    result = exclusive_ns(ops)
    in_fetch = ops.phase == INPUT_PHASE
    around = np.where(ops.nesting.parent == NONE, False, in_fetch[ops.nesting.parent])
    fetch = (ops.kind == INPUT) & ~around
    result[fetch] = ops.duration_ns[fetch]
    result[in_fetch & ~fetch & (ops.kind != GC)] = 0
    result[is_one_of(ops.kind, (SEND, RECV))] = 0
    # Collecting garbage stops the other threads of a process, whichever thread it is on.
    result[ops.of_side_threads & (ops.kind != GC)] = 0
    result -= _awaited_inside(ops, result)
    return result


def issuing_rows(ops: Operations) -> Ints:
    """Return the program's operations that hand communication to another thread."""
    issues = [code for code, name in ops.name_text.items() if name.startswith(ISSUED_BY)]
    return np.flatnonzero(ops.of_program & np.isin(ops.name, issues))


def _awaited_inside(ops: Operations, own: Ints) -> Ints:
    """Per row, without a device: what its thread waited in it for communication that it issued itself.

    Another thread communicates. Where that is issued and over within one operator, the operator waited for it; what is
    awaited later ends in another one.
    """
    result = np.zeros(len(ops), dtype=np.int64)
    if ops.has_device:
        return result
    rows = issuing_rows(ops)
    over = np.flatnonzero(ops.communication & ~main_lane_rows(ops))
    if not len(rows) or not len(over):
        return result
    low = int(min(ops.start_ns[rows].min(), ops.start_ns[over].min()))
    span = int(max(ops.start_ns[rows].max(), ops.start_ns[over].max())) - low + 1
    key = ops.rank[rows] * span + (ops.start_ns[rows] - low)
    order = np.argsort(key, kind="stable")
    at = np.searchsorted(key[order], ops.rank[over] * span + (ops.start_ns[over] - low), side="right") - 1
    around = np.where(at < 0, NONE, rows[order[np.maximum(at, 0)]])
    around = np.where((around != NONE) & (ops.rank[around] == ops.rank[over]), around, NONE)
    # From the operation that issued it outwards, to the first that was still under way when it ended.
    while (short := (around != NONE) & (ops.end_ns[around] < ops.end_ns[over])).any():
        around[short] = ops.nesting.parent[around[short]]
    known = (around != NONE) & (ops.kind[around] != SCOPE)
    np.add.at(result, around[known], ops.duration_ns[over[known]])
    return np.minimum(result, own)


def host_gap_ns(ops: Operations) -> Ints:
    """How long each operation was held up by its host alone: idle time before it that nothing else explains.

    On a stream: launch − max(end of the stream's previous operation, end of anything on the device by then),
    the launch itself left out, and what the host spent fetching input, collecting garbage or in communication that
    threads time meanwhile; 0 where the launch is unknown or came in time. Without a device: the main
    thread's own gap before a top-level operation, after whatever communication ended inside the gap; and what threads
    spend in calls of a compiler.
    """
    return _stream_gaps(ops) if ops.has_device else _thread_gaps(ops)


def tail_gap_ns(ops: Operations) -> Ints:
    """Return per rank the idle time between its last operation and the step's end: its host's own time.

    Nothing of the step follows it, so no gap before an operation shows it: a loop logs, saves and evaluates there. On a
    device that is after its last operation, without what the main thread fetches or collects meanwhile; without one it
    is the main thread's own.
    """
    step_end, last = ops.begin_ns + ops.length_ns, ops.begin_ns.copy()
    if ops.has_device:
        busy = ops.on_stream & (ops.kind != SCOPE) | _host_timed(ops)
        np.maximum.at(last, ops.rank[busy], np.minimum(ops.end_ns[busy], step_end[ops.rank[busy]]))
        known = np.flatnonzero((last > ops.begin_ns) & (last < step_end))
        return _idle_between(ops, known, last, step_end)
    busy = main_lane_rows(ops) & (ops.kind != SCOPE) | ops.communication
    inside = busy & (ops.end_ns <= step_end[ops.rank]) if len(ops) else busy
    np.maximum.at(last, ops.rank[inside], ops.end_ns[inside])
    return np.asarray(step_end - last)


def _idle_between(ops: Operations, known: Ints, begin: Ints, end: Ints) -> Ints:
    """Return per rank the time from `begin` to `end`, without fetches and collections; 0 for ranks not `known`."""
    result = np.zeros(len(ops.ranks), dtype=np.int64)
    if not len(known):
        return result
    others = np.flatnonzero(((ops.kind == INPUT) & main_lane_rows(ops)) | (ops.kind == GC))
    clock = Clock.of(ops)
    spans = Spans.united(*(clock.at(ops.rank[others], of[others]) for of in (ops.start_ns, ops.end_ns)))
    spent = spans.within(*(clock.at(known, of[known]) for of in (begin, end)))
    result[known] = np.maximum(end[known] - begin[known] - spent, 0)
    return result


def _stream_gaps(ops: Operations) -> Ints:
    gap = np.zeros(len(ops), dtype=np.int64)
    launch = ops.launch
    rows = lane_order(ops.lane_key, ops.start_ns, ops.duration_ns, np.flatnonzero(ops.on_stream))
    available = np.maximum(_previous_end(ops, rows), _latest_end_by(ops, rows, rows))
    known = launch[rows] != NONE
    begun = np.where(known, ops.start_ns[launch[rows]], available)
    begun = np.minimum(begun, ops.start_ns[rows])
    idle = np.flatnonzero(begun > available)
    others = np.flatnonzero(((ops.kind == INPUT) & main_lane_rows(ops)) | (ops.kind == GC) | _host_timed(ops))
    began = under_way_ns(ops, others, rows[idle], available[idle])
    ended = under_way_ns(ops, others, rows[idle], begun[idle])
    gap[rows[idle]] = np.maximum(begun[idle] - available[idle] - (ended - began), 0)
    return gap


def _host_timed(ops: Operations) -> Bools:
    """Return True for communication that threads time, as gloo's: while it is under way no host is late."""
    return np.asarray(ops.communication & ~ops.on_stream)


def under_way_ns(ops: Operations, others: Ints, rows: Ints, until: Ints) -> Ints:
    """Per row, how long at least one of `others` of its rank had been under way by a time."""
    if not len(others) or not len(rows):
        return np.zeros(len(rows), dtype=np.int64)
    low = min(int(ops.start_ns[others].min()), int(until.min()))
    span = max(int(ops.end_ns[others].max()), int(until.max())) - low + 1
    begun = ops.rank[others] * span + (ops.start_ns[others] - low)
    order = np.argsort(begun, kind="stable")
    begun, ended = begun[order], np.maximum.accumulate((begun + ops.duration_ns[others])[order])
    alone = np.r_[True, begun[1:] > ended[:-1]]
    begun, ended = begun[alone], ended[np.r_[alone[1:], True]]
    length = ended - begun
    total = np.cumsum(length) - length
    time = ops.rank[rows] * span + (until - low)
    at = np.searchsorted(begun, time, side="right") - 1
    found = np.maximum(at, 0)
    return np.where(at < 0, 0, total[found] + np.minimum(time - begun[found], length[found]))


def _thread_gaps(ops: Operations) -> Ints:
    gap = np.zeros(len(ops), dtype=np.int64)
    order = ops.nesting.order
    top = order[(ops.nesting.parent[order] == NONE) & main_lane_rows(ops)[order]]
    if len(top):
        free = _previous_end(ops, top)
        available = np.maximum(free, _latest_end_by(ops, top, np.flatnonzero(ops.communication)))
        gap[top] = np.maximum(_waiting_since(ops, top, free) - available, 0)
    compiling = np.flatnonzero(ops.compiling)
    if len(compiling):
        gap[compiling] += unshared_ns(ops)[compiling]
    return gap


def recorded_late_ns(idle_ns: Ints) -> Ints:
    """How much later than a thread that was idle for so long goes on, the collective can be recorded as over."""
    return np.maximum(RECORDED_LATE_NS, (RECORDED_LATE_SHARE * idle_ns).astype(np.int64))


def _waiting_since(ops: Operations, rows: Ints, free: Ints) -> Ints:
    """Per row, from when on its thread waited for communication that is recorded as over just after it; else its start.

    Another thread communicates: it may begin a little later than the thread began to wait, too.
    """
    start = ops.start_ns[rows]
    others = np.flatnonzero(ops.communication)
    if not len(others):
        return start
    late = recorded_late_ns(start - free)
    low = min(int(ops.end_ns[others].min()), int(start.min()))
    span = max(int(ops.end_ns[others].max()), int((start + late).max())) - low + 1
    ended = ops.rank[others] * span + (ops.end_ns[others] - low)
    order = np.argsort(ended, kind="stable")
    first, last = (
        np.searchsorted(ended[order], ops.rank[rows] * span + (time - low), side="right")
        for time in (start, start + late)
    )
    awaited = np.flatnonzero(first < last)
    if not len(awaited):
        return start
    # The earliest begin of those between: reduceat takes every other interval, the last one to the end.
    begun = np.concatenate((ops.start_ns[others][order], [np.iinfo(np.int64).max]))
    between = np.stack((first[awaited], last[awaited]), axis=1).ravel()
    since = start.copy()
    since[awaited] = np.minimum(np.minimum.reduceat(begun, between)[::2], start[awaited])
    return since


def _previous_end(ops: Operations, rows: Ints) -> Ints:
    """Return the end of the row before on the same lane; the step's begin for the first.

    `rows` by (rank, lane, start).
    """
    begin = ops.begin_ns[ops.rank[rows]]
    same = np.concatenate(([False], np.diff(ops.lane_key[rows]) == 0)) if len(rows) else rows
    return np.where(same, np.maximum(np.concatenate(([0], ops.end_ns[rows][:-1])), begin), begin)


def _latest_end_by(ops: Operations, rows: Ints, others: Ints) -> Ints:
    """For each row the latest end, not after its start, among `others` of its rank; the step's begin if none."""
    begin = ops.begin_ns[ops.rank[rows]]
    found = latest_ended(ops, rows, others)
    return np.where(found == NONE, begin, np.maximum(ops.end_ns[found], begin))


@dataclass(frozen=True)
class ByOperator:
    """(operators × ranks), and the operators' names."""

    names: tuple[str, ...]
    values: Floats

    def of(self, operators: Ints, ranks: Ints) -> "ByOperator":
        """Return those of some operators and ranks, all by their positions."""
        return ByOperator(tuple(self.names[at] for at in operators.tolist()), self.values[np.ix_(operators, ranks)])


def by_operator(ops: Operations, rows: Ints, values: Floats | Ints | Bools | None = None) -> ByOperator:
    """Return sums of the values, one per operation of the step; without any, how many of `rows` there are."""
    # Names are small numbers: counting finds those in use in a tenth of the time that sorting takes.
    codes = present(ops.name[rows])
    place = np.zeros(int(codes.max(initial=0)) + 1, dtype=np.int64)
    place[codes] = np.arange(len(codes))
    shape = len(codes), len(ops.ranks)
    cell = place[ops.name[rows]] * shape[1] + ops.rank[rows]
    sums = np.bincount(cell, weights=None if values is None else values[rows], minlength=shape[0] * shape[1])
    return ByOperator(tuple(ops.name_text[code] for code in codes.tolist()), sums.reshape(shape).astype(float))


def side_by_side(parts: Sequence[ByOperator], order: Mapping[str, int] | None = None) -> ByOperator:
    """Those of some ranks, then of others; an operator that none of them called has 0.

    Operators come in that `order`, or as the parts have them.
    """
    names = tuple(dict.fromkeys(name for part in parts for name in part.names))
    if order is not None:
        names = tuple(sorted(names, key=order.__getitem__))
    return ByOperator(names, beside_one_another(names, [(part.names, part.values) for part in parts]))


def beside_one_another(keys: Sequence[Hashable], parts: Sequence[tuple[Sequence[Hashable], Floats]]) -> Floats:
    """Return (keys × … × ranks) of parts that have some keys, and ranks of their own; 0 of what a part has not."""
    place = {key: at for at, key in enumerate(keys)}
    result = np.zeros((len(keys), *parts[0][1].shape[1:-1], sum(values.shape[-1] for _, values in parts)))
    begin = 0
    for some, values in parts:
        end = begin + values.shape[-1]
        result[[place[key] for key in some], ..., begin:end] = values
        begin = end
    return result


def step_times_ns(trace: Trace, *, synchronised: bool) -> Floats:
    """Of every chosen step that somebody recorded whole, in ns.

    The median rank's, since collectives make all wait for the slowest; where no collective does (`synchronised` is
    false) the longest rank's. Ranks that did not record the step whole are left out.
    """
    of_step: dict[int, list[int]] = defaultdict(list)
    times, chosen = trace.job.step_times, set(trace.steps)
    for rank, step, length in zip(times.rank, times.step, times.duration_ns, strict=True):
        if step in chosen and rank not in trace.job.cut_off.get(step, ()):
            of_step[step].append(length)
    middle: Callable[[Sequence[int]], float] = (lambda values: float(np.median(values))) if synchronised else max
    return np.array([middle(of_step[step]) for step in trace.steps if step in of_step], dtype=float)


def step_time_ns(trace: Trace, *, synchronised: bool) -> float:
    """Return the mean of these over the steps; at least a nanosecond, since shares of it are printed."""
    times = step_times_ns(trace, synchronised=synchronised)
    return max(float(times.mean()), 1.0) if len(times) else 1.0
