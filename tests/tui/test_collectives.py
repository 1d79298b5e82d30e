"""The collectives screen: from groups and links to the ranks that they are of."""

import pytest
from support.places import SAMPLES
from support.screen_text import answered, assert_snapshot, opened, played, screen_lines, screen_text, type_line, until
from textual.pilot import Pilot

from kair_tui.render.terminal import Look
from kair_tui.tui.frame.app import KairApp
from kair_tui.tui.screens.collectives import CollectivesScreen
from kair_tui.tui.screens.rank import RankScreen

TWO_HOSTS = str(SAMPLES / "two_hosts_healthy")

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_places")]


async def shown(app: KairApp, pilot: Pilot[int]) -> None:
    await pilot.press("7")
    await until(pilot, lambda: isinstance(app.screen, CollectivesScreen) and answered(app))


@pytest.mark.parametrize(
    ("name", "size", "look"),
    [("collectives_80x24", (80, 24), Look()), ("collectives_ascii", (160, 50), Look(ascii_only=True, colours="none"))],
)
@played
async def test_it_looks_like_its_picture(name: str, size: tuple[int, int], look: Look) -> None:
    async with opened(TWO_HOSTS, size=size, look=look) as (app, pilot):
        await shown(app, pilot)
        assert_snapshot(app, name)


@played
async def test_a_group_leads_to_its_ranks_and_one_to_its_screen() -> None:
    async with opened(TWO_HOSTS) as (app, pilot):
        await shown(app, pilot)
        assert "no group, link or rank is slower than its siblings" in screen_text(app)
        await type_line(pilot, "slash", "group:2..6")
        assert "groups and links  1 of 6" in screen_text(app)
        await pilot.press("enter")
        ranks = [line.split()[0] for line in screen_lines(app) if "GFLOP/s" in line and "ms" in line][-2:]
        assert len(ranks) == 2
        await pilot.press("down", "enter")
        await until(pilot, lambda: isinstance(app.screen, RankScreen) and answered(app))
        assert isinstance(app.screen, RankScreen) and app.screen.place.rank == 6
