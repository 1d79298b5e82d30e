"""A contracted graph of launches and kernels ends when the whole one does, whatever each of its nodes takes."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kair_engine.arrays import NONE, Floats
from kair_engine.whatif.operators.steady_window import Edges, contracted
from kair_engine.whatif.replay import Graph, plan, replay

NOTHING = Edges(*(np.zeros(0, dtype=np.int64),) * 2)


def ends_of(graph: Graph, durations: Floats) -> Floats:
    """When each node ends."""
    order = plan(graph)
    ends = durations[order.order][:, None].copy()
    replay(order, ends)
    result = np.full(graph.nodes, np.nan)
    result[order.order] = ends[:, 0]
    return result


def program(streams: list[int], launched: list[bool], waits: list[tuple[int, int]]) -> tuple[Graph, list[int]]:
    """A host launches kernels one after another, on these streams; of those that are not `launched` one is launched
    with the one before it. Then come edges between kernels, from the earlier to the later, and from kernels to hosts.
    """
    count = len(streams)
    host, kernel = list(range(count)), list(range(count, 2 * count))
    edges = set(pairwise(host))
    latest: dict[int, int] = {}
    for at, stream in enumerate(streams):
        if stream in latest:
            edges.add((kernel[latest[stream]], kernel[at]))
        if launched[at] or stream not in latest:
            edges.add((host[at], kernel[at]))
        latest[stream] = at
    for early, late in waits:
        first, then = sorted((early % count, late % count))
        if first != then:
            edges.add((kernel[first], host[then] if (early + late) % 2 else kernel[then]))
    before, after = np.array(sorted(edges), dtype=np.int64).reshape(-1, 2).T
    in_order = [kernel[at] for stream in sorted(latest) for at in range(count) if streams[at] == stream]
    return Graph(2 * count, before, after, np.full(2 * count, NONE)), in_order


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    streams=st.lists(st.sampled_from([0, 0, 0, 0, 1]), min_size=2, max_size=40),
    launched=st.lists(st.sampled_from([True, True, True, False]), min_size=40, max_size=40),
    waits=st.lists(st.tuples(st.integers(0, 39), st.integers(0, 39)), max_size=3),
    durations=st.lists(st.integers(0, 50), min_size=80, max_size=80),
)
def test_what_stays_ends_when_it_did(
    streams: list[int], launched: list[bool], waits: list[tuple[int, int]], durations: list[int]
) -> None:
    graph, in_order = program(streams, launched, waits)
    took = np.array(durations[: graph.nodes], dtype=float)
    is_host = np.arange(graph.nodes) < len(streams)
    small = contracted(graph, NOTHING, np.array(in_order), is_host)
    whole, smaller = ends_of(graph, took), ends_of(small.graph, small.durations(took))
    # Of a stretch's nodes only both ends stand for what they did; the other two are ways through it.
    ways = np.isin(np.arange(small.graph.nodes), np.concatenate((small.through, small.launched)))
    kept = small.kept[~ways]
    assert smaller[~ways].tolist() == whole[kept].tolist()
    assert smaller.max() == whole.max()


def test_a_long_stretch_is_four_nodes() -> None:
    """Twenty launches of 10 and kernels of 30: the first begins at 10, and the last is over 600 later."""
    graph, in_order = program([0] * 20, [True] * 20, [])
    small = contracted(graph, NOTHING, np.array(in_order), np.arange(graph.nodes) < 20)
    assert small.graph.nodes == 4
    took = np.repeat([10.0, 30.0], 20)
    assert ends_of(small.graph, small.durations(took)).max() == ends_of(graph, took).max() == 610.0
