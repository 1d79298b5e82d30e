"""Ways through the screens: what keys, clicks and typed lines do wherever one is, and what came too late."""

import asyncio
import random
from threading import Event

import pytest
from support.places import SAMPLES
from support.screen_text import answered, go, opened, played, screen_lines, screen_text, type_line, until
from textual import events
from textual.pilot import Pilot
from textual.widgets import Input

from kair_tui.cli.wanted import JobWanted
from kair_tui.render.terminal import Look
from kair_tui.shell.runner import run_line
from kair_tui.tui.frame.app import KairApp
from kair_tui.tui.frame.command_line import ChoiceScreen, completed
from kair_tui.tui.frame.output import OutputScreen
from kair_tui.tui.screen_registry import SCREENS
from kair_tui.tui.screens.blame import BlameScreen
from kair_tui.tui.screens.matrix import MatrixScreen
from kair_tui.tui.screens.overview import OverviewScreen
from kair_tui.tui.screens.rank import RankScreen
from kair_tui.tui.session import Session
from kair_tui.tui.widgets.lists import Findings
from kair_tui.tui.widgets.styles import styles_of

SLOW = str(SAMPLES / "slow_operator")
FOUND = "1 ▲ rank 2 on node0"

pytestmark = [pytest.mark.usefixtures("own_places"), pytest.mark.slow]


def path(app: KairApp) -> str:
    """The path at the top."""
    return screen_lines(app)[0].split("  ")[1].strip()


@played
async def test_screens_with_numbers_stand_side_by_side() -> None:
    async with opened(SLOW) as (app, pilot):
        for key in "35D":
            await go(app, pilot, key)
        assert path(app) == "slow_operator › overview › matrix"
        assert isinstance(app.screen, MatrixScreen)
        await pilot.press("escape")
        assert path(app) == "slow_operator › overview"


@played
async def test_path_and_footer_take_the_mouse() -> None:
    async with opened(SLOW) as (app, pilot):
        await go(app, pilot, "enter", "3")
        assert isinstance(app.screen, BlameScreen)
        await pilot.click("#header", offset=(screen_lines(app)[0].index("overview"), 0))
        assert isinstance(app.screen, OverviewScreen)
        await pilot.click("#footer", offset=(screen_lines(app)[-1].index("help"), 0))
        await until(pilot, lambda: path(app) == "slow_operator › overview › help")
        await pilot.click("#header", offset=(screen_lines(app)[0].index("slow_operator"), 0))
        assert isinstance(app.screen, OverviewScreen)


@played
async def test_where_one_is_and_what_is_left_out_stay_on_a_narrow_screen() -> None:
    async with opened(SLOW, size=(60, 20)) as (app, pilot):
        await type_line(pilot, "slash", "rank:1-3")
        await pilot.press("right")
        assert screen_lines(app)[0].startswith(" kair  slow_operator › overview ")
        assert screen_lines(app)[0].endswith("filter rank:1-3")
        await go(app, pilot, "3")
        await type_line(pilot, "slash", "operator:kair_sample !idle")
        assert screen_lines(app)[0].startswith(" kair  … › blame ")
        assert screen_lines(app)[0].endswith("filter operator:kair_sample !idle")


@played
async def test_esc_takes_a_filter_away_and_a_wrong_one_leaves_none() -> None:
    async with opened(SLOW) as (app, pilot):
        await type_line(pilot, "slash", "rank:3")
        assert FOUND not in screen_text(app)
        assert "esc back" in screen_lines(app)[-1]
        await pilot.press("escape")
        assert isinstance(app.screen, OverviewScreen)
        assert FOUND in screen_text(app)
        assert "filter" not in screen_lines(app)[0]
        await type_line(pilot, "slash", "rank:3")
        await type_line(pilot, "slash", "colour:red")
        assert "no filter: no field 'colour'" in screen_text(app)
        assert FOUND in screen_text(app)
        await pilot.press("slash")
        assert app.screen.query_one(Input).value == "colour:red"


@played
async def test_without_a_rank_under_the_cursor_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, compute = Event(), Session._compute
    monkeypatch.setattr(Session, "_compute", lambda self, question: go_on.wait() and compute(self, question))
    app = KairApp(JobWanted(SLOW), Look())
    async with app.run_test() as pilot:
        await until(pilot, lambda: isinstance(app.screen, OverviewScreen))
        await pilot.press("2")
        await until(pilot, lambda: app.framed.is_asking)
        await pilot.press("1", "enter")
        assert isinstance(app.screen, RankScreen)
        assert app.screen.rank == 1
        go_on.set()
        await until(pilot, lambda: answered(app))


@played
async def test_what_is_answered_late_waits_and_takes_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = Event()
    held = lambda *of: go_on.wait() and run_line(*of)  # noqa: E731
    monkeypatch.setattr("kair_tui.shell.runner.run_line", held)
    async with opened(SLOW) as (app, pilot):
        await go(app, pilot, "enter")
        await type_line(pilot, "colon", "steps")
        await pilot.press("escape", "slash", *"ra")
        go_on.set()
        await until(pilot, lambda: not app.is_busy)
        assert isinstance(app.screen, OverviewScreen)
        await pilot.press("escape")
        await until(pilot, lambda: "kair steps has answered: ctrl+p opens it" in screen_text(app))
        await type_line(pilot, "ctrl+p", "answered")
        assert isinstance(app.screen, OutputScreen)
        assert path(app) == "slow_operator › overview › steps"


