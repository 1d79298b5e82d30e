"""The matrix of pairwise distances: pictures of it, its figures beside the command's, and what its keys do."""

import pytest
from support.cli_samples import printed
from support.places import SAMPLES
from support.screen_text import assert_says, go, opened, played, screen_lines, screen_text, type_line

from kair_tui.tui.frame.app import KairApp
from kair_tui.tui.screens import matrix
from kair_tui.tui.widgets.distances import DistanceMatrix
from kair_tui.tui.widgets.header_and_footer import StatusLine
from kair_tui.tui.widgets.heat import Axis

INPUT = str(SAMPLES / "slow_input")
TWO_HOSTS = str(SAMPLES / "two_hosts_slow_input")
HOST = str(SAMPLES / "slow_host")
BUSY = str(SAMPLES / "busy_host")
PIPELINE = str(SAMPLES / "pipeline_slow_operator")


pytestmark = [pytest.mark.usefixtures("own_places"), pytest.mark.slow]


def rows(app: KairApp) -> list[list[str]]:
    """The words of the lines that begin with a rank."""
    return [line.split() for line in screen_lines(app)[2:-2] if line.split() and line.split()[0].isdigit()]


@played
async def test_its_figures_are_the_commands() -> None:
    async with opened(INPUT) as (app, pilot):
        screen = await go(app, pilot, "D")
        assert screen.commands() == [f"kair localize {INPUT} --method paper --matrix"]
        answer = printed(screen.commands()[0])
        scores = {row["rank"]: f"{row['score']:,.3f}" for row in answer["scores"]}
        for rank, row in enumerate(rows(app)):
            distances = [f"{distance:.1f}" for other, distance in enumerate(answer["matrix"][rank]) if other != rank]
            assert [word for word in row[1:-1] if word.replace(".", "").isdigit()] == distances
            assert row[-1] == scores[rank]


@played
async def test_the_cursor_begins_on_the_farthest_rank_and_tells_of_its_pair() -> None:
    async with opened(TWO_HOSTS, size=(110, 30)) as (app, pilot):
        screen = await go(app, pilot, "D")
        answer, cells = printed(screen.commands()[0]), screen.query_one(DistanceMatrix)
        status = screen.query_one(StatusLine)
        assert status.text.startswith("ranks 5 on node1 and 0 on node0 · distance 126.8 · means 124.029, 43.214")
        await pilot.press("down", "right")
        assert cells.pair == (6, 1)
        assert f"distance {answer['matrix'][6][1]:.1f}" in status.text
        await pilot.press("n")
        ranking = [row["rank"] for row in answer["scores"]]
        assert cells.pair == (6, 5)
        await pilot.press("n")
        assert cells.pair == (ranking[ranking.index(6) + 1], 5)
        assert screen.rank == cells.pair[0]


@played
async def test_hosts_stand_apart_until_the_farthest_rank_is_wanted_first() -> None:
    async with opened(TWO_HOSTS) as (app, pilot):
        screen = await go(app, pilot, "D")
        assert [int(row[0]) for row in rows(app)] == list(range(8))
        assert "┼" in screen_text(app)
        await pilot.press("s")
        assert [int(row[0]) for row in rows(app)] == [row["rank"] for row in printed(screen.commands()[0])["scores"]]
        assert "┼" not in screen_text(app)
        assert screen.query_one(DistanceMatrix).pair == (5, 0)


@played
async def test_shares_and_the_whole_run_are_options_of_the_command() -> None:
    async with opened(INPUT) as (app, pilot):
        screen = await go(app, pilot, "D", "percent_sign", "W")
        assert screen.commands() == [f"kair localize {INPUT} --method paper --whole-run --normalized --matrix"]
        assert_says(app, f"{printed(screen.commands()[0])['matrix'][1][0]:.4f}", "over the run, shares")


@played
async def test_a_filter_leaves_ranks_out_on_both_sides() -> None:
    async with opened(TWO_HOSTS) as (app, pilot):
        screen = await go(app, pilot, "D")
        await type_line(pilot, "slash", "host:node1")
        assert "4 of 8 ranks" in screen_text(app)
        cells = screen.query_one(DistanceMatrix)
        assert [int(row[0]) for row in rows(app)] == [4, 5, 6, 7]
        assert cells.pair == (5, 4)
        await type_line(pilot, "slash", "rank:9")
        assert cells.pair is None
        await pilot.press("down", "n", "enter")
        await type_line(pilot, "slash", "")
        assert len(rows(app)) == 8


@played
async def test_enter_goes_to_the_rank_of_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    gone: list[int] = []
    async with opened(INPUT) as (app, pilot):
        await go(app, pilot, "D")
        monkeypatch.setattr(app, "go_to_rank", gone.append)
        await pilot.press("enter")
        assert gone == [1]


@played
async def test_of_too_many_ranks_the_hosts_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "RANKS_IN_A_MATRIX", 4)
    gone: list[int] = []
    async with opened(TWO_HOSTS) as (app, pilot):
        screen = await go(app, pilot, "D")
        assert screen.commands() == [f"kair localize {TWO_HOSTS} --method paper --by host"]
        text = screen_text(app)
        assert "8 ranks have 64 distances: shown for up to 4 ranks" in text
        for group in printed(screen.commands()[0])["groups"]:
            assert any(
                line.startswith(f" {group['group']} ") and f"{group['mean_score']:.3f}" in line
                for line in screen_lines(app)
            )
        monkeypatch.setattr(app, "go_to_rank", gone.append)
        await pilot.press("enter")
        assert gone == [5]
        await type_line(pilot, "slash", "host:node0")
        assert "node1 " not in screen_text(app)


def test_cells_have_their_places_between_borders() -> None:
    axis = Axis(count=6, size=2, borders=(2, 4), gap=1)
    assert axis.length == 14
    assert [axis.start(item) for item in range(6)] == [0, 2, 5, 7, 10, 12]
    assert [axis.at(cell) for cell in range(15)] == [0, 0, 1, 1, None, 2, 2, 3, 3, None, 4, 4, 5, 5, None]
    assert axis.within(3, 6) == range(1, 3)
    assert Axis().within(0, 5) == range(0)


@played
async def test_ranks_are_compared_within_their_role_until_all_are_asked_for() -> None:
    async with opened(PIPELINE) as (app, pilot):
        await go(app, pilot, "D", to=matrix.MatrixScreen)
        assert "rank 4 lies farthest from its role stage 1" in screen_text(app)
        cells = app.screen.query_one(DistanceMatrix)
        worst = cells.scores[0]
        peers = [cells.distance(4, other) for other in (3, 5)]
        assert worst.rank == 4 and worst.score == pytest.approx(sum(peers) / 2)
        assert cells.pair is not None and cells.pair[1] in (3, 5)
        assert not cells.are_compared(1, 4)
        await pilot.press("a")
        assert cells.are_compared(1, 4)
        assert "has the highest score of 6 ranks" in screen_text(app)
