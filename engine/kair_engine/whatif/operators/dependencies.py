"""Joins the graphs of steps, with what their nodes' durations are made of.

What no edge explains of the time before an operation is its delay, and stays as recorded: so the unchanged replay
reproduces the recording.

Splits durations into parts: operations' self time, and the delays that no edge explains.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from kair_engine.arrays import NONE, Bools, Codes, Floats, Ints, SmallInts, narrow, pieces
from kair_engine.cancelling import checkpoint
from kair_engine.frozen import dataclass
from kair_engine.results.whatif import FIX_KINDS
from kair_engine.timeline.clocks import Synchronisation
from kair_engine.timeline.self_time import INPUT_PHASE
from kair_engine.trace.batches import give_back_freed_memory
from kair_engine.trace.operations import COLLECTIVE, COMPUTE, GC, INPUT, MEMORY, RECV, SCOPE, SEND, Operations
from kair_engine.whatif.operators.host_events import last_operations
from kair_engine.whatif.operators.step_graph import StepGraph, cross_stream_waits, shared_keys, step_graph
from kair_engine.whatif.replay import Graph, groups_numbered_on, side_by_side

_COMPUTE, _INPUT, _HOST, _COMMUNICATION, _GC = range(len(FIX_KINDS))
_AT_THE_END = -(1 << 24)
"""Less an operation's key: the key of its rest before the step's end. Further from 0 than any role's code."""
OWN, GAP, REST = range(3)
"""An operation's self time, the delay before it, what an operation around it spent before it."""


@dataclass(frozen=True)
class NodeParts:
    """What the nodes' durations are made of: arrays of one length, of the smallest integers that hold their values."""

    node: Codes
    value_ns: Floats
    rank: Codes
    """Position in the ranks of its step."""
    step: Codes
    """Position among the steps."""
    kind: SmallInts
    """Index into FIX_KINDS, or NONE."""
    name: Codes
    """The operation's name's code."""
    key: Ints
    """Equal for the same part of a logical operator, on all peers and in all steps."""
    own: Bools
    """True for operations' self time, False for delays."""
    role: Codes
    thread: Bools
    """True for what the program's threads did, False for devices, communication and threads that serve others."""
    row: Codes
    """Its operation in the step, or NONE: of the step's end."""
    node_over_ns: Floats
    """Per node, not per part, when it was over as recorded, on its step's clock."""

    def of_operations(
        self,
        steps: Sequence[Operations],
        what: Callable[[Operations], npt.NDArray[Any]],
        rows: Ints | None = None,
        *,
        otherwise: int | bool = False,
    ) -> Any:  # noqa: ANN401 - an array of what is asked
        """Return per part what is said of its operation; `otherwise` where it has none. Of all parts, or of `rows`."""
        row, step = (self.row, self.step) if rows is None else (self.row[rows], self.step[rows])
        if len(steps) > 1:
            first = np.cumsum([0, *map(len, steps)])
            row = np.where(row == NONE, NONE, first[step] + row)
        # NONE, −1, finds the last one.
        return np.concatenate([*map(what, steps), [otherwise]])[row]

    def some(self, rows: Ints | Codes) -> "NodeParts":
        """Return some of the parts."""
        columns = {name: of if name == "node_over_ns" else of[rows] for name, of in vars(self).items()}
        return NodeParts(**columns)

    @property
    def delay(self) -> Bools:
        """Time before an operation in which its thread or stream ran nothing, though all it waited for had ended."""
        result = np.empty(len(self.key), dtype=bool)
        for some in pieces(0, len(self.key)):
            result[some] = self.key[some] % (REST + 1) == GAP
        return result

    @property
    def part(self) -> Ints:
        """Which part of its operation: OWN, GAP or REST."""
        return np.asarray(self.key % (REST + 1))


def node_parts(graph: StepGraph, role: Ints, key: Ints, at: int = 0, first: int = 0) -> NodeParts:
    """Return the parts of a step, the `at`-th, whose nodes are numbered from `first` on.

    `role` has a code per rank, `key` a number per operation (shared_keys).
    """
    made = chain(_of_hosts(graph, key), _of_devices(graph, key), _tails(graph, role, key))
    columns = [list(of) for of in zip(*map(_columns, made), strict=True)]
    del made
    give_back_freed_memory()
    joined = []
    while columns:
        # One column after another, the largest first: what it was made of goes with it.
        joined.append(np.concatenate(columns.pop(0)))
    value, node, rank, kind, name, full_key, own, thread, row = joined
    node += np.int32(first)
    step = np.broadcast_to(np.int32(at), node.shape)
    of_role = narrow(role)[rank]
    return NodeParts(node, value, rank, step, kind, name, full_key, own, of_role, thread, row, graph.time_ns)


@dataclass(frozen=True)
class EventTimes:
    """What each event of the threads of a step takes, ns."""

    own: Floats
    """Of its operation itself, until the event."""
    whole: Floats
    """Since the event before, or since what was waited for."""


