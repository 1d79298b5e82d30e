"""Small dependency graphs, and their replay node by node instead of place by place."""

import numpy as np

from kair_engine.arrays import NONE, Floats
from kair_engine.whatif.replay import Graph, plan, replay


def graph(nodes: int, edges: list[tuple[int, int]], groups: list[list[int]] | None = None) -> Graph:
    """Edges from the one before to the one after; groups of nodes that communicate."""
    group = np.full(nodes, NONE)
    for number, members in enumerate(groups or []):
        group[members] = number
    before, after = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    return Graph(nodes, before, after, group)


def ends_of(one: Graph, durations: Floats, delays: Floats | None = None) -> Floats:
    """When every node ends (nodes × scenarios)."""
    order = plan(one)
    ends = durations[order.order]
    replay(order, ends, delays=None if delays is None else delays[order.order])
    result = np.empty_like(ends)
    result[order.order] = ends
    return result
