"""A view that does not show whom triage accuses says so, and where to look instead."""

import re

import pytest
from support.places import SAMPLES
from support.screen_text import go, opened, played, screen_lines, screen_text

from kair_tui.tui.frame.view import ViewScreen
from kair_tui.tui.pointers import accused_ranks, where_else
from kair_tui.tui.screens.matrix import MatrixScreen

SLOW = str(SAMPLES / "slow_operator")

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_places")]


@played
async def test_who_is_accused_elsewhere_is_named_with_the_screens_that_show_it() -> None:
    async with opened(SLOW) as (app, _):
        session = app.session
        assert session is not None
        assert where_else(session, [0, 1, 3]) == (
            "nothing here shows rank 2, which triage accuses: look at 2 rank or 3 blame",
            2,
        )
        assert where_else(session, [1, 2]) is None


@pytest.mark.parametrize("key", ["D", "F"])
@played
async def test_a_ranking_that_begins_with_others_says_so_and_has_the_cursor_on_the_accused(key: str) -> None:
    async with opened(str(SAMPLES / "pipeline_slow_operator")) as (app, pilot):
        await go(app, pilot, key)
        assert "nothing here shows rank 1, which triage accuses: look at 2 rank or 3 blame" in screen_text(app)
        assert re.match(r" ranks? 1\b", screen_lines(app)[-2])


@played
async def test_a_view_that_shows_them_leads_nowhere_else() -> None:
    async with opened(str(SAMPLES / "slow_input")) as (app, pilot):
        await go(app, pilot, "D", to=MatrixScreen)
        assert "nothing here shows" not in screen_text(app)


@played
async def test_where_nobody_is_accused_there_is_nowhere_else_to_look() -> None:
    async with opened(str(SAMPLES / "healthy")) as (app, _):
        session, screen = app.session, app.screen
        assert session is not None and isinstance(screen, ViewScreen)
        known = session.known(session.question("triage"))
        assert known is not None and accused_ranks(known.result) == ()
        assert where_else(session, [0]) is None