def times_of_events(graph: StepGraph, value_ns: Floats) -> EventTimes:
    """Of the values of a step's parts, in their order, those of its threads' events."""
    events = len(graph.events.row) if len(graph.host) else 0
    some = np.flatnonzero(rests_ns(graph) > 0) if events else np.zeros(0, dtype=np.int64)
    own = value_ns[:events]
    whole = own + value_ns[events : 2 * events]
    whole[some] += value_ns[2 * events : 2 * events + len(some)]
    return EventTimes(own, whole)


def own_times_of_devices(graph: StepGraph, value_ns: Floats) -> tuple[Ints, Floats]:
    """(operations that end by themselves, what each takes) of the values of a step's parts, in their order."""
    events = len(graph.events.row) if len(graph.host) else 0
    rows = np.flatnonzero(graph.over != NONE)
    alone = rows[graph.arrival[rows] == graph.over[rows]]
    first = 2 * events + (np.count_nonzero(rests_ns(graph) > 0) if events else 0) + len(rows)
    return alone, value_ns[first : first + len(alone)]


@dataclass(frozen=True)
class _Piece:
    """Parts of one sort."""

    part: int
    node: Ints
    value: Floats
    rank: Ints
    kind: Ints | int
    name: Ints | int
    key: Ints
    row: Ints | int
    thread: Bools | bool = False


def _columns(piece: _Piece) -> tuple[Ints | Codes | SmallInts | Floats | Bools, ...]:
    several = (piece.kind, piece.name, piece.row, piece.thread)
    kind, name, row, thread = (np.broadcast_to(np.asarray(of), piece.node.shape) for of in several)
    own = np.full(len(piece.node), piece.part == OWN)
    key = piece.key.astype(np.int64) * (REST + 1) + piece.part
    node, row = (of.astype(np.int32) for of in (piece.node, row))
    return piece.value, node, narrow(piece.rank), kind.astype(np.int8), narrow(name), narrow(key), own, thread, row


def _of_hosts(graph: StepGraph, key: Ints) -> Iterator[_Piece]:
    ops, events = graph.ops, graph.events
    if not len(graph.host):
        return
    row, node = events.row, graph.host[events.node]
    program, rank = _of_the_program(ops)[row], narrow(ops.rank)[row]
    yield _Piece(OWN, node, events.own_ns.astype(float), rank, _kinds(ops, row), ops.name[row], key[row], row, program)
    # At the peak of a replay: each array of eight bytes takes as much as a tenth of the parts.
    earlier = np.where(events.before == NONE, ops.begin_ns[rank], events.time_ns[events.before])
    gap = np.subtract(events.time_ns, earlier, out=earlier).astype(float)
    del earlier
    gap -= events.own_ns
    rest = rests_ns(graph)
    gap -= rest
    waited = events.waits_event
    gap[waited] = graph.time_ns[node[waited]] - graph.ready_ns[node[waited]] - events.own_ns[waited]
    closing = np.concatenate(([False], row[1:] == row[:-1]))
    of_host = np.where(closing, np.int8(NONE), np.int8(_HOST))
    yield _Piece(GAP, node, gap, rank, of_host, ops.name[row], key[row], row, program)
    del gap
    some = rest > 0
    owner, row = events.rest_of[some], row[some]
    yield _Piece(
        REST,
        node[some],
        rest[some],
        rank[some],
        _kinds(ops, owner),
        ops.name[owner],
        key[row],
        owner,
        program[some],
    )


def _of_the_program(ops: Operations) -> Bools:
    """Whether each operation ran on a thread of the program: with a device, others serve that and often stand still."""
    return ops.of_program if ops.has_device else np.ones(len(ops), dtype=bool)


def rests_ns(graph: StepGraph) -> Floats:
    """Per event what an operation around it still spent; what was waited for explains all of the time before it."""
    rest = graph.events.rest_ns.astype(float)
    rest[graph.events.waits_event] = 0.0
    return rest


def _of_devices(graph: StepGraph, key: Ints) -> Iterator[_Piece]:
    """Kernels: their duration, and the delay before them; members: the delay, and their own transfer."""
    ops, time = graph.ops, graph.time_ns
    rows = np.flatnonzero(graph.over != NONE)
    over, arrival, rank = graph.over[rows], graph.arrival[rows], ops.rank[rows]
    member = arrival != over
    offset = graph.offset_ns[rank]
    duration = np.where(member, 0.0, time[over] - (ops.start_ns[rows] - offset))
    # A delay after the launch is the host's where nothing else held the operation up.
    launch = ops.launch[rows]
    event = np.where(launch == NONE, NONE, graph.events.last_of_row[launch])
    launched = np.full(len(rows), -np.inf)
    known = event != NONE
    launched[known] = graph.events.time_ns[event[known]] - offset[known]
    of_host = np.where(launched >= graph.ready_ns[arrival], _HOST, NONE)
    gap = time[arrival] - graph.ready_ns[arrival] - duration
    yield _Piece(GAP, arrival, gap, rank, of_host, ops.name[rows], key[rows], rows)
    # Communication whose members are not known may be nothing but waiting: it stays as it is.
    kind = np.where(ops.communication[rows], NONE, _kinds(ops, rows))[~member]
    alone, members = rows[~member], rows[member]
    yield _Piece(OWN, over[~member], duration[~member], rank[~member], kind, ops.name[alone], key[alone], alone)
    transfer = (time - graph.ready_ns)[over[member]]
    yield _Piece(OWN, over[member], transfer, rank[member], _COMMUNICATION, ops.name[members], key[members], members)


