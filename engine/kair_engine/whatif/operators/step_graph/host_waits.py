"""Finds what threads waited for, where the recording lets one tell."""

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints, is_one_of
from kair_engine.timeline.graph import NOTED_LATE_NS, SHORTEST_WAIT_NS, synchronisations
from kair_engine.timeline.self_time import recorded_late_ns, under_way_ns
from kair_engine.trace.finished import latest_ended, latest_of_begun
from kair_engine.trace.operations import COLLECTIVE, MEMORY, RECV, SCOPE, SEND, SYNC, Operations

BUSY_SHARE = 0.5
"""A thread's gap was spent waiting for another thread where that one was busy for this share of it."""


def host_waits(ops: Operations, rows: Ints, same: Bools, first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """(events that waited, the operations whose end each waited for): the device, a copy, communication, a thread.

    `rows` are the threads' operations in order, `same` tells which of them follow another on their thread, `first` and
    `last` are per operation of the step its first and last event.
    """
    streams = np.flatnonzero(ops.on_stream & (ops.kind != SCOPE) & ~ops.of_side_streams)
    waits, awaited = synchronisations(ops, rows, streams)
    events, sources = [last[waits]], [awaited]
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
    """On threads: operations after a gap that mostly went by before a collective ended.

    As in graph.py, but of a collective that was still queued when the gap began, too: nobody issues any meanwhile. One
    that was under way for most of the gap, and is recorded as over a little after it, was what was waited for as well.
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

    The main thread, and one that runs backward beside a device, are busy, too, while they wait there for communication
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
