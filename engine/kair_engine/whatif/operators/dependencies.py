"""Joins the graphs of steps, with what their nodes' durations are made of.

What no edge explains of the time before an operation is its delay, and stays as recorded: so the unchanged replay
reproduces the recording.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from kair_engine.arrays import NONE, Floats, Ints
from kair_engine.frozen import dataclass
from kair_engine.timeline.synchronisation import Synchronisation
from kair_engine.trace.operations import Operations
from kair_engine.whatif.operators.parts import NodeParts, node_parts
from kair_engine.whatif.operators.step_graph.graph import StepGraph, step_graph
from kair_engine.whatif.operators.step_graph.stream_order import cross_stream_waits, shared_keys
from kair_engine.whatif.replay.levels import Graph


@dataclass(frozen=True)
class OperatorDependencies:
    """The graph of some steps; a node's duration is the sum of its parts, of a begin node when the rank began."""

    graph: Graph
    parts: NodeParts
    ranks: tuple[Ints, ...]
    """Per step the ranks' numbers."""
    begin: tuple[Ints, ...]
    """Per step and rank the node of the step's begin, and of its end."""
    end: tuple[Ints, ...]
    begin_ns: tuple[Floats, ...]
    """On the step's common clock."""
    end_ns: tuple[Floats, ...]


def operator_dependencies(
    steps: Sequence[Operations], syncs: Sequence[Synchronisation], roles: Sequence[Ints]
) -> OperatorDependencies:
    """The graph of steps whose operations share their codes; `roles` has a code per rank of each step."""
    parts, outlines = [], []
    for at, ((graph, key), role) in enumerate(zip(step_graphs(steps, syncs, roles), roles, strict=True)):
        parts.append(node_parts(graph, role, key, at))
        outlines.append(_Outline.of(graph))
        del graph
    first = np.cumsum([0, *(one.nodes for one in outlines)])
    return OperatorDependencies(
        _joined_graph(outlines, first),
        _joined_parts(parts, first),
        tuple(ops.ranks for ops in steps),
        tuple(one.begin + at for one, at in zip(outlines, first[:-1], strict=True)),
        tuple(one.end + at for one, at in zip(outlines, first[:-1], strict=True)),
        tuple(one.begin_ns for one in outlines),
        tuple(one.end_ns for one in outlines),
    )


def step_graphs(
    steps: Sequence[Operations], syncs: Sequence[Synchronisation], roles: Sequence[Ints]
) -> Iterator[tuple[StepGraph, Ints]]:
    """Per step its graph, whose nodes follow those of the step before in the model; and its operations' keys."""
    keys = shared_keys(steps, roles)
    waits = cross_stream_waits(steps, keys)
    for ops, sync, wait, key in zip(steps, syncs, waits, keys, strict=True):
        yield step_graph(ops, sync, *wait), key


@dataclass(frozen=True)
class _Outline:
    """What is kept of a step's graph: the rest takes as much memory as its operations."""

    nodes: int
    before: Ints
    after: Ints
    group: Ints
    begin: Ints
    end: Ints
    begin_ns: Floats
    end_ns: Floats

    @classmethod
    def of(cls, graph: StepGraph) -> "_Outline":
        time = graph.time_ns
        return cls(
            len(time),
            graph.before,
            graph.after,
            graph.group,
            graph.begin,
            graph.end,
            time[graph.begin],
            time[graph.end],
        )


def _joined_graph(graphs: Sequence[_Outline], first: Ints) -> Graph:
    if len(graphs) == 1:
        return Graph(graphs[0].nodes, graphs[0].before, graphs[0].after, graphs[0].group)
    groups = np.cumsum([0, *(int(one.group.max(initial=NONE)) + 1 for one in graphs)])
    numbered = list(zip(graphs, first[:-1].tolist(), groups[:-1].tolist(), strict=True))
    return Graph(
        int(first[-1]),
        np.concatenate([one.before + at for one, at, _ in numbered]),
        np.concatenate([one.after + at for one, at, _ in numbered]),
        np.concatenate([np.where(one.group == NONE, NONE, one.group + group) for one, _, group in numbered]),
    )


def _joined_parts(parts: Sequence[NodeParts], first: Ints) -> NodeParts:
    if len(parts) == 1:
        return parts[0]
    others = [name for name in NodeParts.__dataclass_fields__ if name != "node"]
    columns = {name: np.concatenate([getattr(one, name) for one in parts]) for name in others}
    return NodeParts(
        node=np.concatenate([one.node + np.int32(at) for one, at in zip(parts, first[:-1], strict=True)]), **columns
    )
