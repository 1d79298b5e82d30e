"""The query screen: type SQL, see the rows, save them."""

from pathlib import Path

import polars as pl
import pytest
from support.places import SAMPLES
from support.screen_text import assert_snapshot, front, go, opened, played, screen_text, type_line, until
from textual.pilot import Pilot
from textual.widgets import Input

from kair_tui.render.terminal import Look
from kair_tui.tui.frame.app import KairApp
from kair_tui.tui.screens.query import QueryScreen
from kair_tui.tui.screens.rank import RankScreen

SLOW = str(SAMPLES / "slow_operator")

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_places")]


async def asked(app: KairApp, pilot: Pilot[int], sql: str) -> None:
    await pilot.press("i")
    await until(pilot, lambda: isinstance(app.focused, Input))
    assert isinstance(app.focused, Input)
    app.focused.value = sql
    await pilot.press("enter")
    screen = front(app, QueryScreen)
    await until(pilot, lambda: sql in screen.commands()[0] and not screen.waiting)


@pytest.mark.parametrize(
    ("name", "size", "look", "sql"),
    [
        ("query_tables_80x24", (80, 24), Look(), None),
        ("query_80x24", (80, 24), Look(), "SELECT * FROM operations WHERE step = 4"),
        ("query_ascii", (160, 50), Look(ascii_only=True, colours="none"), "SELECT * FROM operations WHERE step = 4"),
    ],
)
@played
async def test_it_looks_like_its_picture(name: str, size: tuple[int, int], look: Look, sql: str | None) -> None:
    async with opened(SLOW, size=size, look=look) as (app, pilot):
        await go(app, pilot, "Q", to=QueryScreen)
        if sql is not None:
            await asked(app, pilot, sql)
        assert_snapshot(app, name)


@played
async def test_a_query_is_typed_seen_and_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with opened(SLOW) as (app, pilot):
        await go(app, pilot, "Q", to=QueryScreen)
        await asked(app, pilot, "SELECT rank, name, duration_us FROM operations")
        assert "10,000 rows of 17,952: an export has all" in screen_text(app)
        for form in ("csv", "parquet"):
            await type_line(pilot, "e", form)
            await until(pilot, lambda: isinstance(app.focused, Input) and app.focused.value.startswith("slow_operator"))
            await pilot.press("enter")
            await until(pilot, lambda form=form: Path(f"slow_operator-query.{form}").exists())  # type: ignore[misc]
        assert (
            len(pl.read_parquet("slow_operator-query.parquet")) == len(pl.read_csv("slow_operator-query.csv")) == 17_952
        )
        assert isinstance(app.screen, QueryScreen)
        assert app.screen.commands() == [f"kair query {SLOW} 'SELECT rank, name, duration_us FROM operations'"]


@played
async def test_an_error_leaves_no_rows_of_another_query() -> None:
    async with opened(SLOW) as (app, pilot):
        await go(app, pilot, "Q", to=QueryScreen)
        await asked(app, pilot, "SELECT rank AS who, host FROM ranks")
        assert "node0" in screen_text(app)
        await asked(app, pilot, "SELECT rnk FROM ranks")
        text = screen_text(app)
        assert "no column 'rnk'" in text and "did you mean rank" in text
        assert "node0" not in text
        await pilot.press("i")
        await until(pilot, lambda: isinstance(app.focused, Input) and app.focused.value == "SELECT rnk FROM ranks")
        await pilot.press("up")
        assert isinstance(app.focused, Input)
        assert app.focused.value == "SELECT rank AS who, host FROM ranks"
        await go(app, pilot, "escape", "t")
        assert "6 tables: operations, steps" in screen_text(app)


@played
async def test_columns_go_by_and_a_row_leads_to_its_rank() -> None:
    async with opened(SLOW, size=(80, 24)) as (app, pilot):
        await go(app, pilot, "Q", to=QueryScreen)
        await asked(app, pilot, "SELECT * FROM steps WHERE rank = 2")
        assert "columns 1-" in screen_text(app) and " of 16" in screen_text(app)
        await pilot.press(*["right"] * 20)
        assert "-16 of 16" in screen_text(app)
        await go(app, pilot, *["left"] * 20, "enter", to=RankScreen)
        assert isinstance(app.screen, RankScreen) and app.screen.place.rank == 2


@played
async def test_words_are_completed() -> None:
    async with opened(SLOW) as (app, pilot):
        await go(app, pilot, "Q", to=QueryScreen)
        await pilot.press("i")
        await until(pilot, lambda: isinstance(app.focused, Input))
        assert isinstance(app.focused, Input)
        await pilot.press(*"dur", "tab")
        await until(pilot, lambda: isinstance(app.focused, Input) and app.focused.value == "SELECT duration_us")
