"""Builds the dependency graph of one step that a profiler recorded: what had to end before what could begin.

Edges: order on a stream and on a thread; launch → kernel; what a host waited for (the device, a copy, communication,
another thread) → what it went on with; an operation on another stream that peers show was waited for. A collective
ends once all members have come; a receive once both ends have.

Infers waits between the streams of a rank, from order alone.

A stream that waits for another waits for what was launched there before it. Traces do not show these waits. The n-th
kernel of a name is taken to wait for the latest operation on another stream that was launched before it, and had ended
when it began on every peer in every step: where one peer shows an overlap, there is no such wait. A CUDA graph has one
launch: within it the order of beginning stands for that of launching.
"""

from collections.abc import Sequence

import numpy as np

from kair_engine.arrays import NONE, Floats, Ints, order_by
from kair_engine.frozen import dataclass
from kair_engine.timeline.clocks import Synchronisation
from kair_engine.trace.operations import (
    COLLECTIVE,
    KIND_NAMES,
    PHASE_NAMES,
    SCOPE,
    SEND,
    SYNC,
    Operations,
    lane_order,
    latest_ended,
)
from kair_engine.whatif.operators.host_events import HostEvents, events_before, host_events, noted_by_thread

FULL_DEVICE_NS, LAST_BLOCKS = 20_000, 0.05
"""An operation that has all it waits for begins no later, unless another one fills the device; then as that one's last
blocks run, of what it was held up for."""
ROUNDING_NS = 1_000
"""Profilers record to the microsecond: what is over so much after the step's end may have ended it."""


@dataclass(frozen=True)
class StepGraph:
    """Nodes 0 … n-1: begin and end of every rank's step, hosts' events, arrivals and ends of device operations."""

    ops: Operations
    events: HostEvents
    offset_ns: Floats
    """Per rank, what its clock is ahead of the step's."""
    before: Ints
    """Per edge the node that ended first, and the one that waited."""
    after: Ints
    group: Ints
    """Per node the communication whose members end together, or NONE."""
    time_ns: Floats
    """Per node when it was over, on the step's clock."""
    ready_ns: Floats
    """Per node when the last that it waited for was over, of communication for any member."""
    begin: Ints
    """Per rank."""
    end: Ints
    host: Ints
    """Per node of the events."""
    arrival: Ints
    """Per operation of streams, and communication, the node after which others are waited for; NONE for the rest."""
    over: Ints
    """Per operation of those the node of its end; the same as `arrival` where nobody else takes part."""


def step_graph(ops: Operations, sync: Synchronisation, waited_for: Ints, waited: Ints) -> StepGraph:
    """Return the graph of a step, with waits of streams for one another (operations waited for, those that wait)."""
    graph = _Builder(ops, sync).build(waited_for, waited)
    # At the peak of a replay each takes a tenth of what the operations do.
    ops.forget("end_ns", "lane_key")
    return graph


