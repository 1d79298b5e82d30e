"""Turns threads into chains of events: when each host operation let go of what follows it.

A host operation lets go at its end, where the one nested in it begins, or where a kernel that it launched or
communication that it handed to another thread begins. The time between two events is an operation's own, the rest of
one around it, or nobody's (idle). Events that nothing else waits for are put together with the next one: a thread has
10⁴ operations, and a tenth of them launches.

Finds what threads waited for, where the recording shows it.
"""

import numpy as np

from kair_engine.arrays import NONE, Bools, Codes, Floats, Ints, is_one_of, whole_parts
from kair_engine.frozen import dataclass
from kair_engine.timeline.graph import NOTED_LATE_NS, synchronisations
from kair_engine.timeline.roles import main_lane_rows
from kair_engine.timeline.self_time import issuing_rows, recorded_late_ns, under_way_ns
from kair_engine.trace.operations import (
    COLLECTIVE,
    MEMORY,
    RECV,
    ROWS_TOGETHER,
    SCOPE,
    SEND,
    SYNC,
    Operations,
    latest_ended,
    latest_of_begun,
)
from kair_engine.trace.side_threads import SHORTEST_WAIT_NS


@dataclass(frozen=True)
class HostEvents:
    """Arrays with one entry per event, by (rank, thread, time). Times in ns on the rank's own clock."""

    row: Codes
    """The operation."""
    time_ns: Ints
    own_ns: Ints
    """Of the time since the event before: the operation's own."""
    rest_ns: Ints
    """Of it, what an operation around still spent, or one before it."""
    rest_of: Codes
    """The operation that spent the rest; NONE without a rest."""
    before: Codes
    """The event before on the thread; NONE for the first."""
    node: Codes
    """The number of its node; events that share one are consecutive, and its last one is the node's."""
    nodes: int
    first_of_row: Codes
    """Per operation of the step its first and its last event; NONE for those of streams, and scopes."""
    last_of_row: Codes
    waits_event: Ints
    """Events that waited for something, and the operation whose end that was."""
    waits_for: Ints
    last_of_lane: Ints
    """The last event of each thread."""

    @property
    def kept(self) -> Bools:
        """True for the events that are the last of their node."""
        return np.concatenate((self.node[1:] != self.node[:-1], [True])) if len(self.node) else np.zeros(0, dtype=bool)


