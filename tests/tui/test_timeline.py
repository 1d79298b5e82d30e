"""The timeline screen: pictures of it, where it is reached from, and what its keys do."""

from dataclasses import replace

import pytest
from support.cli_samples import printed
from support.places import SAMPLES
from support.screen_text import answered, go, opened, played, screen_text, until
from textual.geometry import Size
from textual.pilot import Pilot

from kair_engine.results.whatif import Fix
from kair_tui.render.units import duration
from kair_tui.tui.frame.app import KairApp
from kair_tui.tui.screens.timeline import TimelineScreen
from kair_tui.tui.session import Place
from kair_tui.tui.widgets.header_and_footer import StatusLine
from kair_tui.tui.widgets.timeline_rows import TimelineRows

JOB = str(SAMPLES / "slow_operator")

pytestmark = [pytest.mark.usefixtures("own_places"), pytest.mark.slow]


async def shown(app: KairApp, pilot: Pilot[int], *keys: str) -> tuple[TimelineScreen, TimelineRows]:
    screen = await go(app, pilot, *keys, to=TimelineScreen)
    return screen, screen.query_one(TimelineRows)


@played
async def test_keys_move_the_view_and_the_cursor_and_o_prints_the_same() -> None:
    async with opened(JOB) as (app, pilot):
        screen, rows = await shown(app, pilot, "4")
        said = app.screen.query_one(StatusLine)
        assert "rank 2 at" in said.text
        assert "kair_sample::mlp" in said.text
        await shown(app, pilot, "n")
        assert "last in gloo:all_reduce, all waited" in said.text
        await shown(app, pilot, "plus", "plus", "greater_than_sign", "up")
        answer = printed(screen.commands()[0])
        row, at = rows.timeline_row, rows.time_us
        assert row is not None
        assert answer["begin_us"] < at < answer["end_us"] < answer["step_us"]
        assert [one["windows"] for one in answer["rows"]] == [one.windows for one in screen._result.rows]
        await shown(app, pilot, "W")
        assert "the whole step" in screen_text(app)
        await shown(app, pilot, "W", "backspace")
        assert "--from" not in screen.commands()[0]


@played
async def test_threads_fold_and_steps_follow_one_another() -> None:
    async with opened(JOB) as (app, pilot):
        screen, _ = await shown(app, pilot, "4")
        assert "thread" in screen_text(app)
        await shown(app, pilot, "x")
        assert "\n  thread" not in screen_text(app)
        await shown(app, pilot, "left_square_bracket")
        assert "--step 14" in screen.commands()[0]
        assert "step 14: rank 2" in screen_text(app)


@played
async def test_it_is_reached_from_a_finding_an_outlier_and_a_stop_of_a_path() -> None:
    async with opened(JOB) as (app, pilot):
        await pilot.press("tab", "tab")
        screen, _ = await shown(app, pilot, "4")
        assert screen.place == Place("timeline", 2, "kair_sample::mlp", 15)
        await go(app, pilot, "escape", "2")
        screen, _ = await shown(app, pilot, "4")
        place = screen.place
        assert (place.rank, place.operator) == (2, "kair_sample::mlp")
        answer = printed(screen.commands()[0])["around"]["operation"]
        assert answer["start_us"] == pytest.approx(place.at_us)
        await go(app, pilot, "escape", "3")
        await pilot.press("tab", "down")
        screen, _ = await shown(app, pilot, "4")
        assert screen.place.rank == 2
        assert screen.place.at_us is not None


@played
async def test_resizes_draw_it_for_the_new_size() -> None:
    async with opened(JOB) as (app, pilot):
        _, rows = await shown(app, pilot, "4")
        for size in ((160, 50), (60, 20), (130, 24), (80, 24)):
            await pilot.resize_terminal(*size)
            await until(pilot, lambda: answered(app))
            assert rows.column < rows.cells
            assert f"awaited\n{'0':<4}"[:7] in screen_text(app)


@played
async def test_of_answers_that_come_with_every_key_few_are_kept() -> None:
    async with opened(JOB) as (app, pilot):
        screen, rows = await shown(app, pilot, "4")
        for _ in range(150):
            rows.action_move(0, 1)
        await pilot.pause()
        kept = [one for one in screen.session._answers if one.command == "timeline"]
        assert len(kept) <= 100


@played
async def test_v_draws_the_same_part_of_the_step_with_the_chosen_fixes_and_as_recorded_again() -> None:
    async with opened(JOB, size=(120, 30)) as (app, pilot):
        screen, rows = await shown(app, pilot, "4")
        await shown(app, pilot, "v")
        assert "no fix is chosen" in screen_text(app)
        screen.session.fixes.add(Fix(ranks=(2,), kinds=("compute",)))
        recorded = (await shown(app, pilot, "W"))[0]._result
        await shown(app, pilot, "v")
        line = screen.commands()[0]
        assert "--fix rank=2+kind=compute" in line
        fixed = printed(line)["fixed"]
        assert [one["windows"] for one in fixed["rows"]] == [one.windows for one in screen._result.rows]
        assert f"with rank=2+kind=compute: step {duration(fixed['step_time_us'])}" in screen_text(app)
        assert screen.copied().startswith("with rank=2+kind=compute: step ")
        # The cursor tells what runs there then.
        await shown(app, pilot, "end")
        assert "nothing runs" in app.screen.query_one(StatusLine).text
        assert rows.time_us > fixed["step_us"]
        await shown(app, pilot, "v")
        assert screen._result.rows == recorded.rows
        assert "--fix" not in screen.commands()[0]


@played
async def test_a_result_that_comes_while_there_is_no_room_leaves_what_is_drawn() -> None:
    async with opened(JOB) as (app, pilot):
        _, rows = await shown(app, pilot, "4", "x")
        result, lines = rows._result, rows.rows.length
        assert result is not None and lines > 1
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(rows), "size", Size(0, 0))
            rows.show(replace(result, rows=result.rows[:1]), 0, None, 0.0)
        last = "".join(text for text, _ in rows.label(lines - 1, 0))
        rows.rearrange()
        assert last.strip() == str(result.rows[-1].rank) and rows.rows.length == 1