class _Builder:
    def __init__(self, ops: Operations, sync: Synchronisation) -> None:
        self._ops, self._sync = ops, sync
        self._offset = sync.clocks.offset_ns
        self._events = host_events(ops)
        self._nodes = 0
        self._time: list[Floats] = []
        self._edges: list[tuple[Ints, Ints]] = []

    def build(self, waited_for: Ints, waited: Ints) -> StepGraph:
        """All nodes, then all edges."""
        ops, events = self._ops, self._events
        begin = self._add(ops.begin_ns - self._offset)
        end = self._add(ops.begin_ns + ops.length_ns - self._offset)
        kept = np.flatnonzero(events.kept)
        host = self._add(self._on_job_clock(events.time_ns[kept], events.row[kept]))
        arrival, over, group_of, members = self._device_nodes()
        self._host_edges(host, begin, end, over)
        self._device_edges(arrival, over, host, end)
        self._edges.append((over[waited_for], arrival[waited]))
        self._begin_edges(arrival, begin, end)
        apart = self._transfers(arrival, over, members)
        time = np.concatenate(self._time)
        group = np.full(self._nodes, NONE, dtype=np.int32)
        together = members[~np.isin(members, apart)]
        group[over[together]] = group_of[together]
        self._edges.append(self._full_device_edges(arrival, over, time, begin))
        before, after = self._all_edges()
        ready = self._ready(time, before, after, group, begin)
        return StepGraph(ops, events, self._offset, before, after, group, time, ready, begin, end, host, arrival, over)

    def _add(self, time: Floats) -> Ints:
        nodes = np.arange(self._nodes, self._nodes + len(time), dtype=np.int32)
        self._nodes += len(time)
        self._time.append(time.astype(float))
        return nodes

    def _on_job_clock(self, time: Ints, rows: Ints) -> Floats:
        return np.asarray(time - self._offset[self._ops.rank[rows]])

    def _device_nodes(self) -> tuple[Ints, Ints, Ints, Ints]:
        """Per operation the node of its arrival and of its end (one, unless others have to come too); see above."""
        ops, collectives = self._ops, self._sync.collectives
        rows = np.flatnonzero((ops.on_stream & (ops.kind != SCOPE)) | ops.communication)
        arrival, over = (np.full(len(ops), NONE, dtype=np.int32) for _ in range(2))
        over[rows] = self._add(self._on_job_clock(self._ended()[rows], rows))
        arrival[rows] = over[rows]
        members = collectives.row
        arrival[members] = self._add(self._on_job_clock(ops.start_ns[members], members))
        group = np.full(len(ops), NONE, dtype=np.int32)
        group[members] = collectives.instance
        return arrival, over, group, members

    def _ended(self) -> Ints:
        """When operations were over: at the latest when the thread that waited for them was seen going on."""
        ops, events = self._ops, self._events
        end = ops.end_ns.copy()
        row = events.row[events.waits_event]
        until = np.where(ops.kind[row] == SYNC, ops.end_ns[row], ops.start_ns[row])
        np.minimum.at(end, events.waits_for, np.maximum(until, ops.start_ns[events.waits_for]))
        return end

    def _host_edges(self, host: Ints, begin: Ints, end: Ints, over: Ints) -> None:
        ops, events = self._ops, self._events
        if not len(host):
            return
        kept = np.flatnonzero(events.kept)
        # Events that share a node begin where the one before the first of them was.
        first = np.concatenate(([0], kept[:-1] + 1))
        earlier = events.before[first]
        rank = ops.rank[events.row[kept]]
        before = np.where(earlier == NONE, begin[rank], host[events.node[earlier]])
        self._edges.append((before, host))
        source = events.waits_for
        on_host = events.last_of_row[source]
        node = np.where(on_host == NONE, over[source], host[events.node[on_host]])
        self._edges.append((node, host[events.node[events.waits_event]]))
        last = events.last_of_lane
        main = last[ops.lane[events.row[last]] == ops.main_lane[ops.rank[events.row[last]]]]
        self._edges.append((host[events.node[main]], end[ops.rank[events.row[main]]]))

    def _device_edges(self, arrival: Ints, over: Ints, host: Ints, end: Ints) -> None:
        ops, events = self._ops, self._events
        rows = np.flatnonzero(over != NONE)
        ordered = lane_order(ops.lane_key, ops.start_ns, ops.duration_ns, rows)
        same = ops.lane_key[ordered][1:] == ops.lane_key[ordered][:-1]
        # Communication on threads can overlap on one lane: then there is no order.
        same &= ops.on_stream[ordered[1:]] | (ops.end_ns[ordered[:-1]] <= ops.start_ns[ordered[1:]])
        self._edges.append((over[ordered[:-1][same]], arrival[ordered[1:][same]]))
        launched = rows[ops.launch[rows] != NONE]
        event = events.last_of_row[ops.launch[launched]]
        # What communicates on a thread is not among its host's events, though a kernel may name it as its launch.
        self._edges.append((host[events.node[event[event != NONE]]], arrival[launched[event != NONE]]))
        issued, by = noted_by_thread(ops)
        event = events_before(ops, events, issued, by)
        over_too = np.arange(len(issued)) >= np.count_nonzero(ops.communication & ~ops.on_stream)
        target = np.where(over_too, over[issued], arrival[issued])
        self._edges.append((host[events.node[event[event != NONE]]], target[event != NONE]))
        last = ordered[np.concatenate((~same, [True]))] if len(ordered) else ordered
        step_end = (ops.begin_ns + ops.length_ns)[ops.rank[last]]
        within = last[(ops.end_ns[last] <= step_end + ROUNDING_NS) & ~ops.of_side_streams[last]]
        self._edges.append((over[within], end[ops.rank[within]]))

    def _begin_edges(self, arrival: Ints, begin: Ints, end: Ints) -> None:
        """Make what waits for nothing else wait for the step's begin."""
        rows = np.flatnonzero(arrival != NONE)
        free = np.ones(self._nodes, dtype=bool)
        for _, after in self._edges:
            free[after] = False
        rows = rows[free[arrival[rows]]]
        self._edges.append((begin[self._ops.rank[rows]], arrival[rows]))
        self._edges.append((begin, end))

    def _all_edges(self) -> tuple[Ints, Ints]:
        before, after = (np.concatenate(side) for side in zip(*self._edges, strict=True))
        return before, after

    def _full_device_edges(self, arrival: Ints, over: Ints, time: Floats, begin: Ints) -> tuple[Ints, Ints]:
        """Operations that begin as one on another stream ends, which ran all the while that nothing else held them up.

        That one filled the device: collectives begin late behind large kernels, with the last of their blocks.
        """
        ops = self._ops
        rows = np.flatnonzero((over != NONE) & ops.on_stream)
        before, after = self._all_edges()
        ready = self._ready(time, before, after, np.full(self._nodes, NONE), begin)[arrival[rows]]
        could = ready + self._offset[ops.rank[rows]]
        late = np.flatnonzero(np.isfinite(could) & (ops.start_ns[rows] - could > FULL_DEVICE_NS))
        rows, could = rows[late], could[late]
        others = np.flatnonzero((over != NONE) & ops.on_stream)
        filling = latest_ended(ops, rows, others, by=ops.start_ns[rows] - 1, ends=ops.start_ns)
        known = (filling != NONE) & (ops.lane[filling] != ops.lane[rows])
        known &= ops.start_ns[filling] <= could + FULL_DEVICE_NS
        apart = np.abs(ops.end_ns[filling] - ops.start_ns[rows])
        known &= apart <= LAST_BLOCKS * (ops.start_ns[rows] - could)
        return over[filling[known]], arrival[rows[known]]

    def _transfers(self, arrival: Ints, over: Ints, members: Ints) -> Ints:
        """Edges from every member's arrival; returns the sends and receives that do not end together.

        A send may be over before its receive begins, its data buffered; and on a thread it is recorded as over when the
        thread next waits for it.
        """
        ops, collectives = self._ops, self._sync.collectives
        self._edges.append((arrival[members], over[members]))
        if not len(collectives):
            return members
        starts = collectives.starts
        pairs = starts[(ops.kind[members[starts]] != COLLECTIVE) & (collectives.sizes == 2)]
        first, second = members[pairs], members[pairs + 1]
        sends = ops.kind[first] == SEND
        send, receive = np.where(sends, first, second), np.where(sends, second, first)
        alone = self._on_job_clock(ops.end_ns[send], send) < self._on_job_clock(ops.start_ns[receive], receive)
        apart = alone | ~ops.on_stream[send]
        self._edges.append((arrival[send[apart]], over[receive[apart]]))
        self._edges.append((arrival[receive[apart & ~alone]], over[send[apart & ~alone]]))
        return np.concatenate((send[apart], receive[apart]))

    def _ready(self, time: Floats, before: Ints, after: Ints, group: Ints, begin: Ints) -> Floats:
        """Per node when the last that it waited for had ended, with the other members of its communication."""
        ready = np.full(self._nodes, -np.inf)
        np.maximum.at(ready, after, time[before])
        ready[begin] = 0.0
        member = np.flatnonzero(group != NONE)
        together = np.full(int(group.max(initial=NONE)) + 1, -np.inf)
        np.maximum.at(together, group[member], ready[member])
        ready[member] = together[group[member]]
        return ready