def host_events(ops: Operations) -> HostEvents:
    """Return the events of all threads of a step that anybody waits for, and what they waited for."""
    rows = ops.nesting.order[~ops.of_side_threads[ops.nesting.order]]
    start, lane = ops.start_ns[rows], ops.lane_key[rows]
    same = lane[1:] == lane[:-1]
    del lane
    let_go = _let_go(ops, rows, same)
    sync = ops.kind[rows] == SYNC
    event_of = np.arange(len(rows)) + np.cumsum(sync) - sync
    # Of each event the place of its operation in `rows`.
    at = np.repeat(np.arange(len(rows), dtype=np.int32), 1 + sync)
    row = rows.astype(np.int32)[at]
    opens = np.zeros(len(row), dtype=bool)
    opens[event_of[sync]] = True
    closes = np.zeros(len(row), dtype=bool)
    closes[event_of[sync] + 1] = True
    time = np.where(opens, start[at], let_go[at])
    before = np.where(np.concatenate(([True], ~same)), NONE, np.arange(-1, len(rows) - 1)) if len(rows) else rows
    rest, rest_of = np.empty_like(rows), np.empty(len(rows), dtype=np.int32)
    bounds = np.append(np.flatnonzero(before == NONE), len(rows))
    for low, high in whole_parts(bounds, ROWS_TOGETHER):
        some = slice(bounds[low], bounds[high])
        earlier = np.maximum(before[some] - bounds[low], NONE)
        rest[some], rest_of[some] = _rests(ops, rows[some], let_go[some], earlier)
    before_event = np.where(closes, np.arange(len(row)) - 1, _event_before(before, event_of, sync)[at]).astype(np.int32)
    del before
    first, last = (np.full(len(ops), NONE, dtype=np.int32) for _ in range(2))
    first[rows], last[rows] = event_of, event_of + sync
    waits_event, waits_for = host_waits(ops, rows, same, first, last)
    last_of_lane = last[rows[np.concatenate((~same, [True]))]] if len(rows) else rows
    kept = np.zeros(len(row), dtype=bool)
    kept[last_of_lane] = True
    launched = last[ops.launch[ops.launch != NONE]]
    kept[launched[launched != NONE]] = True
    kept[waits_event] = True
    earlier = before_event[waits_event]
    kept[earlier[earlier != NONE]] = True
    awaited = last[waits_for]
    kept[awaited[awaited != NONE]] = True
    for_communication = _events_before(ops, row, time, *noted_by_thread(ops))
    kept[for_communication[for_communication != NONE]] = True
    node = np.cumsum(kept, dtype=np.int32) - kept
    return HostEvents(
        row=row,
        time_ns=time,
        own_ns=np.where(opens | closes, 0, (let_go - start)[at]),
        rest_ns=np.where(closes, 0, rest[at]),
        rest_of=np.where(closes, np.int32(NONE), rest_of[at]),
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
    """Return, per row, the last event, not after a time, of the thread that issued it; NONE if it has no such event."""
    return _events_before(ops, events.row, events.time_ns, rows, by)


def last_operations(ops: Operations, events: HostEvents) -> tuple[Ints, Ints]:
    """Per rank: which operation went on longest after its main thread's last event, and how long, ns.

    That is the event's own operation, or one around it; NONE and 0 where none went on.
    """
    last = events.last_of_lane
    last = last[ops.lane[events.row[last]] == ops.main_lane[ops.rank[events.row[last]]]]
    rank, around, reached = ops.rank[events.row[last]], events.row[last], events.time_ns[last]
    owner, longest = np.full(len(ops.ranks), NONE), np.zeros(len(ops.ranks), dtype=np.int64)
    while len(rank):
        piece = ops.end_ns[around] - reached
        longer = piece > longest[rank]
        owner[rank[longer]], longest[rank[longer]] = around[longer], piece[longer]
        reached, around = np.maximum(reached, ops.end_ns[around]), ops.nesting.parent[around]
        open_ = around != NONE
        rank, around, reached = rank[open_], around[open_], reached[open_]
    return owner, longest


def noted_by_thread(ops: Operations) -> tuple[Ints, Ints]:
    """Return the times by which the issuing thread's last event places communication on threads: (rows, times).

    When each was issued; and when a send is recorded as over, which is where the thread waits for it.
    """
    rows = np.flatnonzero(ops.communication & ~ops.on_stream)
    sends = rows[ops.kind[rows] == SEND]
    return np.concatenate((rows, sends)), np.concatenate((ops.start_ns[rows], ops.end_ns[sends]))


def _events_before(ops: Operations, row: Ints, time: Ints, rows: Ints, by: Ints) -> Ints:
    if not len(rows) or not len(row):
        return np.full(len(rows), NONE)
    low = min(int(time.min()), int(by.min()))
    span = max(int(time.max()), int(by.max())) - low + 1
    # Threads are numbered anew: their keys, times a long step in ns, can be too large for 64 bits.
    of_event, wanted = ops.lane_key[row], _issuing_lanes(ops, rows)
    begins = np.concatenate(([True], of_event[1:] != of_event[:-1]))
    number = np.searchsorted(of_event[begins], wanted)
    event = np.searchsorted((np.cumsum(begins) - 1) * span + (time - low), number * span + (by - low), side="right") - 1
    # A main thread without operations has no lane among theirs: its key may be that of another rank's thread.
    own = (of_event[event] == wanted) & (ops.rank[row[event]] == ops.rank[rows])
    return np.where((event >= 0) & own, event, NONE)


def _issuing_lanes(ops: Operations, rows: Ints) -> Ints:
    """Return, per row of communication on threads, the key of the thread that issued it; the main thread if unknown.

    With a device, the thread that runs backward issues some.
    """
    width = int(ops.lane.max(initial=0)) + 1
    lane = ops.rank[rows] * width + ops.main_lane[ops.rank[rows]]
    if not ops.has_device:
        return np.asarray(lane)
    by = latest_ended(ops, rows, issuing_rows(ops), ends=ops.start_ns)
    return np.where(by == NONE, lane, ops.lane_key[by])


def _let_go(ops: Operations, rows: Ints, same: Bools) -> Ints:
    start = ops.start_ns[rows]
    kernel = np.full(len(ops), np.iinfo(np.int64).max)
    launched = np.flatnonzero(ops.launch != NONE)
    np.minimum.at(kernel, ops.launch[launched], ops.start_ns[launched])
    # Another thread can begin to communicate before the operation that asked for it is over.
    communication = np.flatnonzero(ops.communication & ~ops.on_stream)
    if len(communication):
        communication = communication[~main_lane_rows(ops)[communication]]
        by = latest_ended(ops, communication, issuing_rows(ops), ends=ops.start_ns)
        np.minimum.at(kernel, by[by != NONE], ops.start_ns[communication[by != NONE]])
    result = np.minimum(ops.end_ns[rows], kernel[rows])
    result[:-1] = np.where(same, np.minimum(result[:-1], start[1:]), result[:-1])
    return np.asarray(np.maximum(result, start))


def _rests(ops: Operations, rows: Ints, let_go: Ints, before: Ints) -> tuple[Ints, Ints]:
    """Per row: how long an operation that had begun before it went on after the event before, and which one."""
    end, low = ops.end_ns[rows], int(ops.start_ns[rows].min())
    span = int(ops.end_ns[rows].max()) - low + 1
    key = np.cumsum(before == NONE) * span + (end - low)
    reached = np.maximum.accumulate(key)
    which = np.maximum.accumulate(np.where(key == reached, np.arange(len(rows)), 0))
    over = end[which[before]]
    around = ops.nesting.parent[rows]
    until = np.where(around != NONE, ops.start_ns[rows], np.minimum(over, ops.start_ns[rows]))
    rest = np.where(before == NONE, 0, np.maximum(until - let_go[before], 0))
    owner = _longest_piece(ops, rows, let_go, before, np.where(around != NONE, around, rows[which[before]]))
    return rest, np.where(rest > 0, owner, NONE)


def _longest_piece(ops: Operations, rows: Ints, let_go: Ints, before: Ints, otherwise: Ints) -> Ints:
    """Per row the operation that spent most of the time since the event before: what was around that and ended, one
    after another from the inside out, or `otherwise` for what is left."""
    start, reached = ops.start_ns[rows], let_go[before]
    around = ops.nesting.parent[rows[before]]
    longest, owner = np.zeros(len(rows), dtype=np.int64), otherwise.copy()
    open_ = (before != NONE) & (around != NONE)
    open_[open_] = ops.end_ns[around[open_]] <= start[open_]
    while open_.any():
        at = np.flatnonzero(open_)
        piece = ops.end_ns[around[at]] - reached[at]
        longer = at[piece > longest[at]]
        longest[longer], owner[longer] = piece[piece > longest[at]], around[longer]
        reached[at] = np.maximum(reached[at], ops.end_ns[around[at]])
        around[at] = ops.nesting.parent[around[at]]
        open_[at] = (around[at] != NONE) & (ops.end_ns[around[at]] <= start[at])
    return np.where(start - reached > longest, otherwise, owner)


def _event_before(before: Ints, event_of: Ints, sync: Bools) -> Ints:
    """Per row the last event of the row before."""
    return np.where(before == NONE, NONE, (event_of + sync)[before]) if len(before) else before


BUSY_SHARE = 0.5
"""A thread's gap was spent waiting for another thread where that one was busy for this share of it."""


def host_waits(ops: Operations, rows: Ints, same: Bools, first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """(events that waited, the operations whose end each waited for): the device, a copy, communication, a thread.

    `rows` are the threads' operations in order, `same` marks those that follow another on their thread, `first` and
    `last` are per operation of the step its first and last event.
    """
    streams = np.flatnonzero(ops.on_stream & (ops.kind != SCOPE) & ~ops.of_side_streams)
    waits, awaited = synchronisations(ops, rows, streams)
    events, sources = [last[waits]], [awaited]
    follower = np.full(len(ops), NONE, dtype=np.int32)
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
    """On threads: operations after a gap that mostly went by before a collective ended.

    As in step_graph.py, but of a collective that was still queued when the gap began, too: nobody issues any meanwhile.
    One that was under way for most of the gap, and is recorded as over a little after it, was what was waited for as
    well.
    """
    on_threads = ops.communication & ~ops.on_stream
    after, before = rows[1:][same], rows[:-1][same]
    idle = ops.start_ns[after] - ops.end_ns[before]
    long = idle >= SHORTEST_WAIT_NS
    after, before, idle = after[long], before[long], idle[long]
    found = np.full(len(after), NONE)
    meets, noted, recorded = (COLLECTIVE, RECV), np.full(len(idle), NOTED_LATE_NS), recorded_late_ns(idle)
    # A send's end is noted by the thread that waits for it, never later.
    for kinds, late, begun in ((meets, noted, False), (meets, recorded, True), ((SEND,), np.zeros_like(idle), False)):
        others = np.flatnonzero(on_threads & is_one_of(ops.kind, kinds))
        ended = latest_of_begun(ops, after, others, ops.start_ns[after] + late)
        waited = (ended != NONE) & (2 * (ops.end_ns[ended] - ops.end_ns[before]) >= idle)
        # Queued by then, or under way for most of the gap.
        since = np.maximum(ops.start_ns[ended], ops.end_ns[before])
        if begun:
            waited &= 2 * (ops.start_ns[after] - since) >= idle
        found = np.where((found == NONE) & waited, ended, found)
    return after[found != NONE], found[found != NONE]


def _for_threads(ops: Operations, rows: Ints) -> tuple[Ints, Ints]:
    """Operations at the top of a thread, after a gap in which another thread was busy: backward, and after it.

    The main thread, and with a device the one that runs backward, are also busy while they wait there for communication
    on threads.
    """
    none = np.zeros(0, dtype=np.int64)
    top = rows[ops.nesting.parent[rows] == NONE]
    if len(top) < 2 or len(np.unique(ops.lane_key[top])) == len(np.unique(ops.rank[top])):
        return none, none
    lane, start, end = ops.lane_key[top], ops.start_ns[top], ops.end_ns[top]
    first = np.concatenate(([True], lane[1:] != lane[:-1]))
    free = np.where(first, ops.begin_ns[ops.rank[top]], np.concatenate(([0], end[:-1])))
    gaps = np.flatnonzero(start - free >= SHORTEST_WAIT_NS)
    waited, sources, share, program = [], [], [], ops.of_program
    for code in np.unique(ops.lane[top]):
        # One thread of every rank at a time: how long it was busy within each gap of the others.
        others = top[ops.lane[top] == code]
        asked = top[gaps][ops.lane[top[gaps]] != code]
        opened = free[gaps][ops.lane[top[gaps]] != code]
        if not len(asked):
            continue
        busy = _busy(ops, others, asked, ops.start_ns[asked]) - _busy(ops, others, asked, opened)
        if ops.has_device and program[others].all():
            communication = np.flatnonzero(ops.communication & ~ops.on_stream)
            busy += under_way_ns(ops, communication, asked, ops.start_ns[asked])
            busy -= under_way_ns(ops, communication, asked, opened)
        ended = latest_ended(ops, asked, others)
        good = (ended != NONE) & (busy >= BUSY_SHARE * (ops.start_ns[asked] - opened))
        if ops.has_device and program[others].all():
            # What a thread does between its operations (Python) is not recorded: one that goes on as the other's last
            # one is over was handed the work by it, as backward's thread is by the main one.
            handed = program[asked] & (ops.start_ns[asked] - ops.end_ns[ended] < SHORTEST_WAIT_NS)
            good |= (ended != NONE) & handed
        good &= np.where(ended == NONE, False, ops.end_ns[ended] >= opened)
        waited.append(asked[good])
        sources.append(ended[good])
        share.append(busy[good])
    if not waited:
        return none, none
    target, source, busiest = np.concatenate(waited), np.concatenate(sources), np.concatenate(share)
    order = np.lexsort((-busiest, target))
    target, source = target[order], source[order]
    chief = np.concatenate(([True], target[1:] != target[:-1])) if len(target) else np.zeros(0, dtype=bool)
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
