"""Places of ranks in pipelines and replicas, and what numbers of other ends mean, whatever ranks are called."""

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from kair_engine.readers.kineto.collective_details import CollectiveDetails, Details, global_peers, peers_counted
from kair_engine.recording.peers import peers_are_ranks
from kair_engine.recording.places import joined_layout
from kair_engine.trace.model import FirstSend, FragmentInfo, Layout, PeersCounted, StepTimes


def info(rank: int, **what: object) -> FragmentInfo:
    one = FragmentInfo("", "kineto", (rank,), True, 4, {}, None, True, True, 0, None, StepTimes((), (), (), (), ()), ())
    return replace(one, **what)


def counted(rank: int, *peers: tuple[str, int]) -> PeersCounted | None:
    details = Details()
    for group, peer in peers:
        details.add(CollectiveDetails("send", group, None, None, peer))
    return peers_counted(details, rank)


def test_how_other_ends_are_counted_shows_where_one_reading_is_impossible() -> None:
    assert counted(0, ("pp [0, 4, 8]", 4)) == "ranks"  # no place
    assert counted(2, ("pp [0, 2]", 1), ("pp [0, 2]", 0)) == "ranks"  # place 1 is its own
    assert counted(4, ("pp [0, 4, 8]", 2)) == "places"  # no rank of the group
    assert counted(6, ("pp [1, 0, 6]", 0)) == "either"
    assert counted(6, ("pp", 0)) is None


def test_one_group_that_tells_tells_of_all() -> None:
    assert global_peers([0], "pp [1, 0, 6]", 6, "ranks") == [0]
    assert global_peers([0], "pp [1, 0, 6]", 6, "places") == [1]


def test_what_other_ranks_show_holds_for_those_that_may_be_read_either_way() -> None:
    some = [info(0, peers={0: "ranks"}), info(1, peers={1: "either"})]
    assert peers_are_ranks(some, ()) == (1,)
    assert peers_are_ranks([info(0, peers={0: "places"}), some[1]], ()) == ()


@pytest.mark.parametrize(("numbers", "expected"), [("ranks", (0, 1, 2)), ("places", ())])
def test_where_nobody_shows_it_sends_have_their_receives(
    tmp_path: Path, numbers: str, expected: tuple[int, ...]
) -> None:
    """A pipeline 2 → 0 → 1, whose group lists its ranks in that order; the fragment has them as places."""
    pipeline = [2, 0, 1]
    links = [(2, 0, "send"), (0, 2, "recv"), (0, 1, "send"), (1, 0, "recv")]
    rows = [(rank, kind, other if numbers == "ranks" else pipeline.index(other)) for rank, other, kind in links]
    columns = {
        "rank": [rank for rank, _, _ in rows],
        "kind": [kind for _, kind, _ in rows],
        "group": ["pp [2, 0, 1]"] * len(rows),
        "peer": [pipeline[number] for _, _, number in rows],
    }
    pl.DataFrame(columns).write_parquet(tmp_path / "some.parquet")
    some = [info(rank, peers={rank: "either"}) for rank in (0, 1, 2)]
    assert peers_are_ranks(some, [tmp_path / "some.parquet"]) == expected


def pipelines(*chains: tuple[int, ...], dp: int, alike: list[tuple[int, ...]]) -> list[FragmentInfo]:
    """Fragments that state wrong places, of pipelines along these chains."""
    found = []
    for chain in chains:
        for at, rank in enumerate(chain):
            other = chain[at + 1] if at + 1 < len(chain) else chain[at - 1]
            members = next(ranks for ranks in alike if rank in ranks)
            found.append(
                info(
                    rank,
                    layout=Layout(dp, len(chain), None, {rank: sorted(chain).index(rank)}, {rank: 7}),
                    first_send={rank: FirstSend("pp", other, begins=at == 0)},
                    same_batches={rank: members},
                )
            )
    return found


def test_stages_follow_what_is_sent_and_replicas_who_works_together() -> None:
    chains = ((3, 0, 2), (1, 5, 4))
    layout = joined_layout(pipelines(*chains, dp=2, alike=[(0, 2, 3), (1, 4, 5)]), ())
    assert layout is not None
    assert layout.pipeline_stage == {3: 0, 0: 1, 2: 2, 1: 0, 5: 1, 4: 2}
    assert layout.dp_rank == {0: 0, 2: 0, 3: 0, 1: 1, 4: 1, 5: 1}


def test_what_is_no_pipeline_of_the_stated_length_keeps_the_stated_places() -> None:
    some = pipelines((3, 0, 2), (1, 5, 4), dp=3, alike=[(0, 2, 3), (1, 4, 5)])
    broken = [replace(one, first_send={}) if 5 in one.ranks else one for one in some]
    layout = joined_layout(broken, ())
    assert layout is not None
    assert layout.pipeline_stage == {0: 0, 2: 1, 3: 2, 1: 0, 4: 1, 5: 2}
    assert set(layout.dp_rank.values()) == {7}
