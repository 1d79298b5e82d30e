"""The replay of a dependency graph, on graphs small enough to replay by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.graph_builder import ends_of, graph

from kair_engine.whatif.replay import Graph, plan


def ends(one: Graph, *durations: list[float]) -> list[list[float]]:
    return ends_of(one, np.array(durations, dtype=float).T).T.tolist()


def test_a_node_begins_when_all_it_waits_for_have_ended() -> None:
    diamond = graph(4, [(0, 1), (0, 2), (1, 3), (2, 3)])
    assert ends(diamond, [1, 2, 5, 1]) == [[1, 3, 6, 7]]


def test_scenarios_do_not_touch_each_other() -> None:
    chain = graph(2, [(0, 1)])
    assert ends(chain, [1, 2], [10, 20]) == [[1, 3], [10, 30]]


def test_members_of_a_communication_wait_for_the_last_one_and_then_take_their_own_time() -> None:
    # 0 and 1 compute, 2 and 3 communicate, 4 and 5 follow.
    one = graph(6, [(0, 2), (1, 3), (2, 4), (3, 5)], [[2, 3]])
    assert ends(one, [1, 7, 2, 3, 1, 1]) == [[1, 7, 9, 10, 10, 11]]


def test_a_communication_of_one_waits_for_nobody() -> None:
    assert ends(graph(2, [(0, 1)], [[1]]), [2, 3]) == [[2, 5]]


def test_delays_come_before_a_node_starts() -> None:
    durations, delays = np.array([[1.0], [2.0]]), np.array([[0.5], [0.25]])
    assert ends_of(graph(2, [(0, 1)]), durations, delays)[:, 0].tolist() == [1.5, 3.75]


def test_what_waits_in_a_circle_is_named_and_the_rest_replayed() -> None:
    one = graph(4, [(0, 1), (1, 2), (2, 1), (0, 3)])
    assert plan(one).stuck.tolist() == [1, 2]
    ended = ends_of(one, np.ones((4, 1)))[:, 0]
    assert ended[[0, 3]].tolist() == [1, 2]
    assert np.isnan(ended[[1, 2]]).all()


def test_a_communication_whose_members_wait_for_each_other_is_stuck() -> None:
    assert plan(graph(2, [(0, 1)], [[0, 1]])).stuck.tolist() == [1]


def test_a_graph_without_edges_or_nodes() -> None:
    assert ends(graph(2, []), [3, 4]) == [[3, 4]]
    assert len(plan(graph(0, [])).levels) == 0


@given(st.integers(0, 2**32 - 1), st.integers(2, 40))
def test_the_replay_is_the_longest_path(seed: int, nodes: int) -> None:
    random = np.random.default_rng(seed)
    edges = [(a, b) for a in range(nodes) for b in range(a + 1, nodes) if random.random() < 0.15]
    durations = random.integers(0, 100, nodes).astype(float)
    expected = np.zeros(nodes)
    for node in range(nodes):
        start = max((expected[a] for a, b in edges if b == node), default=0.0)
        expected[node] = start + durations[node]
    assert ends(graph(nodes, edges), durations.tolist())[0] == pytest.approx(expected.tolist())
