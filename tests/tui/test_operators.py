"""The operators screen: from types to operators to the rank that spends most on one."""

import pytest
from support.places import SAMPLES
from support.screen_text import answered, assert_snapshot, opened, played, screen_lines, screen_text, type_line, until
from textual.pilot import Pilot

from kair_tui.render.terminal import Look
from kair_tui.tui.frame.app import KairApp
from kair_tui.tui.screens.frequency import FrequencyScreen
from kair_tui.tui.screens.operators import OperatorsScreen
from kair_tui.tui.screens.rank import RankScreen

SLOW = str(SAMPLES / "slow_operator")

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_places")]


async def shown(app: KairApp, pilot: Pilot[int]) -> None:
    await pilot.press("6")
    await until(pilot, lambda: isinstance(app.screen, OperatorsScreen) and answered(app))


@pytest.mark.parametrize(
    ("name", "size", "look"),
    [("operators_80x24", (80, 24), Look()), ("operators_ascii", (160, 50), Look(ascii_only=True, colours="none"))],
)
@played
async def test_it_looks_like_its_picture(name: str, size: tuple[int, int], look: Look) -> None:
    async with opened(SLOW, size=size, look=look) as (app, pilot):
        await shown(app, pilot)
        assert_snapshot(app, name)


@played
async def test_a_type_leads_to_its_operators_and_one_to_the_rank_with_most() -> None:
    async with opened(SLOW) as (app, pilot):
        await shown(app, pilot)
        assert "of the 4.57 s that 4 ranks took for 12 steps: compute 74.3 %" in screen_text(app)
        await pilot.press("shift+tab", "enter")
        assert "only compute" in screen_text(app)
        assert not any("gloo:all_reduce" in line for line in screen_lines(app)[10:])
        await type_line(pilot, "slash", "mlp")
        await pilot.press("s", "s")  # by total, then by what the rank with most spends
        lines = screen_lines(app)
        assert next(line for line in lines if line.startswith("▸ kair_sample::mlp ")).split()[-1] == "2"
        assert any("on rank 2, median 12.3 ms" in line for line in lines)
        await pilot.press("F")
        await until(pilot, lambda: isinstance(app.screen, FrequencyScreen) and answered(app))
        await pilot.press("6")
        await until(pilot, lambda: isinstance(app.screen, OperatorsScreen) and answered(app))
        await type_line(pilot, "slash", "mlp type:compute")
        await pilot.press("s", "s", "enter")
        await until(pilot, lambda: isinstance(app.screen, RankScreen) and answered(app))
        assert isinstance(app.screen, RankScreen) and app.screen.place.rank == 2
