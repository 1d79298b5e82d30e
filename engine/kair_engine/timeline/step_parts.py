"""Parts of a step's time on every rank: each moment counted once, for what the rank did or waited for then.

Whose times the steps of a job have.
"""

from dataclasses import replace
from typing import Final, NamedTuple, get_args

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints, SmallInts, is_one_of, stable_order
from kair_engine.results import TimedOn
from kair_engine.results.rank import StepPart
from kair_engine.timeline.clocks import Synchronisation
from kair_engine.timeline.roles import main_lane_rows
from kair_engine.timeline.self_time import INPUT_PHASE
from kair_engine.trace.model import Job, Trace
from kair_engine.trace.operations import COMPUTE, GC, INPUT, MEMORY, SCOPE, Operations, latest_ended, nest

PARTS: Final[tuple[StepPart, ...]] = get_args(StepPart)
_COMPUTE, _TRANSFER, _WAITING, _INPUT, _HOST, _REST, UNKNOWN = range(len(PARTS) + 1)
"""UNKNOWN, the row after PARTS: communication whose other members are not recorded.

- compute: a kernel or copy runs; without a device, a thread's innermost operation is one that computes;
- communication: else, a collective, send or receive transfers: its self time, the last part of it;
- waiting: else, one is under way that still waits for its other members;
- rest: else, an operation that was launched has not begun, or its launch is not recorded;
- input: else, the main thread fetches input;
- host: else. A device is idle as nothing is launched, a thread without anything of the above to do.

Without a device, what a thread does itself (compute, input, garbage collection) comes before communication.
"""
_ON_DEVICE = (_COMPUTE, _TRANSFER, _WAITING, UNKNOWN, _REST, _INPUT)
_ON_THREADS = (_COMPUTE, _INPUT, _HOST, _TRANSFER, _WAITING, UNKNOWN)
"""Which part a moment belongs to where several could be: the first of these, and the host's where none could. A device
that is busy or waits does not care what its host does meanwhile; a thread that computes or fetches is not waiting."""


class _Spans(NamedTuple):
    """Arrays of one length; `sign` is 1 for what counts towards a part, −1 for what is taken out of it again."""

    rank: Ints
    begin: Ints
    end: Ints
    part: SmallInts
    sign: SmallInts

    def only(self, kept: Bools) -> "_Spans":
        return _Spans(self.rank[kept], self.begin[kept], self.end[kept], self.part[kept], self.sign[kept])

    def between(self, begin_ns: Ints, end_ns: Ints) -> "_Spans":
        """Return what lies between two moments of each rank."""
        begin, end = np.maximum(self.begin, begin_ns[self.rank]), np.minimum(self.end, end_ns[self.rank])
        return self._replace(begin=begin, end=end).only(begin < end)


def waited_between(ops: Operations, own: Ints, begin_ns: Ints, end_ns: Ints) -> Floats:
    """Per rank the waiting among these parts alone: what comes after it is not looked at."""
    every = _ON_DEVICE if ops.has_device else _ON_THREADS
    order = every[: every.index(_WAITING) + 1]
    found = _joined([_own(ops), _nested(ops), _communication(ops, own)])
    inside = found.only(is_one_of(found.part, order)).between(begin_ns, end_ns)
    return np.asarray(_time_in_parts(inside, order, len(ops.ranks))[_WAITING])


_NEVER_NS: Final = 1 << 61


def with_steps_before(trace: Trace) -> Trace:
    """Where there are devices, the trace with the step before each chosen one too: they may still be at it."""
    if not trace.job.has_device:
        return trace
    known = trace.job.steps
    before = {known[at - 1] for at, step in enumerate(known) if at and step in set(trace.steps)}
    return replace(trace, steps=tuple(sorted(before.union(trace.steps))))


class Moments(NamedTuple):
    """What ranks do from each moment to the rank's next: arrays of one length, by rank and time, in ns."""

    rank: Ints
    time: Ints
    part: SmallInts
    """Of PARTS, or UNKNOWN; the host's after the last of a rank too."""


def moments(ops: Operations, own: Ints) -> Moments:
    """Return the same division of all ranks' time, moment by moment; `own` is what `collective_own_ns` gives."""
    spans = _all_spans(ops, own)
    spans = spans.only(spans.begin < spans.end)
    if not len(spans.rank):
        nothing = np.zeros(0, dtype=np.int64)
        return Moments(nothing, nothing, nothing.astype(np.int8))
    rank, time, part = _first_open(spans, _ON_DEVICE if ops.has_device else _ON_THREADS)
    return Moments(rank, time, np.where(part == NONE, _HOST, part).astype(np.int8))


def collective_own_ns(ops: Operations, sync: Synchronisation) -> Ints:
    """Per operation, the self time of the collective that it is a member of; NONE where it is of none."""
    own = np.full(len(ops), NONE, dtype=np.int64)
    own[sync.collectives.row] = sync.own_ns[sync.collectives.instance]
    return own


def device_ends(ops: Operations) -> Ints:
    """Return, per rank, when the last of the step's operations on its device ended; the step's begin if it has no such
    operation.
    """
    last = ops.begin_ns.copy()
    rows = np.flatnonzero(ops.on_stream & (ops.kind != SCOPE))
    np.maximum.at(last, ops.rank[rows], ops.end_ns[rows])
    return last


def _all_spans(ops: Operations, own: Ints) -> _Spans:
    spans = [_own(ops), _nested(ops), _communication(ops, own)]
    if ops.has_device:
        spans.append(_launched(ops))
    return _joined(spans)


def _own(ops: Operations) -> _Spans:
    part = own_part(ops)
    rows = np.flatnonzero(part != NONE)
    return _spans(ops.rank[rows], ops.start_ns[rows], ops.end_ns[rows], part[rows])


