"""Screens of a job whose hosts run ahead of their devices: what they say of it, and that nothing before 0 is lost."""

from collections.abc import Iterator

import pytest
from support.answers import answered_once
from support.cli_samples import store_variables
from support.places import SAMPLES
from support.run_ahead_builder import LEAD, write_run_ahead
from support.screen_text import front, go, opened, played, screen_text, type_line, until

from kair_tui.tui.screens.rank import RankScreen
from kair_tui.tui.screens.timeline import TimelineScreen
from kair_tui.tui.screens.whatif import WhatifScreen
from kair_tui.tui.widgets.header_and_footer import StatusLine

SYNCHRONISED = str(SAMPLES / "slow_operator")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The path of a job whose rank 1 has a slow input, which costs nothing."""
    folder = tmp_path_factory.mktemp("run_ahead")
    with pytest.MonkeyPatch.context() as patch, answered_once():
        store_variables(patch, folder)
        patch.setenv("XDG_DATA_HOME", str(folder / "data"))
        yield str(write_run_ahead(folder / "job"))


def said(app: object) -> str:
    """The screen's text as one line."""
    return " ".join(screen_text(app).split())  # type: ignore[arg-type]


@played
async def test_the_first_screen_says_what_is_absorbed_and_whose_steps_these_are(tiny: str) -> None:
    async with opened(tiny, size=(100, 30)) as (app, pilot):
        assert "rank 1's input takes 120 µs a step longer, which costs nothing: its host is 1.32 ms ahead" in said(app)
        assert "findings none; 1 delay absorbed" in said(app)
        assert "absorbed: rank 1's input takes 120 µs a step longer than its peers'; its host is" in said(app)
        assert "on the devices: hosts run ahead" in said(app)
        # A filter leaves what is about ranks that match.
        await type_line(pilot, "slash", "rank:2")
        await until(pilot, lambda: "absorbed: " not in said(app))


@played
async def test_a_rank_has_its_lead(tiny: str) -> None:
    async with opened(tiny, size=(100, 30)) as (app, pilot):
        await go(app, pilot, "enter", to=RankScreen)
        assert "host: 1.32 ms ahead of its device at least; it could take 609 µs a step longer" in said(app)


@played
async def test_a_timeline_goes_back_to_what_hosts_did_before_the_step(tiny: str) -> None:
    async with opened(tiny, size=(100, 30)) as (app, pilot):
        await go(app, pilot, "enter", to=RankScreen)
        await go(app, pilot, "4", to=TimelineScreen)
        screen = front(app, TimelineScreen)
        assert screen._result is not None
        assert screen._result.begin_us == screen._result.earliest_us == -LEAD
        assert "1.50 ms before the step: 150 µs instead of 30.0 µs" in said(app)
        assert "hosts run ahead: the step is the devices', from 0 on" in said(app)
        await go(app, pilot, "W")
        assert (screen._result.begin_us, screen._result.end_us) == (0, screen._result.step_us)
        # Half a view earlier, and again, is before the step; further back there is nothing.
        for _ in range(5):
            await go(app, pilot, "less_than_sign")
        assert screen._result.begin_us == -LEAD
        assert " before the step" in app.screen.query_one(StatusLine).text


@played
async def test_a_fix_that_the_host_absorbs_is_told(tiny: str) -> None:
    async with opened(tiny, size=(100, 30)) as (app, pilot):
        await go(app, pilot, "5", to=WhatifScreen)
        await type_line(pilot, "plus", "rank=1+kind=input")
        await until(
            pilot, lambda: "absorbed: with rank=1+kind=input a step takes as long: rank 1's host is" in said(app)
        )


@played
async def test_nothing_of_it_is_said_of_other_jobs() -> None:
    async with opened(SYNCHRONISED, size=(100, 30)) as (app, pilot):
        assert "hosts run ahead" not in said(app)
        await go(app, pilot, "4", to=TimelineScreen)
        screen = front(app, TimelineScreen)
        assert "hosts run ahead" not in said(app)
        await go(app, pilot, "W", "less_than_sign")
        assert screen._result is not None
        assert screen._result.begin_us == 0
