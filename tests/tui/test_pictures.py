"""Pictures of the screens of a job: wide and narrow, in ASCII, and without colours."""

import pytest
from support.places import SAMPLES
from support.screen_text import answered, assert_snapshot, opened, played, until

from kair_tui.render.terminal import Look
from kair_tui.tui.frame.app import KairApp
from kair_tui.tui.frame.view import ViewScreen
from kair_tui.tui.widgets.lateness_map import LatenessMap

HOW = {
    "80x24": ((80, 24), Look()),
    "160x50": ((160, 50), Look()),
    "smallest": ((60, 20), Look()),
    "ascii": ((80, 24), Look(ascii_only=True)),
    "no_colour": ((80, 24), Look(colours="none")),
    "bare": ((160, 50), Look(ascii_only=True, colours="none")),
}
"""By the end of a picture's name."""

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_places")]


def settled(app: KairApp) -> bool:
    """Whether nothing is left to ask, nor of the map of who was late, which comes after the verdict."""
    screen = app.screen
    asked = isinstance(screen, ViewScreen) and answered(app) and screen.shown == dict(screen.questions())
    return asked and all(late.has_map or not late.display for late in screen.query(LatenessMap))


@pytest.mark.parametrize(
    ("name", "job", "keys"),
    [
        ("overview_80x24", "slow_operator", ""),
        ("overview_160x50", "two_hosts_slow_input", ""),
        ("overview_smallest", "two_hosts_slow_input", ""),
        ("overview_ascii", "two_hosts_slow_input", ""),
        ("overview_no_colour", "healthy", ""),
        ("overview_pipeline_80x24", "pipeline_slow_operator", ""),
        ("rank_80x24", "slow_input", "g 1 enter"),
        ("rank_160x50", "pipeline_slow_operator", "g 1 enter"),
        ("rank_ascii", "slow_input", "g 0 enter"),
        ("rank_no_colour", "healthy", "g 2 enter"),
        ("blame_80x24", "slow_operator", "3"),
        ("blame_160x50", "pipeline_slow_operator", "3"),
        ("blame_ascii", "pipeline_slow_operator", "3"),
        ("blame_no_colour", "healthy", "3"),
        ("timeline_80x24", "slow_operator", "4"),
        ("timeline_160x50", "slow_operator", "4"),
        ("timeline_ascii", "slow_operator", "4"),
        ("timeline_no_colour", "slow_operator", "4"),
        ("whatif_80x24", "slow_host", "5 space"),
        ("whatif_160x50", "pipeline_slow_operator", "5 space"),
        ("whatif_ascii", "pipeline_slow_operator", "5 space"),
        ("whatif_no_colour", "healthy", "5"),
        ("operators_80x24", "slow_operator", "6"),
        ("operators_bare", "slow_operator", "6"),
        ("collectives_80x24", "two_hosts_healthy", "7"),
        ("collectives_bare", "two_hosts_healthy", "7"),
        ("frequency_80x24", "slow_input", "F"),
        ("frequency_160x50", "slow_host", "F"),
        ("frequency_ascii", "intermittent_stall", "F"),
        ("frequency_no_colour", "busy_host", "F"),
        ("matrix_80x24", "slow_input", "D"),
        ("matrix_160x50", "two_hosts_slow_input", "D"),
        ("matrix_ascii", "slow_host", "D"),
        ("matrix_no_colour", "busy_host", "D"),
    ],
)
@played
async def test_a_screen_looks_like_its_picture(name: str, job: str, keys: str) -> None:
    size, look = next(how for end, how in HOW.items() if name.endswith(end))
    async with opened(str(SAMPLES / job), size=size, look=look) as (app, pilot):
        for key in keys.split():
            await pilot.press(key)
            await until(pilot, lambda: app.screen.is_typing or settled(app))
        await until(pilot, lambda: settled(app))
        assert_snapshot(app, name)
