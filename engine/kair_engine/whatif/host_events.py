"""The threads of one step as chains of events: when each host operation let go of what follows it.

A host operation lets go at its end, where the one nested in it begins, or where a kernel it launched begins. The time
between two events is an operation's own, the rest of one around it, or nobody's (idle). Events that nothing else
waits for are put together with the next one: a thread has 10⁴ operations, and a tenth of them launches.
"""

from dataclasses import dataclass

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints
from kair_engine.finished import latest_ended
from kair_engine.graph import NOTED_LATE_NS, SHORTEST_WAIT_NS
from kair_engine.operations import COLLECTIVE, MEMORY, RECV, SCOPE, SEND, SYNC, Operations
from kair_engine.selftime import RECORDED_LATE_NS

BUSY_SHARE = 0.5
"""A thread's gap was spent waiting for another thread where that one was busy for this share of it."""


@dataclass(frozen=True)
class HostEvents:
    """Arrays with one entry per event, by (rank, thread, time). Times in ns on the rank's own clock."""

    row: Ints
    """The operation."""
    time_ns: Ints
    own_ns: Ints
    """Of the time since the event before: the operation's own."""
    rest_ns: Ints
    """Of it, what an operation around still spent, or one before it."""
    rest_of: Ints
    """The operation that spent the rest; NONE without a rest."""
    before: Ints
    """The event before on the thread; NONE for the first."""
    node: Ints
    """The number of its node; events that share one are consecutive, and its last one is the node's."""
    nodes: int
    first_of_row: Ints
    """Per operation of the step its first and its last event; NONE for those of streams, and scopes."""
    last_of_row: Ints
    waits_event: Ints
    """Events that waited for something, and the operation whose end that was."""
    waits_for: Ints
    last_of_lane: Ints
    """The last event of each thread."""

    @property
    def kept(self) -> Bools:
        """True for the events that are the last of their node."""
        return np.r_[self.node[1:] != self.node[:-1], True] if len(self.node) else np.zeros(0, dtype=bool)


def host_events(ops: Operations) -> HostEvents:
    """The events of all threads of a step, and what they waited for."""
    rows = ops.nesting.order
    start = ops.start_ns[rows]
    same = ops.lane_key[rows][1:] == ops.lane_key[rows][:-1]
    let_go = _let_go(ops, rows, same)
    place = np.full(len(ops), NONE)
    place[rows] = np.arange(len(rows))
    sync = ops.kind[rows] == SYNC
    event_of = np.arange(len(rows)) + np.cumsum(sync) - sync
    row = np.repeat(rows, 1 + sync)
    opens = np.zeros(len(row), dtype=bool)
    opens[event_of[sync]] = True
    at = place[row]
    closes = np.zeros(len(row), dtype=bool)
    closes[event_of[sync] + 1] = True
    time = np.where(opens, start[at], let_go[at])
    before = np.where(np.r_[True, ~same], NONE, np.arange(-1, len(rows) - 1)) if len(rows) else rows
    rest, rest_of = _rests(ops, rows, let_go, before)
    before_event = np.where(closes, np.arange(len(row)) - 1, _event_before(before, event_of, sync)[at])
    first, last = np.full(len(ops), NONE), np.full(len(ops), NONE)
    first[rows], last[rows] = event_of, event_of + sync
    waits_event, waits_for = _waits(ops, rows, same, first, last)
    last_of_lane = last[rows[np.r_[~same, True]]] if len(rows) else rows
    kept = np.zeros(len(row), dtype=bool)
    kept[last_of_lane] = True
    kept[last[ops.launch[ops.launch != NONE]]] = True
    kept[waits_event] = True
    earlier = before_event[waits_event]
    kept[earlier[earlier != NONE]] = True
    awaited = last[waits_for]
    kept[awaited[awaited != NONE]] = True
    for_communication = _events_before(ops, row, time, *noted_by_thread(ops))
    kept[for_communication[for_communication != NONE]] = True
    node = np.cumsum(kept) - kept
    return HostEvents(
        row=row,
        time_ns=time,
        own_ns=np.where(opens | closes, 0, (let_go - start)[at]),
        rest_ns=np.where(closes, 0, rest[at]),
        rest_of=np.where(closes, NONE, rest_of[at]),
        before=before_event,
        node=node,
        nodes=int(kept.sum()),
        first_of_row=first,
        last_of_row=last,
        waits_event=waits_event,
        waits_for=waits_for,
        last_of_lane=last_of_lane,
    )


