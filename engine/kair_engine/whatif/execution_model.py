"""The dependency graph of a step that a profiler recorded: what had to end before what could begin.

Edges: order on a stream and on a thread; launch → kernel; what a host waited for (the device, a copy, communication,
another thread) → what it went on with; an operation on another stream that peers show was waited for. A collective ends
once all members have come, for each its own transfer time later; a receive once both ends have. What no edge explains of
the time before an operation is its delay, and stays as recorded: the unchanged replay reproduces the recording.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints, SmallInts
from kair_engine.nesting import lane_order
from kair_engine.operations import COLLECTIVE, COMPUTE, GC, INPUT, MEMORY, RECV, SCOPE, SEND, SYNC, Operations
from kair_engine.selftime import INPUT_STAGE
from kair_engine.synchronisation import Synchronisation
from kair_engine.whatif.host_events import events_before, host_events, noted_by_thread
from kair_engine.whatif.replay import Graph
from kair_engine.whatif.stream_order import cross_stream_waits, shared_keys

KINDS = ("compute", "input", "host", "communication", "gc")
"""What a part of a step's time can be; delays that are nobody's are none of these (NONE)."""
_COMPUTE, _INPUT, _HOST, _COMMUNICATION, _GC = range(len(KINDS))
OWN, GAP, REST = range(3)
"""Parts: an operation's own time, the delay before it, what an operation around it spent before it."""
_PARTS = 3


@dataclass(frozen=True)
class Parts:
    """What the nodes' durations are made of: arrays of one length."""

    node: Ints
    value_ns: Floats
    rank: Ints
    """Position in the ranks of its step."""
    step: Ints
    """Position among the steps."""
    kind: SmallInts
    """Index into KINDS, or NONE."""
    name: Ints
    """The operation's name's code."""
    key: Ints
    """Equal for the same part of a logical operator, on all peers and in all steps."""
    own: Bools
    """True for operations' own time, False for delays."""
    role: Ints


@dataclass(frozen=True)
class ExecutionModel:
    """The graph of some steps; a node's duration is the sum of its parts, of a begin node when the rank began."""

    graph: Graph
    parts: Parts
    ranks: tuple[Ints, ...]
    """Per step the ranks' numbers."""
    begin: tuple[Ints, ...]
    """Per step and rank the node of the step's begin, and of its end."""
    end: tuple[Ints, ...]
    begin_ns: tuple[Floats, ...]
    """On the step's common clock."""
    end_ns: tuple[Floats, ...]


def execution_model(
    steps: Sequence[Operations], syncs: Sequence[Synchronisation], roles: Sequence[Ints]
) -> ExecutionModel:
    """The graph of steps whose operations share their codes; `roles` has a code per rank of each step."""
    keys = shared_keys(steps, roles)
    waits = cross_stream_waits(steps, keys)
    made = [
        _Step(ops, sync, role, key, at).build(*wait)
        for at, (ops, sync, role, key, wait) in enumerate(zip(steps, syncs, roles, keys, waits, strict=True))
    ]
    return _joined(made, steps)


@dataclass(frozen=True)
class _Built:
    nodes: int
    before: Ints
    after: Ints
    group: Ints
    parts: Parts
    begin: Ints
    end: Ints
    begin_ns: Floats
    end_ns: Floats


