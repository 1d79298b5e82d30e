"""Ranks of one host, or of one group of the layout, that are waited for together stand in one line."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.trace_builder import trace

from kair_engine.blame import analysis
from kair_engine.blame.together import Key, by_group
from kair_engine.causes import Cause
from kair_engine.ranks import Rank
from kair_engine.results.blame import BlameResult, HostBlame, RankBlame, RootCause
from kair_engine.trace.model import Layout
from kair_tui.render.blame_paths import blame_headline, causes_together, culprit_text, together


def blame(of_ranks: dict[int, float], hosts: dict[str, tuple[int, ...]]) -> BlameResult:
    """Of 100 ms of waiting, so many from each rank, half of them by the same operator."""
    causes: tuple[Cause, ...] = ("compute", "host")
    root_causes = tuple(
        RootCause(Rank(rank), "mlp", cause, False, ms * 500.0, ms / 200, (rank,), 2)
        for cause in causes
        for rank, ms in of_ranks.items()
    )
    by_rank = tuple(RankBlame(Rank(rank), ms * 1e3, ms / 100, 1) for rank, ms in of_ranks.items())
    by_host = tuple(
        HostBlame(
            host,
            tuple(Rank(rank) for rank in ranks),
            sum(of_ranks[rank] for rank in ranks) * 1e3,
            sum(of_ranks[rank] for rank in ranks) / 100,
            len(ranks),
        )
        for host, ranks in hosts.items()
    )
    return BlameResult(None, (0, 1), "robust", (), root_causes, by_rank, (), (), 1e5, 1e5, 0.0, 9, (), by_host=by_host)


def test_a_host_whose_ranks_share_the_waiting_stands_for_them() -> None:
    result = blame({4: 30.0, 5: 32.0, 6: 28.0, 0: 10.0}, {"node1": (4, 5, 6), "node0": (0,)})
    assert [culprit_text(row) for row in together(result)] == ["node1: 4-6", "0"]
    assert blame_headline(result).startswith("waiting came from node1 (ranks 4-6, 90.0 %) and rank 0 (10.0 %):")
    first = causes_together(result)[0]
    assert culprit_text(first) == "node1: 4-6"
    assert (first.blamed_us, first.synchronisations, first.steps) == (45_000.0, 6, (4, 5, 6))
    assert len(causes_together(result)) == 4


def test_a_rank_that_most_of_its_hosts_waiting_comes_from_stands_for_itself() -> None:
    result = blame({4: 80.0, 5: 12.0, 0: 8.0}, {"node1": (4, 5), "node0": (0,)})
    assert [culprit_text(row) for row in together(result)] == ["4", "5", "0"]
    assert [culprit_text(row) for row in causes_together(result)][:2] == ["4", "4"]


LAYOUT = Layout(
    dp=2, pp=2, tp=2, pipeline_stage={rank: rank // 4 for rank in range(8)}, dp_rank={r: r % 4 // 2 for r in range(8)}
)
"""Ranks 0-3 are of stage 0, 2, 3, 6 and 7 of data-parallel rank 1, 6 and 7 a tensor-parallel group."""
HOSTS = {"node0": (0, 1, 2, 3), "node1": (4, 5, 6, 7)}


def grouped(of_ranks: dict[int, float], hosts: dict[str, tuple[int, ...]], operators: dict[int, str]) -> BlameResult:
    """The same of ranks in that layout, each late by one operator."""
    result = blame(of_ranks, {host: tuple(rank for rank in ranks if rank in of_ranks) for host, ranks in hosts.items()})
    blamed: dict[Key, float] = {
        (Rank(rank), operators.get(rank, "mlp"), "compute", False): ms for rank, ms in of_ranks.items()
    }
    return replace(result, by_group=by_group(result.by_rank, blamed, LAYOUT, range(8)))


@pytest.mark.parametrize(
    ("of_ranks", "said", "kind"),
    [
        (
            {2: 22.0, 3: 24.0, 6: 26.0, 7: 23.0},
            "data-parallel rank 1 (ranks 2-3, 6-7, 95.0 %)",
            "dp 1: 2-3, 6-7",
        ),
        ({6: 50.0, 7: 45.0, 4: 2.0, 0: 3.0}, "tensor-parallel group pp 1 dp 1 (ranks 6-7, 95.0 %)", "pp 1 dp 1: 6-7"),
        ({4: 24.0, 5: 24.0, 6: 26.0, 7: 26.0}, "pipeline stage 1 (ranks 4-7, 100.0 %)", "pp 1: 4-7"),
    ],
)
def test_ranks_of_a_group_that_are_late_as_one_stand_in_one_line(
    of_ranks: dict[int, float], said: str, kind: str
) -> None:
    result = grouped(of_ranks, {}, {})
    assert blame_headline(result).startswith(f"waiting came from {said}: ")
    assert culprit_text(together(result)[0]) == kind
    assert culprit_text(causes_together(result)[0]) == kind
    assert sum(row.blamed_us for row in together(result)) == pytest.approx(sum(of_ranks.values()) * 1e3)


@pytest.mark.parametrize(
    ("of_ranks", "operators"),
    [
        ({6: 50.0, 7: 50.0}, {7: "attention"}),
        ({6: 90.0, 7: 10.0}, {}),
        ({6: 60.0, 4: 40.0}, {}),
        (dict.fromkeys(range(8), 12.5), {}),
    ],
    ids=["another operator", "one rank's most", "of no group", "the whole job"],
)
def test_ranks_that_are_not_late_as_one_stand_for_themselves(
    of_ranks: dict[int, float], operators: dict[int, str]
) -> None:
    result = grouped(of_ranks, {}, operators)
    assert all(culprit_text(row).isdecimal() for row in together(result))


def test_a_group_stands_for_a_host_only_where_it_says_more() -> None:
    on_one_host = grouped({4: 25.0, 5: 25.0, 6: 25.0, 7: 25.0}, HOSTS, {})
    assert [culprit_text(row) for row in together(on_one_host)] == ["node1: 4-7"]
    within_it = grouped({6: 47.0, 7: 48.0, 4: 3.0, 5: 2.0}, HOSTS, {})
    assert [culprit_text(row) for row in together(within_it)] == ["pp 1 dp 1: 6-7", "4", "5"]
    over_hosts = grouped({2: 25.0, 3: 25.0, 6: 25.0, 7: 25.0}, HOSTS, {})
    assert [culprit_text(row) for row in together(over_hosts)] == ["dp 1: 2-3, 6-7"]


_FAST = "gemm 10+100 | allreduce@dp{} 110+230"
_SLOW = "gemm 10+300 | allreduce@dp{} 310+30"
UNEVEN = f"""step 0: 0+1000
0 gpu7 | {_FAST.format(0)}
1 gpu7 | {_FAST.format(1)}
2 gpu7 | {_SLOW.format(0)}
3 gpu7 | {_SLOW.format(1)}
4 gpu7 | {_FAST.format(0)}
5 gpu7 | {_FAST.format(1)}
"""
"""Three replicas of two ranks each: the second replica's batch takes three times as long."""


def test_a_replica_with_a_larger_batch_is_one_line(tmp_path: Path) -> None:
    made = trace(tmp_path, UNEVEN)
    layout = Layout(dp=3, tp=2, dp_rank={rank: rank // 2 for rank in range(6)})
    found = analysis.blame(replace(made, job=replace(made.job, layout=layout)))
    (group,) = found.by_group
    assert (group.kind, group.name, group.ranks, group.share) == ("data_parallel_rank", "dp 1", (2, 3), 1.0)
    assert blame_headline(found).startswith(
        "waiting came from data-parallel rank 1 (ranks 2-3, 100.0 %): ranks waited 800 µs "
    )
    assert [(culprit_text(row), row.operator) for row in causes_together(found)] == [("dp 1: 2-3", "gemm")]
