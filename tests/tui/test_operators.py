"""The operators screen: from types to operators to the rank that spends most on one."""

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

from kair_tui.tui.screens.frequency import FrequencyScreen
from kair_tui.tui.screens.operators import OperatorsScreen
from kair_tui.tui.screens.rank import RankScreen

SLOW = str(SAMPLES / "slow_operator")

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_places")]


@played
async def test_a_type_leads_to_its_operators_and_one_to_the_rank_with_most() -> None:
    async with opened(SLOW) as (app, pilot):
        await go(app, pilot, "6", to=OperatorsScreen)
        assert "of the 4.57 s that 4 ranks took for 12 steps: compute 74.3 %" in screen_text(app)
        await pilot.press("shift+tab", "enter")
        assert "only compute" in screen_text(app)
        assert not any("gloo:all_reduce" in line for line in screen_lines(app)[10:])
        await type_line(pilot, "slash", "mlp")
        await pilot.press("s", "s")  # by total, then by what the rank with most spends
        lines = screen_lines(app)
        assert next(line for line in lines if line.startswith("▸ kair_sample::mlp ")).split()[-1] == "2"
        assert any("on rank 2, median 12.3 ms" in line for line in lines)
        await go(app, pilot, "F", to=FrequencyScreen)
        await go(app, pilot, "6", to=OperatorsScreen)
        await type_line(pilot, "slash", "mlp type:compute")
        await go(app, pilot, "s", "s", "enter", to=RankScreen)
        assert isinstance(app.screen, RankScreen) and app.screen.place.rank == 2
