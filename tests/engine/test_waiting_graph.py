"""The merged blame graph of steps small enough to add up by hand."""

import json
import math
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from support.trace_builder import trace

from kair.app.waiting_graph import OTHERS, cause_id, rank_id, waiting_graph
from kair_engine.blame import walk as waits
from kair_engine.blame.analysis import blame
from kair_engine.results.blame import BlameResult
from kair_engine.trace.model import Trace

# Three replicas (dp) of two ranks (tp). Rank 3's kernel is 200 µs slow: rank 2 leaves their tp collective late, and
# both are the last to their dp collectives, although rank 2 did nothing wrong.
_FAST = "gemm 10+100 | allreduce@tp{} 110+20 | gemm 130+20 | allreduce@dp{} 150+230"
CROSSING = f"""
0 gpu7 | {_FAST.format(0, 0)}
1 gpu7 | {_FAST.format(0, 1)}
2 gpu7 | gemm 10+100 | allreduce@tp1 110+220 | gemm 330+20 | allreduce@dp0 350+30
3 gpu7 | gemm 10+300 | allreduce@tp1 310+20 | gemm 330+20 | allreduce@dp1 350+30
4 gpu7 | {_FAST.format(2, 0)}
5 gpu7 | {_FAST.format(2, 1)}
"""


def crossing(folder: Path, steps: int = 1) -> Trace:
    return trace(folder, "".join(f"step {step}: 0+1000\n{CROSSING}" for step in range(steps)))


def edges(graph: Any, kind: str, figure: str) -> dict[tuple[str, str], float]:  # noqa: ANN401
    return {(one, other): of[figure] for one, other, of in graph.edges(data=True) if of["kind"] == kind}


def test_ranks_wait_for_ranks_and_those_for_the_cause_even_on_another_rank(tmp_path: Path) -> None:
    graph = waiting_graph(blame(crossing(tmp_path)))
    assert edges(graph, "waited", "waited_us") == {
        ("rank2", "rank3"): 200,
        ("rank0", "rank2"): 200,
        ("rank4", "rank2"): 200,
        ("rank1", "rank3"): 200,
        ("rank5", "rank3"): 200,
    }
    assert edges(graph, "made_late", "blamed_us") == {
        ("rank3", "rank3_cause1"): pytest.approx(600),
        ("rank2", "rank3_cause1"): pytest.approx(400),
    }
    assert edges(graph, "made_late", "synchronisations") == {
        ("rank3", "rank3_cause1"): 2,
        ("rank2", "rank3_cause1"): 1,
    }
    assert graph.nodes["rank3_cause1"] == {
        "kind": "cause",
        "rank": 3,
        "operator": "gemm",
        "cause": "compute",
        "is_edge": False,
        "blamed_us": pytest.approx(1000),
        "share": pytest.approx(1),
        "synchronisations": 3,
    }
    assert graph.nodes["rank3"] == {
        "kind": "rank",
        "rank": 3,
        "blamed_us": pytest.approx(1000),
        "share": pytest.approx(1),
        "arrived_last": 2,
    }
    assert graph.nodes["rank2"]["blamed_us"] == 0
    assert graph.graph == {"waiting_us": 1000, "attributed_us": 1000, "unattributed_us": 0}


def test_steps_add_up(tmp_path: Path) -> None:
    graph = waiting_graph(blame(crossing(tmp_path, steps=3)))
    assert graph.edges["rank0", "rank2"] == {
        "kind": "waited",
        "waited_us": 600,
        "share": pytest.approx(0.2),
        "collectives": 3,
    }
    assert graph.edges["rank2", "rank3_cause1"]["synchronisations"] == 3


def test_at_every_rank_what_was_waited_for_it_is_what_made_it_late(tmp_path: Path) -> None:
    graph = waiting_graph(blame(crossing(tmp_path, steps=2)))
    for node, of in graph.nodes(data=True):
        if of["kind"] == "rank":
            late = sum(edge["blamed_us"] for _, _, edge in graph.out_edges(node, data=True) if "blamed_us" in edge)
            assert late == pytest.approx(graph.in_degree(node, weight="waited_us"))


def test_asked_about_a_rank_it_is_that_ranks_neighbourhood(tmp_path: Path) -> None:
    made = crossing(tmp_path)
    of_cause = waiting_graph(blame(made, rank=3))
    assert nx.utils.graphs_equal(of_cause, waiting_graph(blame(made)))
    of_victim = waiting_graph(blame(made, rank=2))
    assert edges(of_victim, "waited", "waited_us") == {
        ("rank2", "rank3"): 200,
        ("rank0", "rank2"): 200,
        ("rank4", "rank2"): 200,
    }
    assert edges(of_victim, "made_late", "blamed_us") == {("rank2", "rank3_cause1"): pytest.approx(400)}
    assert waiting_graph(blame(made, operator="no such operator")).number_of_nodes() == 0


def test_of_many_ranks_the_shortest_waits_are_put_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "MOST_PAIRS", 2)
    result = blame(crossing(tmp_path, steps=2))
    listed = [(row.rank, row.for_rank, row.waited_us, row.collectives) for row in result.waiting]
    assert listed == [(0, 2, 400, 2), (4, 2, 400, 2), (None, 3, 1200, 6)]
    graph = waiting_graph(result)
    assert graph.nodes[OTHERS] == {"kind": "others"}
    assert sum(edges(graph, "waited", "waited_us").values()) == result.attributed_us


def test_a_root_cause_is_found_by_its_node(tmp_path: Path) -> None:
    result = blame(crossing(tmp_path))
    (cause,) = result.root_causes
    assert cause_id(result, cause) == "rank3_cause1"
    assert rank_id(cause.rank) in waiting_graph(result)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["robust", "paper"])
def test_values_are_plain_and_finite_and_the_order_is_the_same_every_time(tmp_path: Path, method: str) -> None:
    def once() -> BlameResult:
        return blame(made, method=method)  # type: ignore[arg-type]

    made = crossing(tmp_path, steps=2)
    data = nx.node_link_data(waiting_graph(once()), edges="edges")
    assert json.dumps(data, allow_nan=False) == json.dumps(
        nx.node_link_data(waiting_graph(once()), edges="edges"), allow_nan=False
    )
    assert all(type(value) in (str, int, float, bool) for node in data["nodes"] for value in node.values())
    assert all(math.isfinite(value) for edge in data["edges"] for value in edge.values() if isinstance(value, float))


def test_nobody_waited(tmp_path: Path) -> None:
    graph = waiting_graph(blame(trace(tmp_path, "step 0: 0+100\n0-1 gpu7 | gemm 10+20")))
    assert (graph.number_of_nodes(), graph.number_of_edges()) == (0, 0)
