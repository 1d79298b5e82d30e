"""The what-if screen: pictures of it, what its keys do, and that its figures are those of the commands it names."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.cli_samples import printed
from support.kept_cases import assert_kept
from support.places import BYTEDANCE, SAMPLES
from support.screen_text import answered, opened, played, screen_text, type_line, until
from textual.pilot import Pilot

from kair_engine.errors import UsageError
from kair_tui.render.terminal import Look
from kair_tui.render.triage import fix_option
from kair_tui.render.units import duration, percent, signed_duration
from kair_tui.tui.fix_selection import in_words
from kair_tui.tui.frame.app import KairApp
from kair_tui.tui.screens.whatif import WhatifScreen
from kair_tui.tui.widgets.bars import PriceBars, StepBars
from kair_tui.tui.widgets.fix_list import FixList, typed_fix
from kair_tui.tui.widgets.grid import WorkerHeat
from kair_tui.tui.widgets.header_and_footer import StatusLine

HOSTS = str(SAMPLES / "slow_host")
STAGES = str(SAMPLES / "pipeline_slow_operator")
SLOW = str(SAMPLES / "slow_operator")
HEALTHY = str(SAMPLES / "healthy")
PUBLISHED = BYTEDANCE


pytestmark = [pytest.mark.usefixtures("own_places"), pytest.mark.slow]


@asynccontextmanager
async def whatif(
    job: str, *, size: tuple[int, int] = (80, 24), look: Look | None = None
) -> AsyncIterator[tuple[KairApp, Pilot[int], WhatifScreen]]:
    """The screen with every fix priced."""
    async with opened(job, size=size, look=look) as (app, pilot):
        await pilot.press("5")
        await until(pilot, lambda: settled(app))
        assert isinstance(app.screen, WhatifScreen)
        yield app, pilot, app.screen


def settled(app: KairApp) -> bool:
    """Whether nothing is left to ask."""
    screen = app.screen
    return isinstance(screen, WhatifScreen) and answered(app) and screen.shown == dict(screen.questions())


@played
async def test_chosen_fixes_are_priced_together_and_the_command_says_the_same() -> None:
    async with whatif(HOSTS) as (app, pilot, screen):
        bars = screen.query_one(StepBars)
        assert bars.lines[1].startswith("with no fix")
        await pilot.press("space", "down", "down", "down", "space")
        await until(pilot, lambda: settled(app))
        *_, command = screen.commands()
        assert command.endswith("--fix rank=4-7+kind=compute --fix kind=communication --only-fixes")
        together = printed(command)["fixes"][-1]
        assert together["fix"] == "all together"
        assert bars.lines[1].startswith(f"with 2 fixes {duration(together['step_time_us'])} ")
        assert f"{together['throughput_gain']:+.2%}" in bars.lines[1]
        await pilot.press("space")
        await until(pilot, lambda: settled(app))
        assert bars.lines[1].startswith("with 1 fix ")
        await pilot.press("backspace")
        await until(pilot, lambda: settled(app))
        assert bars.lines[1].startswith("with no fix")


@played
async def test_fixes_and_what_a_gpu_costs_stay_when_the_screen_is_left() -> None:
    async with whatif(HOSTS) as (app, pilot, screen):
        await pilot.press("space")
        await type_line(pilot, "dollar_sign", "2.5")
        await until(pilot, lambda: settled(app))
        await type_line(pilot, "plus", "rank=1")
        await until(pilot, lambda: settled(app) and "2 fixes" in screen.query_one(StepBars).lines[1])
        before = screen_text(app).splitlines()[:-3]
        await pilot.press("escape", "5")
        await until(pilot, lambda: settled(app) and app.screen is not screen)
        # Below them is what the cursor is on.
        assert screen_text(app).splitlines()[:-3] == before


@pytest.mark.parametrize("job", [HOSTS, STAGES, "trace-ST.parquet"])
@played
async def test_every_figure_is_one_of_the_commands(job: str) -> None:
    path = Path(job) if Path(job).is_absolute() else PUBLISHED / job
    if not path.exists():
        pytest.skip("the published traces are not here")
    async with whatif(str(path), size=(160, 50)) as (app, pilot, screen):
        answers = {name: printed(command) for name, command in zip(screen.questions(), screen.commands(), strict=True)}
        whole = answers["whatif"]
        now, _, ideal = screen.query_one(StepBars).lines
        assert now == f"now {duration(whole['step_time_us'])} as recorded"
        without = f"S {whole['slowdown']:.4f}, {percent(whole['waste'])} less: "
        assert f"no straggler {duration(whole['ideal_step_time_us'])} {without}" in ideal
        assert f"{whole['gpu_hours_per_day']:,.1f} GPU-hours/day" in ideal
        text = screen_text(app)
        for fix in answers["fixes"]["fixes"][:-1]:
            figures = duration(fix["step_time_us"]), signed_duration(-fix["saved_us"]), f"{fix['throughput_gain']:+.2%}"
            (line,) = [line for line in text.splitlines() if f"[ ] {fix['fix']} " in line]
            assert all(figure in line for figure in figures)
        for remedy in whole["remedies"]:
            assert duration(remedy["step_time_us"]) in text
        by_rank = whole["saved_by_rank_us"]
        heat = screen.query_one(WorkerHeat)
        heat.focus()
        for rank in list(by_rank)[:3]:
            heat.move_to(int(rank))
            await pilot.pause()
            status = screen.query_one(StatusLine).text
            assert f"costs {duration(max(by_rank[rank], 0.0))} a step" in status
            assert f"S_w {max(whole['by_rank'][rank], 1.0):.3f}" in status
        for parts in ("saved_by_operator_type_us", "saved_by_stage_us", "saved_by_host_us"):
            worth = [us for us in whole[parts].values() if us > 0.0005 * whole["step_time_us"]]
            for saved_us in worth if len(whole[parts]) > 1 else ():
                assert f" {duration(saved_us)} " in screen_text(app)
            if len(whole[parts]) > 1:
                await pilot.press("v")


@played
async def test_workers_show_what_each_adds_alone_and_by_a_key_what_its_fix_saves() -> None:
    async with whatif(STAGES, size=(160, 50)) as (app, pilot, screen):
        whole = printed(screen.commands()[0])
        alone = [f"1 █ {whole['by_rank']['1']:.3f}", "S_w · <1.006"]
        saved = [f"1 ▒ {percent(whole['saved_by_rank_us']['1'] / whole['step_time_us'])}", "costs · <1%"]
        assert all(text in screen_text(app) for text in alone)
        await pilot.press("b")
        assert all(text in screen_text(app) for text in saved)
        await pilot.press("right_square_bracket", "b")
        assert f"1 █ {whole['per_step'][0]['by_rank']['1']:.3f}" in screen_text(app)


@played
async def test_a_simulation_that_is_far_off_is_said_first() -> None:
    async with whatif(str(SAMPLES / "busy_host")) as (app, _, _screen):
        verdict = screen_text(app).split(" now ")[0]
        assert "read the figures with care: the replay error is 26.4 %" in " ".join(verdict.split())


@played
async def test_workers_and_prices_of_one_step() -> None:
    async with whatif(STAGES, size=(160, 50)) as (app, pilot, screen):
        whole = printed(screen.commands()[0])
        await pilot.press("right_square_bracket")
        first = whole["per_step"][0]
        assert f"step {first['step']}: S {first['slowdown']:.4f}" in screen_text(app)
        prices = screen.query_one(PriceBars).items
        saved_us = next(iter(first["saved_by_operator_type_us"].values()))
        assert prices[1].costs == pytest.approx(saved_us / first["replayed_us"])
        await pilot.press("left_square_bracket", "left_square_bracket")
        assert f"step {whole['per_step'][-1]['step']}: S" in screen_text(app)


@played
async def test_a_typed_fix_is_listed_and_chosen_and_a_wrong_one_says_why() -> None:
    async with whatif(HOSTS) as (app, pilot, screen):
        status = screen.query_one(StatusLine)
        await type_line(pilot, "plus", "speed=2")
        assert status.text.startswith("'speed=2' is no fix: use rank=")
        await type_line(pilot, "plus", "rank=77")
        await until(pilot, lambda: "nothing in the chosen steps fits rank=77 (the ranks are 0-7)" in status.text)
        await type_line(pilot, "plus", "op=kair*:0.5")
        await until(pilot, lambda: len(screen.shown) == 5 and settled(app))
        assert "[x] --scale 'op=kair*:0.5'" in screen_text(app)
        assert screen.commands()[-1].endswith("--scale 'op=kair*:0.5' --only-fixes")
        await type_line(pilot, "plus", "rank=5+kind=stops,compute,host")
        await until(pilot, lambda: "[x] rank=5+kind=" in screen_text(app) and settled(app))
        # Why it is listed does not fit beside it, and is told below.
        lines = [line.strip(" │") for line in screen_text(app).splitlines()]
        assert lines[next(at for at, line in enumerate(lines) if line.startswith("[x] rank=5+kind=")) + 1] == "typed"


@played
async def test_what_policies_would_save_stands_beside_the_fixes() -> None:
    async with whatif(SLOW, size=(120, 50)) as (app, _, screen):
        [command] = [line for line in screen.commands() if line.startswith("kair mitigate simulate ")]
        answer = printed(command)
        assert answer["replay"]["saves"] == "continuous"
        lines = screen_text(app).splitlines()
        at = next(at for at, line in enumerate(lines) if "mitigation  continuous would save about " in line)
        assert [line.strip("▸ ").split()[0] for line in lines[at + 2 : at + 5]] == [
            row["policy"] for row in answer["simulated"]
        ]
        assert duration(answer["simulated"][0]["step_us"]) in lines[at + 2]


@played
async def test_the_price_of_a_gpu_hour_shows_money() -> None:
    async with whatif(HEALTHY, size=(160, 50)) as (app, pilot, screen):
        await type_line(pilot, "dollar_sign", "cheap")
        assert "'cheap' is no price of a GPU hour" in screen.query_one(StatusLine).text
        await type_line(pilot, "dollar_sign", "2.5USD")
        await until(pilot, lambda: settled(app))
        answer = printed(screen.commands()[2])
        assert screen.commands()[2].endswith("--gpu-cost 2.5USD")
        assert f"({answer['cost_per_day']:,.2f} USD)" in screen.query_one(StepBars).lines[2]
        assert f" {answer['fixes'][0]['cost_per_day']:,.2f} USD" in screen_text(app)


@played
async def test_fixes_are_filtered_and_sorted() -> None:
    async with whatif(HOSTS) as (_, pilot, screen):
        await type_line(pilot, "slash", "origin:finding")
        assert [fix.text for fix in screen.query_one(FixList).items if fix.fixes] == ["rank=4-7+kind=compute"]
        assert screen.query_one(StatusLine).text.startswith("1 of ")
        await type_line(pilot, "slash", "")
        await pilot.press("s")
        saved = [fix.saved_us or 0.0 for fix in screen.query_one(FixList).items if fix.fixes]
        assert len(saved) > 1
        assert saved == sorted(saved, reverse=True)


@played
async def test_it_opens_on_the_rank_one_came_from_and_fits_a_small_terminal() -> None:
    async with whatif(STAGES, size=(60, 20)) as (app, pilot, screen):
        assert screen.rank == 1
        assert "▸fixes" in screen_text(app)
        await pilot.press("tab")
        assert "▸workers" in screen_text(app)
        await pilot.press("tab")
        assert "▸prices" in screen_text(app)


TYPED = ["rank=3", "--fix rank=3", "--fix=rank=3", "op='flash*':0.5", "--scale op=aten::mm:2", "op=aten::mm"]
TYPED += ["op='my layer; reboot'", "--fix rank=4-7+kind=compute", "--scale op=flash*:0.5", "--fix host=node1"]


def test_what_is_typed_is_an_option_and_told_in_words() -> None:
    said = {typed: [fix_option(typed_fix(typed)), in_words([typed_fix(typed)])] for typed in TYPED}
    assert_kept("typed_fixes", said)


@pytest.mark.parametrize("typed", ["", "rank", "--step 4", "rank='3", "--scale rank=3"])
def test_what_is_no_option_is_turned_down(typed: str) -> None:
    with pytest.raises(UsageError):
        typed_fix(typed)