@played
async def test_lines_are_completed_and_what_failed_is_not_proposed() -> None:
    async with opened(SLOW) as (app, pilot):
        state = app.shell_state
        state.hold(app.session, None)
        for line, whole in (
            ("loc", "localize"),
            ("pinpoint --r", "pinpoint --rank"),
            ("pinpoint --rank ", "pinpoint --rank 2"),
            ("pinpoint --rank 2 --me", "pinpoint --rank 2 --method"),
            ("localize --method p", "localize --method paper"),
            ("frequency --operator kair_sample::m", "frequency --operator kair_sample::mlp"),
            ("schema bl", "schema blame"),
            ("nothing --r", None),
        ):
            assert completed(line, (), state, 2) == whole
        await type_line(pilot, "colon", "steps --nonsense")
        await until(pilot, lambda: "kair: error" in screen_text(app))
        assert completed("st", app.worked, state, 2) == "steps"
        await pilot.press("colon", *"ste", "tab")
        await until(pilot, lambda: app.screen.query_one(Input).value == "steps")
        await pilot.press("escape")
        await type_line(pilot, "colon", "help")
        assert path(app) == "slow_operator › overview › help"
        await pilot.press("escape")
        await type_line(pilot, "colon", "q")
    assert app.return_value == 0


@played
async def test_the_palette_asks_for_what_a_command_needs() -> None:
    async with opened(SLOW) as (app, pilot):
        await pilot.press("ctrl+p")
        assert isinstance(app.screen, ChoiceScreen)
        app.screen.query_one(Input).value = ": pinpoint outlying"
        await pilot.pause()
        await pilot.press("enter")
        await until(pilot, lambda: app.framed.is_asking)
        assert app.screen.query_one(Input).value == "pinpoint --rank 2"


@played
async def test_the_cursor_is_no_block_of_alarm() -> None:
    async with opened(SLOW) as (app, pilot):
        findings = app.screen.query_one(Findings)
        findings.focus()
        await pilot.pause()
        styles = {segment.style for segment in findings.render_line(0)}
        assert {style.color for style in styles if style} == {styles_of(findings.look).base.color}
        assert all(style.reverse for style in styles if style)


async def _storm(pilot: Pilot[int]) -> None:
    for size in ((59, 19), (160, 40), (80, 24)):
        await pilot.resize_terminal(*size)
    await pilot.pause()


@pytest.mark.usefixtures("painted")
@played
async def test_every_screen_stands_a_storm_of_resizes() -> None:
    async with opened(SLOW) as (app, pilot):
        for entry in SCREENS:
            app.go_to_screen(entry.name)
            await until(pilot, lambda: not app.is_busy)
            await _storm(pilot)
            await pilot.press("slash", *"1", "escape")
        for key in ("question_mark", "ctrl+p", "o", "e"):
            await pilot.press(key)
            await _storm(pilot)
            await pilot.press("escape")


@played
async def test_enter_twice_in_a_row_chooses_once() -> None:
    async with opened(SLOW) as (app, pilot):
        overview = app.screen
        await pilot.press("ctrl+p")
        assert isinstance(app.screen, ChoiceScreen)
        over = app.screen
        over.query_one(Input).value = "overview"
        await pilot.pause()
        over.on_input_submitted()
        over.on_input_submitted()
        await pilot.pause()
        assert app.screen is overview
        assert app.failure is None and not app.defects


@played
async def test_screens_that_are_left_before_they_are_made_leave_no_trace() -> None:
    async with opened(SLOW) as (app, pilot):
        for key in (
            "4",
            "escape",
            "3",
            "v",
            "escape",
            "D",
            "1",
            "6",
            "escape",
            "o",
            "escape",
            "4",
            "1",
            "ctrl+p",
            "escape",
        ):
            app.post_message(events.Key(key, None))
        app.job_watch.reload()
        await until(pilot, lambda: isinstance(app.screen, OverviewScreen) and answered(app) and not app.is_busy)
        assert app.failure is None and not app.defects


@played
async def test_a_line_typed_ahead_is_whole_however_its_keys_come() -> None:
    line, chance = "pinpoint --rank 2", random.Random(5)
    async with opened(SLOW) as (app, pilot):
        for most in (1, 2, 4, 8, 16) * 3:
            app.post_message(events.Key("colon", ":"))
            for letter in line:
                for _ in range(chance.choice((0, chance.randint(0, most)))):
                    await asyncio.sleep(0)
                app.post_message(events.Key({" ": "space", "-": "minus"}.get(letter, letter), letter))
            await until(pilot, lambda: bool(app.screen.query(Input)))
            await pilot.pause()
            assert app.screen.query_one(Input).value == line
            await pilot.press("escape")