def _tails(graph: StepGraph, role: Ints, key: Ints) -> Iterator[_Piece]:
    """Yield what is left of the step after all that its end waited for: of an operation that went on until then, and
    idle.
    """
    ops, tail = graph.ops, (graph.time_ns - graph.ready_ns)[graph.end]
    owner, rest = last_operations(ops, graph.events)
    rest = np.minimum(rest.astype(float), np.maximum(tail, 0.0))
    rank = np.flatnonzero(rest > 0)
    row = owner[rank]
    kind, name = _kinds(ops, row), ops.name[row]
    at_end = _AT_THE_END - key[row].astype(np.int64)
    yield _Piece(REST, graph.end[rank], rest[rank], rank, kind, name, at_end, row, _of_the_program(ops)[row])
    yield _Piece(GAP, graph.end, tail - rest, np.arange(len(role)), _HOST, NONE, -1 - role, NONE)


def _kinds(ops: Operations, rows: Ints) -> Ints:
    of_kind = np.full(int(SCOPE) + 1, _HOST, dtype=np.int8)
    of_kind[[COMPUTE, MEMORY]] = _COMPUTE
    of_kind[INPUT] = _INPUT
    of_kind[GC] = _GC
    of_kind[[COLLECTIVE, SEND, RECV]] = _COMMUNICATION
    result = of_kind[ops.kind[rows]]
    result[(ops.phase[rows] == INPUT_PHASE) & (ops.kind[rows] != GC)] = _INPUT
    return result


@dataclass(frozen=True)
class OperatorDependencies:
    """The graphs of some steps; a node's duration is the sum of its parts, of a begin node when the rank began.

    Nodes and communications are numbered on from each graph to the next.
    """

    graphs: tuple[Graph, ...]
    """Of each step, or of steps in steady state together."""
    parts: NodeParts
    ranks: tuple[Ints, ...]
    """Per step the ranks' numbers."""
    begin: tuple[Ints, ...] = ()
    """Per step and rank the node of the step's begin, and of its end; empty of steps in steady state."""
    end: tuple[Ints, ...] = ()

    @property
    def graph(self) -> Graph:
        """Return all graphs in one."""
        return side_by_side(self.graphs)

    @property
    def group(self) -> Codes:
        """Return per node of all graphs its communication, or NONE."""
        return groups_numbered_on(self.graphs).astype(np.int32)

    @property
    def nodes(self) -> int:
        """Return how many all graphs have."""
        return sum(graph.nodes for graph in self.graphs)


def operator_dependencies(
    steps: Sequence[Operations], syncs: Sequence[Synchronisation], roles: Sequence[Ints]
) -> OperatorDependencies:
    """Return the graph of steps whose operations share their codes; `roles` has a code per rank of each step."""
    parts, graphs, begin, end, nodes = [], [], [], [], 0
    for at, ((graph, key), role) in enumerate(zip(step_graphs(steps, syncs, roles), roles, strict=True)):
        parts.append(node_parts(graph, role, key, at, nodes))
        graphs.append(Graph(len(graph.time_ns), graph.before, graph.after, graph.group))
        begin.append(graph.begin + nodes)
        end.append(graph.end + nodes)
        nodes += len(graph.time_ns)
        del graph  # What is not kept takes as much memory as its operations.
    for ops in steps:
        ops.forget("nesting", "launch")
    give_back_freed_memory()
    joined = parts[0]
    if len(parts) > 1:
        columns = {name: np.concatenate([getattr(one, name) for one in parts]) for name in vars(joined)}
        joined = NodeParts(**columns)
    ranks = tuple(ops.ranks for ops in steps)
    return OperatorDependencies(tuple(graphs), joined, ranks, tuple(begin), tuple(end))


def step_graphs(
    steps: Sequence[Operations], syncs: Sequence[Synchronisation], roles: Sequence[Ints]
) -> Iterator[tuple[StepGraph, Ints]]:
    """Per step its graph, whose nodes follow those of the step before in the model; and its operations' keys."""
    keys = shared_keys(steps, roles)
    waits = cross_stream_waits(steps, keys)
    for ops, sync, wait, key in zip(steps, syncs, waits, keys, strict=True):
        checkpoint()
        yield step_graph(ops, sync, *wait), key
