"""The topological levels of a dependency graph: by hand, and the way of small graphs against that of large ones."""

from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kair_engine.arrays import NONE
from kair_engine.whatif import replay as module
from kair_engine.whatif.replay import Graph, levels_of


def test_members_end_with_the_last_to_start_and_what_waits_in_a_circle_never_starts() -> None:
    # 0 → 1, 1 and 2 communicate, → 3; 4 and 5 wait for each other; 6 communicates with 5.
    before, after = np.array([[0, 1], [1, 3], [4, 5], [5, 4]]).T
    found = levels_of(Graph(7, before, after, np.array([NONE, 0, 0, NONE, NONE, 1, 1])))
    assert found.count == 3
    assert found.starts.tolist() == [0, 1, 0, 2, 3, 3, 0]
    assert found.ends.tolist() == [0, 1, 1, 2, 3, 3, 3]


@given(st.integers(0, 2**32 - 1), st.integers(0, 60))
def test_small_and_large_graphs_run_alike(seed: int, nodes: int) -> None:
    random = np.random.default_rng(seed)
    before, after = (random.integers(0, max(nodes, 1), nodes * 3 // 2 if nodes else 0) for _ in range(2))
    if random.random() < 0.7:  # without circles, but for communications
        before, after = np.minimum(before, after)[before != after], np.maximum(before, after)[before != after]
    graph = Graph(nodes, before, after, np.where(random.random(nodes) < 0.4, random.integers(0, 9, nodes), NONE))
    small = levels_of(graph)
    with patch.object(module, "_FEW", 0):
        large = levels_of(graph)
    assert small.count == large.count
    assert small.starts.tolist() == large.starts.tolist()
    assert small.ends.tolist() == large.ends.tolist()