class _Step:
    """One step's graph in the making; node numbers count from 0."""

    def __init__(self, ops: Operations, sync: Synchronisation, role: Ints, key: Ints, at: int) -> None:
        self._ops, self._sync, self._role, self._key, self._at = ops, sync, role, key, at
        self._offset = sync.clocks.offset_ns
        self._events = host_events(ops)
        self._nodes = 0
        self._time: list[Floats] = []
        self._edges: list[tuple[Ints, Ints]] = []
        self._parts: list[tuple[Ints, ...]] = []

    def build(self, waited_for: Ints, waited: Ints) -> _Built:
        """All nodes, then all edges, then what they leave unexplained."""
        ops, events = self._ops, self._events
        ranks = np.arange(len(ops.ranks))
        begin = self._add(ops.begin_ns - self._offset)
        end = self._add(ops.begin_ns + ops.length_ns - self._offset)
        kept = np.flatnonzero(events.kept)
        host = self._add(self._on_job_clock(events.time_ns[kept], events.row[kept]))
        arrival, over, group_of, members = self._device_nodes()
        self._host_edges(host, begin, end, over)
        self._device_edges(arrival, over, host, end)
        self._edges.append((over[waited_for], arrival[waited]))
        self._begin_edges(arrival, begin, end)
        buffered = self._transfers(arrival, over, members)
        time = np.concatenate(self._time)
        before, after = (np.concatenate(side) for side in zip(*self._edges, strict=True))
        group = np.full(self._nodes, NONE)
        together = members[~np.isin(members, buffered)]
        group[over[together]] = group_of[together]
        ready = self._ready(time, before, after, group, begin)
        self._host_parts(host, ready, time)
        self._device_parts(arrival, over, ready, time)
        tail = time[end] - ready[end]
        self._part(end, tail, ranks, _HOST, NONE, -1 - self._role, GAP)
        return _Built(
            self._nodes,
            before,
            after,
            group,
            self._all_parts(),
            begin,
            end,
            time[begin],
            time[end],
        )

    def _add(self, time: Floats) -> Ints:
        nodes = np.arange(self._nodes, self._nodes + len(time))
        self._nodes += len(time)
        self._time.append(time.astype(float))
        return nodes

    def _on_job_clock(self, time: Ints, rows: Ints) -> Floats:
        return np.asarray(time - self._offset[self._ops.rank[rows]])

    def _device_nodes(self) -> tuple[Ints, Ints, Ints, Ints]:
        """Per operation the node of its arrival and of its end (one, unless others have to come too); see above."""
        ops, collectives = self._ops, self._sync.collectives
        rows = np.flatnonzero((ops.on_stream & (ops.kind != SCOPE)) | ops.communication)
        arrival, over = np.full(len(ops), NONE), np.full(len(ops), NONE)
        over[rows] = self._add(self._on_job_clock(self._ended()[rows], rows))
        arrival[rows] = over[rows]
        members = collectives.row
        arrival[members] = self._add(self._on_job_clock(ops.start_ns[members], members))
        group = np.full(len(ops), NONE)
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
        first = np.r_[0, kept[:-1] + 1]
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
        self._edges.append((host[events.node[event]], arrival[launched]))
        issued, by = noted_by_thread(ops)
        event = events_before(ops, events, issued, by)
        over_too = np.arange(len(issued)) >= np.count_nonzero(ops.communication & ~ops.on_stream)
        target = np.where(over_too, over[issued], arrival[issued])
        self._edges.append((host[events.node[event[event != NONE]]], target[event != NONE]))
        last = ordered[np.r_[~same, True]] if len(ordered) else ordered
        within = last[ops.end_ns[last] <= (ops.begin_ns + ops.length_ns)[ops.rank[last]]]
        self._edges.append((over[within], end[ops.rank[within]]))

    def _begin_edges(self, arrival: Ints, begin: Ints, end: Ints) -> None:
        """What waits for nothing else waits for the step's begin."""
        rows = np.flatnonzero(arrival != NONE)
        free = np.ones(self._nodes, dtype=bool)
        for _, after in self._edges:
            free[after] = False
        rows = rows[free[arrival[rows]]]
        self._edges.append((begin[self._ops.rank[rows]], arrival[rows]))
        self._edges.append((begin, end))

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

    def _host_parts(self, host: Ints, ready: Floats, time: Floats) -> None:
        ops, events = self._ops, self._events
        if not len(host):
            return
        row, node = events.row, host[events.node]
        own, rest = events.own_ns.astype(float), events.rest_ns.astype(float)
        earlier = np.where(events.before == NONE, ops.begin_ns[ops.rank[row]], events.time_ns[events.before])
        gap = events.time_ns - earlier - own - rest
        waited = events.waits_event
        # What was waited for explains the gap; the rest is what came after it.
        rest[waited] = 0.0
        gap[waited] = time[node[waited]] - ready[node[waited]] - own[waited]
        closing = np.r_[False, row[1:] == row[:-1]]
        kind = _kinds(ops, row)
        self._part(node, own, ops.rank[row], kind, ops.name[row], self._key[row], OWN)
        self._part(node, gap, ops.rank[row], np.where(closing, NONE, _HOST), ops.name[row], self._key[row], GAP)
        some = rest > 0
        owner = events.rest_of[some]
        row, node = row[some], node[some]
        self._part(node, rest[some], ops.rank[row], _kinds(ops, owner), ops.name[owner], self._key[row], REST)

    def _device_parts(self, arrival: Ints, over: Ints, ready: Floats, time: Floats) -> None:
        """Kernels: their duration, and the delay before them; members: the delay, and their own transfer."""
        ops = self._ops
        rows = np.flatnonzero(over != NONE)
        member = arrival[rows] != over[rows]
        kernel, members = rows[~member], rows[member]
        # A delay after the launch is the host's where nothing else held the operation up.
        launched = np.full(self._nodes, -np.inf)
        at = np.flatnonzero(ops.launch[rows] != NONE)
        event = self._events.last_of_row[ops.launch[rows[at]]]
        launched[arrival[rows[at]]] = self._on_job_clock(self._events.time_ns[event], rows[at])
        of_host = np.where(launched[arrival[rows]] >= ready[arrival[rows]], _HOST, NONE)
        own = np.where(member, 0.0, ops.duration_ns[rows])
        gap = time[arrival[rows]] - ready[arrival[rows]] - own
        self._part(arrival[rows], gap, ops.rank[rows], of_host, ops.name[rows], self._key[rows], GAP)
        kind = np.where(ops.communication[kernel], NONE, _kinds(ops, kernel))
        duration = ops.duration_ns[kernel].astype(float)
        self._part(over[kernel], duration, ops.rank[kernel], kind, ops.name[kernel], self._key[kernel], OWN)
        transfer = time[over[members]] - ready[over[members]]
        self._part(
            over[members], transfer, ops.rank[members], _COMMUNICATION, ops.name[members], self._key[members], OWN
        )

    def _part(
        self, node: Ints, value: Floats, rank: Ints, kind: Ints | int, name: Ints | int, key: Ints, part: int
    ) -> None:
        full = (np.broadcast_to(np.asarray(of), node.shape) for of in (kind, name))
        self._parts.append((node, value, rank, *full, key * _PARTS + part, np.full(len(node), part == OWN)))

    def _all_parts(self) -> Parts:
        node, value, rank, kind, name, key, own = (np.concatenate(of) for of in zip(*self._parts, strict=True))
        step = np.full(len(node), self._at)
        return Parts(node, value, rank, step, kind.astype(np.int8), name, key, own, self._role[rank])