TOLERANCE_NS = 1_000
"""Timestamps in whole microseconds are off by this much."""


def shared_keys(steps: Sequence[Operations], role_of_rank: Sequence[Ints]) -> list[Ints]:
    """Per step and operation one number, equal for the same logical operator on all peers and in all steps."""
    names = max(int(ops.name.max(initial=0)) for ops in steps) + 1
    occurrences = max(int(ops.occurrence.max(initial=0)) for ops in steps) + 1
    result: list[Ints] = []
    for ops, role in zip(steps, role_of_rank, strict=True):
        of = role[ops.rank] if len(ops) else ops.rank
        which = (of * (len(PHASE_NAMES) + 1) + ops.phase - NONE) * len(KIND_NAMES) + ops.kind
        result.append((which * names + ops.name) * occurrences + ops.occurrence)
    return result


def cross_stream_waits(steps: Sequence[Operations], keys: Sequence[Ints]) -> list[tuple[Ints, Ints]]:
    """Per step (operations that were waited for, operations that waited): rows on different streams of one rank."""
    return [within for within, _ in waits_between_streams(steps, keys, of_earlier=False)]


def waits_between_streams(
    steps: Sequence[Operations], keys: Sequence[Ints], *, of_earlier: bool = True
) -> list[tuple[tuple[Ints, Ints], tuple[Ints, Ints]]]:
    """Return the same, and `of_earlier` steps what waited so for them: of steps that are like these, the rows that
    would be it.
    """
    lanes = sorted({int(code) for ops in steps for code in np.unique(ops.lane[ops.on_stream])})
    found: list[list[tuple[Ints, Ints]]] = [[] for _ in steps]
    earlier: list[list[tuple[Ints, Ints]]] = [[] for _ in steps]
    orders = [_launch_order(ops) for ops in steps] if lanes else []
    for lane in lanes:
        seen = [_launched_and_ended(ops, lane, order) for ops, order in zip(steps, orders, strict=True)]
        key = np.concatenate([of_step[rows] for of_step, (rows, *_) in zip(keys, seen, strict=True)])
        if not len(key):
            continue
        lag = np.concatenate([launched - np.minimum(launched, ended) for _, launched, ended, *_ in seen])
        code = np.unique(key, return_inverse=True)[1].reshape(-1)
        most = np.zeros(int(code.max()) + 1, dtype=np.int64)
        np.maximum.at(most, code, lag)
        begin = 0
        for at, (rows, launched, _, others, first) in enumerate(seen):
            place = launched - most[code[begin : begin + len(rows)]] - 1
            begin += len(rows)
            found[at].append(_first_to_wait(steps[at], rows, place, others, first))
            if not of_earlier:
                continue
            count = np.diff(first)[steps[at].rank[rows]]
            before = np.where(place < 0, place + count, NONE)
            earlier[at].append(_first_to_wait(steps[at], rows, before, others, first))
    return [(_both_sides(within), _both_sides(of)) for within, of in zip(found, earlier, strict=True)]


