"""The collectives screen: from groups and links to the ranks that they are of."""

import pytest
from support.places import SAMPLES
from support.screen_text import (
    go,
    opened,
    played,
    screen_lines,
    screen_text,
    type_line,
)

from kair_tui.tui.screens.collectives import CollectivesScreen
from kair_tui.tui.screens.rank import RankScreen

TWO_HOSTS = str(SAMPLES / "two_hosts_healthy")

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_places")]


@played
async def test_a_group_leads_to_its_ranks_and_one_to_its_screen() -> None:
    async with opened(TWO_HOSTS) as (app, pilot):
        await go(app, pilot, "7", to=CollectivesScreen)
        assert "no group, link or rank is slower than its siblings" in screen_text(app)
        await type_line(pilot, "slash", "group:2..6")
        assert "groups and links  1 of 6" in screen_text(app)
        await pilot.press("enter")
        ranks = [line.split()[0] for line in screen_lines(app) if "GFLOP/s" in line and "ms" in line][-2:]
        assert len(ranks) == 2
        await go(app, pilot, "down", "enter", to=RankScreen)
        assert isinstance(app.screen, RankScreen) and app.screen.place.rank == 6