def events_before(ops: Operations, events: HostEvents, rows: Ints, by: Ints) -> Ints:
    """Per row the main thread's last event not after a time, on its rank; NONE where there is none."""
    return _events_before(ops, events.row, events.time_ns, rows, by)


def noted_by_thread(ops: Operations) -> tuple[Ints, Ints]:
    """Times by which the main thread's last event tells of communication on threads: (rows, times).

    When each was issued; and when a send is recorded as over, which is where the thread waits for it.
    """
    rows = np.flatnonzero(ops.communication & ~ops.on_stream)
    sends = rows[ops.kind[rows] == SEND]
    return np.concatenate((rows, sends)), np.concatenate((ops.start_ns[rows], ops.end_ns[sends]))


def _events_before(ops: Operations, row: Ints, time: Ints, rows: Ints, by: Ints) -> Ints:
    main = np.flatnonzero(ops.lane[row] == ops.main_lane[ops.rank[row]])
    if not len(rows) or not len(main):
        return np.full(len(rows), NONE)
    low = min(int(time[main].min()), int(by.min()))
    span = max(int(time[main].max()), int(by.max())) - low + 1
    key = ops.rank[row[main]] * span + (time[main] - low)
    wanted = ops.rank[rows] * span + (by - low)
    found = np.searchsorted(key, wanted, side="right") - 1
    event = main[np.maximum(found, 0)]
    return np.where((found >= 0) & (ops.rank[row[event]] == ops.rank[rows]), event, NONE)


def _let_go(ops: Operations, rows: Ints, same: Bools) -> Ints:
    start = ops.start_ns[rows]
    kernel = np.full(len(ops), np.iinfo(np.int64).max)
    launched = np.flatnonzero(ops.launch != NONE)
    np.minimum.at(kernel, ops.launch[launched], ops.start_ns[launched])
    result = np.minimum(ops.end_ns[rows], kernel[rows])
    result[:-1] = np.where(same, np.minimum(result[:-1], start[1:]), result[:-1])
    return np.asarray(np.maximum(result, start))


def _rests(ops: Operations, rows: Ints, let_go: Ints, before: Ints) -> tuple[Ints, Ints]:
    """Per row: how long an operation that had begun before it went on after the event before, and which one."""
    if not len(rows):
        return rows, rows
    end, low = ops.end_ns[rows], int(ops.start_ns[rows].min())
    span = int(ops.end_ns[rows].max()) - low + 1
    key = np.cumsum(before == NONE) * span + (end - low)
    reached = np.maximum.accumulate(key)
    which = np.maximum.accumulate(np.where(key == reached, np.arange(len(rows)), 0))
    over = end[which[before]]
    around = ops.nesting.parent[rows]
    owner = np.where(around != NONE, around, rows[which[before]])
    until = np.where(around != NONE, ops.start_ns[rows], np.minimum(over, ops.start_ns[rows]))
    rest = np.where(before == NONE, 0, np.maximum(until - let_go[before], 0))
    return rest, np.where(rest > 0, owner, NONE)


def _event_before(before: Ints, event_of: Ints, sync: Bools) -> Ints:
    """Per row the last event of the row before."""
    return np.where(before == NONE, NONE, (event_of + sync)[before]) if len(before) else before


