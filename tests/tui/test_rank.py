"""The rank screen: pictures of it, what its keys do, and that its figures are those of the commands that `o` shows."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support.cli_samples import printed
from support.places import SAMPLES
from support.screen_text import answered, front, opened, played, screen_text, type_line, until
from textual.pilot import Pilot

from kair_tui.render.terminal import Look
from kair_tui.render.units import duration, signed_duration
from kair_tui.tui.frame.app import KairApp
from kair_tui.tui.frame.view import ViewScreen
from kair_tui.tui.screens.rank import LONGER, RankScreen
from kair_tui.tui.session import Place
from kair_tui.tui.widgets.header_and_footer import StatusLine
from kair_tui.tui.widgets.table import Table

INPUT = str(SAMPLES / "slow_input")
PIPELINE = str(SAMPLES / "pipeline_slow_operator")
HEALTHY = str(SAMPLES / "healthy")


pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_places")]


@asynccontextmanager
async def rank_screen(
    job: str, rank: int, *, size: tuple[int, int] = (80, 24), look: Look | None = None
) -> AsyncIterator[tuple[RankScreen, Pilot[int]]]:
    """The screen of one rank of a job, with all its answers."""
    async with opened(job, size=size, look=look) as (app, pilot):
        app.go_to_rank(rank)
        await until(pilot, lambda: isinstance(app.screen, RankScreen) and answered(app))
        screen = front(app, RankScreen)
        yield screen, pilot


def app_of(screen: RankScreen) -> KairApp:
    return screen.kair


@played
async def test_its_figures_are_those_of_its_commands() -> None:
    async with rank_screen(PIPELINE, 1, size=(160, 50)) as (screen, pilot):
        merged = screen_text(app_of(screen))
        await pilot.press("x")
        shown = screen_text(app_of(screen))
        answers = [printed(line) for line in screen.commands()]
    profile, found, triage = answers
    lines = shown.splitlines()
    for part in profile["parts"]:
        figures = [duration(part["own_us"]), duration(part["typical_us"])]
        figures.append(signed_duration(part["own_us"] - part["typical_us"]))
        line = next(line for line in lines if line.startswith(f" {part['part']} ") and " takes " not in line)
        assert line.split(part["part"])[1].split()[:6] == " ".join(figures).split()
    assert f"{100 * profile['farthest']['distance']:.1f} % from rank {profile['farthest']['peer']}" in shown
    assert f"outliers  {found['total_outliers']}; " in shown
    operators = {(row["operator"], row["phase"]) for row in found["outliers"]}
    assert f"outliers  {found['total_outliers']} in {len(operators)} operators; " in merged
    lost = sum(
        max(row["duration_us"] - row["expected_duration_us"], 0.0)
        for row in found["outliers"]
        if row["operator"] == "kair_sample::mlp"
    )
    (line,) = (line for line in merged.splitlines() if "kair_sample::mlp " in line and "▸" in line)
    assert line.split()[3:6] == ["30", *duration(lost).split()]
    for row in found["outliers"][:20]:
        cells = [str(row["step"]), row["operator"], duration(row["start_us"]), duration(row["duration_us"])]
        assert any(all(cell in line for cell in cells) for line in lines)
    score = next(row for row in triage["ranking"] if row["rank"] == 1)["score"]
    assert f"score {score:.3f} ▲ slow (1 of 6)" in shown


@played
async def test_phases_and_scopes_stand_in_the_place_of_the_parts() -> None:
    async with rank_screen(INPUT, 1, size=(160, 50)) as (screen, pilot):
        assert "Optimizer" not in screen_text(app_of(screen))
        await pilot.press("v")
        await pilot.pause()
        shown = screen_text(app_of(screen))
        for row in printed(screen.commands()[0])["subgraphs"][:6]:
            assert row["subgraph"][:12] in shown
            assert duration(row["own_us"]) in shown
        await pilot.press("v")
        await pilot.pause()
        assert "Optimizer" not in screen_text(app_of(screen))


@played
async def test_left_and_right_go_along_the_ranking_in_the_same_place() -> None:
    async with rank_screen(INPUT, 1) as (screen, pilot):
        await pilot.press("left")
        assert screen.place.rank == 1
        await pilot.press("right")
        await until(pilot, lambda: answered(app_of(screen)))
        assert screen.place.rank == 0
        shown = screen_text(app_of(screen))
        assert shown.splitlines()[0].split("  ")[0].strip() == "kair"
        assert "slow_input › overview › rank 0 " in shown
        assert "rank 0 · node0 · role all (3 peers) · score 0.454 (2 of 4)" in shown
        await pilot.press("escape")
        assert app_of(screen).framed.crumb == "overview"
        assert app_of(screen).framed.rank == 0


@played
async def test_outliers_can_be_filtered_and_sorted() -> None:
    async with rank_screen(PIPELINE, 1) as (screen, pilot):
        table = screen.query_one(Table)
        await type_line(pilot, "slash", "mlp step:6")
        assert {(row.step, row.operator) for row in map(table.row, range(table.count))} == {(6, "kair_sample::mlp")}
        assert f"outliers  {table.count} of {table.total}; " in screen_text(app_of(screen))
        await pilot.press("s")
        assert [row.score for row in map(table.row, range(table.count))] == sorted(
            (row.score for row in map(table.row, range(table.count))), reverse=True
        )
        await pilot.press("S")
        scores = [row.score for row in map(table.row, range(table.count))]
        assert scores == sorted(scores)


@played
async def test_the_operation_under_the_cursor_is_told_in_full() -> None:
    async with rank_screen(INPUT, 1, size=(160, 50)) as (screen, pilot):
        await pilot.press("x")
        status = screen.query_one(StatusLine)
        name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        assert status.text == f"step 7 · input · 30.1 ms instead of 3.25 ms · 27.4 % of the step · {name}"
        await pilot.press("down")
        assert status.text.startswith("step 12 · input · ")
        assert status.text in screen.copied()


@played
async def test_what_takes_no_longer_than_among_peers_is_no_outlier_but_counted() -> None:
    async with rank_screen(INPUT, 1, size=(160, 50)) as (screen, pilot):
        await pilot.press("x")
        found = printed(screen.commands()[1])["outliers"]
        late = [row for row in found if row["duration_us"] < LONGER * row["expected_duration_us"]]
        table = screen.query_one(Table)
        shown = [table.row(at) for at in range(table.count)]
        assert late and len(shown) == len(found) - len(late)
        assert all(row.excess_us > 0 and row.duration_us > row.expected_duration_us for row in shown)
        assert f"; {len(late)} only began late; " in screen_text(app_of(screen))


@played
async def test_enter_asks_why_the_operation_was_late_and_esc_comes_back() -> None:
    async with rank_screen(INPUT, 1) as (screen, pilot):
        app, row = app_of(screen), screen.query_one(Table).chosen
        await pilot.press("enter")
        await until(pilot, lambda: app.screen is not screen and answered(app))
        place = getattr(app.screen, "place", None)
        assert place == Place("blame", rank=1, operator=row.operator, step=7)
        assert "rank 1" in screen_text(app)
        await pilot.press("escape")
        assert app.screen is screen
        assert screen.query_one(Table).chosen == row


@played
async def test_chosen_steps_narrow_it_too() -> None:
    async with rank_screen(INPUT, 1) as (screen, pilot):
        screen.narrow((7,))
        await until(pilot, lambda: answered(app_of(screen)))
        assert [row.step for row in map(screen.query_one(Table).row, range(1))] == [7]
        assert screen.commands()[0] == f"kair rank {INPUT} --rank 1 --step 7"


@played
async def test_the_smallest_terminal_shows_it() -> None:
    async with rank_screen(INPUT, 1, size=(60, 20)) as (screen, _):
        shown = screen_text(app_of(screen))
        assert "input          29.7 ms +26.5 ms" in shown
        assert "outliers  18 in 4 operators; 1 only began late; " in shown
        assert "▸" in shown


@played
async def test_enter_before_the_outliers_are_there_opens_the_first_of_them() -> None:
    async with opened(INPUT) as (app, pilot):
        app.go_to_rank(1)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, ViewScreen) and app.screen.place.screen == "blame")
