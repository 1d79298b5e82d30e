"""Traces the critical path of a step: back from its last node, each time to what it waited for last."""

import numpy as np

from kair_engine.arrays import NONE, Floats, Ints
from kair_engine.frozen import dataclass
from kair_engine.whatif.replay.levels import Graph


@dataclass(frozen=True)
class Waits:
    """What each node waited for last, given when all of them end."""

    start: Floats
    """When each node begins: when the last one before it ended."""
    last_before: Ints
    """NONE for those that waited for nothing."""
    latest_member: Ints
    """Per communication the member that began last."""


def waits(graph: Graph, end: Floats) -> Waits:
    """`end` per node, in any unit; NaN for nodes that never start."""
    start = starts(graph, end)
    order = np.lexsort((end[graph.before], graph.after))
    last_before = np.full(graph.nodes, NONE)
    last_before[graph.after[order]] = graph.before[order]
    return Waits(start, last_before, _latest_members(graph, start))


@dataclass(frozen=True)
class Piece:
    """A node, and the part of its time that others had to wait for."""

    node: int
    begin: float
    end: float


def critical_path(graph: Graph, of: Waits, end: Floats, last: int) -> list[Piece]:
    """From the first node to the `last`, one after another without gaps.

    A communication's piece begins when its latest member does, and what that waited for comes before it.
    """
    path: list[Piece] = []
    seen: set[int] = set()
    node, until = last, float(end[last])
    while node != NONE and node not in seen:
        seen.add(node)
        latest = int(of.latest_member[graph.group[node]]) if graph.group[node] != NONE else node
        # Clocks that differ can make what was waited for end after its follower.
        begin = min(float(of.start[latest]), until)
        path.append(Piece(node, begin, until))
        node, until = int(of.last_before[latest]), begin
    return path[::-1]


def starts(graph: Graph, end: Floats) -> Floats:
    """When each node begins: when the last one before it ended."""
    result = np.full(graph.nodes, -np.inf)
    np.maximum.at(result, graph.after, end[graph.before])
    return np.where(np.isinf(result), 0.0, result)


def _latest_members(graph: Graph, start: Floats) -> Ints:
    members = np.flatnonzero(graph.group != NONE)
    order = members[np.lexsort((start[members], graph.group[members]))]
    result = np.full(int(graph.group.max(initial=NONE)) + 1, NONE)
    result[graph.group[order]] = order
    return result