def _kinds(ops: Operations, rows: Ints) -> Ints:
    of_kind = np.full(int(SCOPE) + 1, _HOST)
    of_kind[[COMPUTE, MEMORY]] = _COMPUTE
    of_kind[INPUT] = _INPUT
    of_kind[GC] = _GC
    of_kind[[COLLECTIVE, SEND, RECV]] = _COMMUNICATION
    result = of_kind[ops.kind[rows]]
    return np.where((ops.stage[rows] == INPUT_STAGE) & (ops.kind[rows] != GC), _INPUT, result)


def _joined(made: Sequence[_Built], steps: Sequence[Operations]) -> ExecutionModel:
    first = np.cumsum([0, *(one.nodes for one in made)])
    groups = np.cumsum([0, *(int(one.group.max(initial=NONE)) + 1 for one in made)])
    numbered = list(zip(made, first[:-1].tolist(), groups[:-1].tolist(), strict=True))
    graph = Graph(
        int(first[-1]),
        np.concatenate([one.before + at for one, at, _ in numbered]),
        np.concatenate([one.after + at for one, at, _ in numbered]),
        np.concatenate([np.where(one.group == NONE, NONE, one.group + group) for one, _, group in numbered]),
    )
    fields = Parts.__dataclass_fields__
    columns = {name: np.concatenate([getattr(one.parts, name) for one in made]) for name in fields if name != "node"}
    node = np.concatenate([one.parts.node + at for one, at, _ in numbered])
    return ExecutionModel(
        graph,
        Parts(node=node, **columns),
        tuple(ops.ranks for ops in steps),
        tuple(one.begin + at for one, at, _ in numbered),
        tuple(one.end + at for one, at, _ in numbered),
        tuple(one.begin_ns for one in made),
        tuple(one.end_ns for one in made),
    )