def _nested(ops: Operations) -> _Spans:
    """Take every operation out of the part of the one around it: the innermost counts."""
    part, parent = own_part(ops), _parents(ops)
    inner = np.flatnonzero(parent != NONE)
    inner = inner[part[parent[inner]] != NONE]
    outer = parent[inner]
    # Operations that cross instead of nesting end after their parent.
    end = np.minimum(ops.end_ns[inner], ops.end_ns[outer])
    return _spans(ops.rank[inner], ops.start_ns[inner], end, part[outer], sign=-1)


def _parents(ops: Operations) -> Ints:
    """As `ops.nesting` has them, but of communication on threads too: inside it nobody computes."""
    if not (ops.communication & ~ops.on_stream).any():
        return ops.nesting.parent
    rows = np.flatnonzero(~ops.on_stream & (ops.kind != SCOPE))
    return nest(ops.lane_key, ops.start_ns, ops.end_ns, rows).parent


def own_part(ops: Operations) -> SmallInts:
    """Return the part that a row's self time belongs to, NONE where it belongs to none, or is communication."""
    fetching = (ops.kind == INPUT) | (ops.phase == INPUT_PHASE)
    part = np.full(len(ops), NONE, dtype=np.int8)
    part[is_one_of(ops.kind, (COMPUTE, MEMORY)) & ~fetching] = _COMPUTE
    part[ops.compiling] = _HOST
    part[fetching & (main_lane_rows(ops) | ops.on_stream)] = _INPUT
    part[ops.of_side_threads] = NONE
    part[ops.kind == GC] = _HOST
    part[ops.communication | (ops.kind == SCOPE)] = NONE
    return part


def _communication(ops: Operations, own: Ints) -> _Spans:
    """Members leave together: what a member does last is its self time, what comes before is waiting."""
    rows = np.flatnonzero(ops.communication)
    known, unknown = rows[own[rows] != NONE], rows[own[rows] == NONE]
    arrived = ops.end_ns[known] - np.minimum(own[known], ops.duration_ns[known])
    which = np.concatenate((known, known, unknown))
    begin = np.concatenate((arrived, ops.start_ns[known], ops.start_ns[unknown]))
    end = np.concatenate((ops.end_ns[known], arrived, ops.end_ns[unknown]))
    part = np.repeat((_TRANSFER, _WAITING, UNKNOWN), (len(known), len(known), len(unknown)))
    return _spans(ops.rank[which], begin, end, part)


def _launched(ops: Operations) -> _Spans:
    """From an operation's launch to its begin; where the launch is unknown, from what the device had last finished."""
    rows = np.flatnonzero(ops.on_stream & (ops.kind != SCOPE))
    launch, before = ops.launch[rows], latest_ended(ops, rows, rows)
    since = np.where(before == NONE, ops.begin_ns[ops.rank[rows]], ops.end_ns[before])
    since = np.where(launch == NONE, since, ops.start_ns[launch])
    return _spans(ops.rank[rows], since, ops.start_ns[rows], np.full(len(rows), _REST))


def _spans(rank: Ints, begin: Ints, end: Ints, part: Ints | SmallInts, sign: int = 1) -> _Spans:
    return _Spans(rank, begin, end, part.astype(np.int8), np.full(len(rank), sign, dtype=np.int8))


def _joined(parts: list[_Spans]) -> _Spans:
    return _Spans(
        np.concatenate([one.rank for one in parts]),
        np.concatenate([one.begin for one in parts]),
        np.concatenate([one.end for one in parts]),
        np.concatenate([one.part for one in parts]),
        np.concatenate([one.sign for one in parts]),
    )


def _time_in_parts(spans: _Spans, order: tuple[int, ...], ranks: int) -> Floats:
    """(PARTS and UNKNOWN × ranks): how long each part was the first of `order` that any span was open of."""
    if not len(spans.rank):
        return np.zeros((len(PARTS) + 1, ranks))
    rank, time, part = _first_open(spans, order)
    # From each moment to the next; after the last of a rank none is open.
    length = np.diff(time, append=time[-1])
    known = part != NONE
    cell = part[known].astype(np.int64) * ranks + rank[known]
    spent = np.bincount(cell, weights=length[known], minlength=(len(PARTS) + 1) * ranks)
    return spent.reshape(len(PARTS) + 1, ranks).astype(float)


def _first_open(spans: _Spans, order: tuple[int, ...]) -> tuple[Ints, Ints, SmallInts]:
    """(rank, time, part) of every moment at which a span begins or ends, by rank and time.

    The part is the first of `order` that any span is open of from then on; NONE where none is.
    """
    # One rank's clock may be decades off another's.
    low = np.full(int(spans.rank.max()) + 1, _NEVER_NS)
    np.minimum.at(low, spans.rank, spans.begin)
    low = low[spans.rank]
    width = int((spans.end - low).max()) + 1
    key = np.concatenate([spans.rank * width + (time - low) for time in (spans.begin, spans.end)])
    by_time = stable_order(key)
    key, opened = key[by_time], np.concatenate((spans.sign, -spans.sign))[by_time]
    of_event, rank, low = (np.tile(of, 2)[by_time] for of in (spans.part, spans.rank, low))
    part = np.full(len(key), NONE, dtype=np.int8)
    for one in order:
        is_open = np.cumsum(np.where(of_event == one, opened, 0), dtype=np.int32) > 0
        part[is_open & (part == NONE)] = one
    return rank, key - rank * width + low, part


def timed_on(job: Job) -> TimedOn:
    """Return the devices' where hosts run ahead of them, else the hosts', who mark the steps."""
    return "host" if job.host_times is None else "device"