def _waits(ops: Operations, rows: Ints, same: Bools, first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """Events that waited, and for the end of which operation: the device, a copy, communication, another thread."""
    streams = np.flatnonzero(ops.on_stream & (ops.kind != SCOPE))
    waits = rows[ops.kind[rows] == SYNC]
    device = latest_ended(ops, waits, streams, by=ops.end_ns[waits])
    inside = (device != NONE) & (ops.end_ns[device] > ops.start_ns[waits])
    events, sources = [last[waits[inside]]], [device[inside]]
    follower = np.full(len(ops), NONE)
    follower[rows[:-1][same]] = rows[1:][same]
    copies = streams[(ops.kind[streams] == MEMORY) & (ops.launch[streams] != NONE)]
    launch = ops.launch[copies]
    blocking = (ops.end_ns[copies] <= ops.end_ns[launch]) & (follower[launch] != NONE) & (ops.kind[launch] != SYNC)
    events.append(first[follower[launch[blocking]]])
    sources.append(copies[blocking])
    for waited, source in (_for_communication(ops, rows, same), _for_threads(ops, rows)):
        events.append(first[waited])
        sources.append(source)
    return np.concatenate(events), np.concatenate(sources)


def _for_communication(ops: Operations, rows: Ints, same: Bools) -> tuple[Ints, Ints]:
    """Without a device: operations after a gap that mostly went by before a collective ended.

    As in graph.py, but of a collective that was still queued when the gap began, too: nobody issues any meanwhile. One
    that was under way when the gap began, and is recorded as over a little after it, was what was waited for as well.
    """
    on_threads = ops.communication & ~ops.on_stream
    after, before = rows[1:][same], rows[:-1][same]
    idle = ops.start_ns[after] - ops.end_ns[before]
    long = idle >= SHORTEST_WAIT_NS
    after, before, idle = after[long], before[long], idle[long]
    found = np.full(len(after), NONE)
    # A send's end is noted by the thread that waits for it, never later.
    for kinds, late in (((COLLECTIVE, RECV), NOTED_LATE_NS), ((COLLECTIVE, RECV), RECORDED_LATE_NS), ((SEND,), 0)):
        others = np.flatnonzero(on_threads & np.isin(ops.kind, kinds))
        ended = latest_ended(ops, after, others, by=ops.start_ns[after] + late)
        waited = (ended != NONE) & (2 * (ops.end_ns[ended] - ops.end_ns[before]) >= idle)
        queued = ops.start_ns[ended] < ops.start_ns[after]
        waited &= queued if late < RECORDED_LATE_NS else ops.start_ns[ended] <= ops.end_ns[before]
        found = np.where((found == NONE) & waited, ended, found)
    return after[found != NONE], found[found != NONE]


def _for_threads(ops: Operations, rows: Ints) -> tuple[Ints, Ints]:
    """Operations at the top of a thread, after a gap in which another thread was busy: backward, and after it."""
    none = np.zeros(0, dtype=np.int64)
    top = rows[ops.nesting.parent[rows] == NONE]
    if len(top) < 2 or len(np.unique(ops.lane_key[top])) == len(np.unique(ops.rank[top])):
        return none, none
    lane, start, end = ops.lane_key[top], ops.start_ns[top], ops.end_ns[top]
    first = np.r_[True, lane[1:] != lane[:-1]]
    free = np.where(first, ops.begin_ns[ops.rank[top]], np.r_[0, end[:-1]])
    gaps = np.flatnonzero(start - free >= SHORTEST_WAIT_NS)
    waited, sources, share = [], [], []
    for code in np.unique(ops.lane[top]):
        # One thread of every rank at a time: how long it was busy within each gap of the others.
        others = top[ops.lane[top] == code]
        asked = top[gaps][ops.lane[top[gaps]] != code]
        opened = free[gaps][ops.lane[top[gaps]] != code]
        if not len(asked):
            continue
        busy = _busy(ops, others, asked, ops.start_ns[asked]) - _busy(ops, others, asked, opened)
        ended = latest_ended(ops, asked, others)
        good = (ended != NONE) & (busy >= BUSY_SHARE * (ops.start_ns[asked] - opened))
        good &= np.where(ended == NONE, False, ops.end_ns[ended] >= opened)
        waited.append(asked[good])
        sources.append(ended[good])
        share.append(busy[good])
    if not waited:
        return none, none
    target, source, busiest = np.concatenate(waited), np.concatenate(sources), np.concatenate(share)
    order = np.lexsort((-busiest, target))
    target, source = target[order], source[order]
    chief = np.r_[True, target[1:] != target[:-1]] if len(target) else np.zeros(0, dtype=bool)
    return target[chief], source[chief]


def _busy(ops: Operations, others: Ints, rows: Ints, until: Ints) -> Floats:
    """Per row, how long `others` of its rank (ordered, none within another) had been busy by a time."""
    low = min(int(ops.start_ns[others].min()), int(until.min()))
    span = max(int(ops.start_ns[others].max()), int(until.max())) - low + 1
    length = ops.duration_ns[others].astype(float)
    total = np.cumsum(length) - length
    place = np.searchsorted(
        ops.rank[others] * span + (ops.start_ns[others] - low), ops.rank[rows] * span + (until - low)
    )
    found = np.maximum(place - 1, 0)
    reached = np.minimum(until - ops.start_ns[others[found]], length[found])
    known = (place > 0) & (ops.rank[others[found]] == ops.rank[rows])
    first = np.searchsorted(ops.rank[others], ops.rank[rows])
    base = np.where(first < len(others), total[np.minimum(first, len(others) - 1)], 0.0)
    return np.where(known, total[found] + reached - base, 0.0)
