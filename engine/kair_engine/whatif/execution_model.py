"""The dependency graph of recorded steps, with what its nodes' durations are made of.

What no edge explains of the time before an operation is its delay, and stays as recorded: so the unchanged replay
reproduces the recording.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kair_engine.arrays import NONE, Floats, Ints
from kair_engine.operations import Operations
from kair_engine.synchronisation import Synchronisation
from kair_engine.whatif.execution_graph import StepGraph, step_graph
from kair_engine.whatif.execution_parts import Parts, step_parts
from kair_engine.whatif.replay import Graph
from kair_engine.whatif.stream_order import cross_stream_waits, shared_keys


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
    graphs, keys = step_graphs(steps, syncs, roles)
    parts = [
        step_parts(graph, role, key, at) for at, (graph, role, key) in enumerate(zip(graphs, roles, keys, strict=True))
    ]
    first = np.cumsum([0, *(len(one.time_ns) for one in graphs)])
    return ExecutionModel(
        _joined_graph(graphs, first),
        _joined_parts(parts, first),
        tuple(ops.ranks for ops in steps),
        tuple(one.begin + at for one, at in zip(graphs, first[:-1], strict=True)),
        tuple(one.end + at for one, at in zip(graphs, first[:-1], strict=True)),
        tuple(one.time_ns[one.begin] for one in graphs),
        tuple(one.time_ns[one.end] for one in graphs),
    )


def step_graphs(
    steps: Sequence[Operations], syncs: Sequence[Synchronisation], roles: Sequence[Ints]
) -> tuple[list[StepGraph], list[Ints]]:
    """Per step its graph, whose nodes follow those of the step before in the model; and its operations' keys."""
    keys = shared_keys(steps, roles)
    waits = cross_stream_waits(steps, keys)
    return [step_graph(ops, sync, *wait) for ops, sync, wait in zip(steps, syncs, waits, strict=True)], keys


def _joined_graph(graphs: Sequence[StepGraph], first: Ints) -> Graph:
    groups = np.cumsum([0, *(int(one.group.max(initial=NONE)) + 1 for one in graphs)])
    numbered = list(zip(graphs, first[:-1].tolist(), groups[:-1].tolist(), strict=True))
    return Graph(
        int(first[-1]),
        np.concatenate([one.before + at for one, at, _ in numbered]),
        np.concatenate([one.after + at for one, at, _ in numbered]),
        np.concatenate([np.where(one.group == NONE, NONE, one.group + group) for one, _, group in numbered]),
    )


def _joined_parts(parts: Sequence[Parts], first: Ints) -> Parts:
    others = [name for name in Parts.__dataclass_fields__ if name != "node"]
    columns = {name: np.concatenate([getattr(one, name) for one in parts]) for name in others}
    return Parts(node=np.concatenate([one.node + at for one, at in zip(parts, first[:-1], strict=True)]), **columns)