def _both_sides(pairs: Sequence[tuple[Ints, Ints]]) -> tuple[Ints, Ints]:
    if not pairs:
        return _NOTHING
    return np.concatenate([before for before, _ in pairs]), np.concatenate([after for _, after in pairs])


_NOTHING = (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


def _launched_and_ended(ops: Operations, lane: int, launched: Ints) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """(rows on other streams; how many of the lane's operations on their rank had been launched before, and had ended;
    the lane's operations by (rank, start); where each rank's begin)."""
    device = np.flatnonzero(ops.on_stream & (ops.kind != SCOPE) & ~ops.of_side_streams)
    own = ops.lane[device] == lane
    others, rows = device[own], device[~own]
    first = np.searchsorted(ops.rank[others], np.arange(len(ops.ranks) + 1))
    if not len(others) or not len(rows):
        return rows[:0], rows[:0], rows[:0], others, first
    rows = rows[np.diff(first)[ops.rank[rows]] > 0]
    counted = []
    for times, until in ((launched, launched), (ops.end_ns, ops.start_ns + TOLERANCE_NS + 1)):
        low = min(int(times[others].min()), int(until[rows].min(initial=0)))
        span = max(int(times[others].max()), int(until[rows].max(initial=0))) - low + 1
        ordered = np.sort(ops.rank[others] * span + (times[others] - low))
        by_then = np.searchsorted(ordered, ops.rank[rows] * span + (until[rows] - low))
        counted.append(by_then - first[ops.rank[rows]])
    return rows, counted[0], counted[1], others, first


def _launch_order(ops: Operations) -> Ints:
    """Per operation of a device its place among all in the order of launches; what one launched, as a CUDA graph, as it
    began.

    What has no launch was launched when it began; where hosts run ahead, with what came before it on its stream.
    """
    device = np.flatnonzero(ops.on_stream & (ops.kind != SCOPE))
    known = ops.launch[device] != NONE
    launched = np.where(known, ops.start_ns[ops.launch[device]], ops.start_ns[device])
    if ops.runs_ahead:
        # Rows are in the order of streams, and of beginning.
        latest = np.maximum.accumulate(np.where(known, np.arange(len(device)), NONE))
        same = (latest != NONE) & (ops.lane_key[device[latest]] == ops.lane_key[device])
        launched = np.where(~known & same, launched[latest], launched)
    order = order_by(launched, ops.start_ns[device])
    result = np.full(len(ops), NONE, dtype=np.int64)
    result[device[order]] = np.arange(len(device))
    return result


def _first_to_wait(ops: Operations, rows: Ints, place: Ints, others: Ints, first: Ints) -> tuple[Ints, Ints]:
    """Without the waits that follow from an earlier one on the same stream."""
    known = place >= 0
    rows, place = rows[known], place[known]
    order = order_by(ops.lane_key[rows], ops.start_ns[rows])
    rows, place = rows[order], place[order]
    if not len(rows):
        return _NOTHING
    fresh = np.concatenate(([True], np.diff(ops.lane_key[rows]) != 0))
    span = int(place.max()) + 1
    reached = np.maximum.accumulate(np.cumsum(fresh) * span + place)
    new = fresh | np.concatenate(([True], reached[1:] > reached[:-1]))
    return others[first[ops.rank[rows[new]]] + place[new]], rows[new]
