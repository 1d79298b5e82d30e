"""Ranks of one host that are waited for together stand in one line."""

from kair_engine.causes import Cause
from kair_engine.ranks import Rank
from kair_engine.results.blame import BlameResult, HostBlame, RankBlame, RootCause
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
