"""The what-if screen shows rows as they are replayed: each is final, the rest says that it follows, and keys work."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Semaphore

import pytest
from support.places import SAMPLES
from support.screen_text import answered, assert_says, front, opened, played, screen_lines, screen_text, until
from textual.pilot import Pilot

from kair.app import question
from kair.app.answers.whatif import whatif
from kair_engine import progress
from kair_engine.cancelling import checkpoint
from kair_tui.tui.frame.app import KairApp
from kair_tui.tui.screens.overview import OverviewScreen
from kair_tui.tui.screens.whatif import WhatifScreen
from kair_tui.tui.widgets.bars import PriceBars, StepBars
from kair_tui.tui.widgets.fix_list import FixList
from kair_tui.tui.widgets.grid import WorkerHeat

STAGES = str(SAMPLES / "pipeline_slow_operator")
BAR_OF_KINDS = "by kind of time: what the fix of each saves; the rest follows"

pytestmark = [pytest.mark.usefixtures("own_places"), pytest.mark.slow]


@pytest.fixture(autouse=True)
def _answers_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """What-if analyses are not those of earlier tests."""
    known = question.answering
    monkeypatch.setattr(question, "answering", lambda command: whatif if command == "whatif" else known(command))


class Stops:
    """Lets the analysis go on to its next rows when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._rows = Semaphore(0)
        self.waits = 0
        show = progress.show_so_far

        def stopping(answer: object) -> None:
            if not self.waits:
                self._stop()
            show(answer)
            self._stop()

        monkeypatch.setattr("kair_engine.whatif.analysis.show_so_far", stopping)

    def _stop(self) -> None:
        self.waits += 1
        while not self._rows.acquire(timeout=0.005):
            checkpoint()

    def go_on(self, times: int = 1) -> None:
        """Let it show rows `times`."""
        self._rows.release(times)


@pytest.fixture
def stops(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stops]:
    """The analysis stops before the first rows that it shows, and after all of them."""
    made = Stops(monkeypatch)
    yield made
    made.go_on(1000)


def says(app: KairApp, text: str) -> bool:
    return text in screen_text(app)


def is_settled(app: KairApp) -> bool:
    screen = app.screen
    return isinstance(screen, WhatifScreen) and answered(app) and screen.shown == dict(screen.questions())


async def shown(app: KairApp, pilot: Pilot[int], key: str = "5") -> WhatifScreen:
    """The screen, with what triage found."""
    await pilot.press(key)
    await until(pilot, lambda: isinstance(app.screen, WhatifScreen) and "triage" in app.screen.shown)
    return front(app, WhatifScreen)


@played
async def test_prices_of_triage_stand_there_at_once_and_rows_come_one_after_another(stops: Stops) -> None:
    async with opened(STAGES, size=(160, 50)) as (app, pilot):
        screen = await shown(app, pilot)
        assert_says(app, "found by triage, at its prices:", "1 rank 1 on node0: compute in", "-10.7 ms", "+9.90%")
        await until(pilot, lambda: bool(stops.waits))
        stops.go_on()
        await until(pilot, partial(says, app, BAR_OF_KINDS))
        assert_says(app, "each alone, so far:", "[ ] rank=1+kind=compute", "no straggler", "workers  being replayed")
        assert not says(app, "stage=")
        stops.go_on()
        await until(pilot, partial(says, app, "[ ] stage="))
        assert says(app, "workers  being replayed")
        # Keys act on what is there.
        await pilot.press("v")
        assert_says(app, "by stage: what the fix of each saves; the rest follows")
        await pilot.press("down")
        fixes = screen.query_one(FixList)
        assert fixes.at == 1 and screen.waiting == {"whatif"}
        chosen = fixes.chosen
        stops.go_on()
        await until(pilot, partial(says, app, "savings follow"))
        assert screen.query_one(WorkerHeat).rank == 1
        assert fixes.chosen == chosen
        stops.go_on(1000)
        await until(pilot, partial(is_settled, app))
        assert not [text for text in ("follow", "so far", "being replayed") if says(app, text)]


@played
async def test_what_is_shown_in_the_end_is_what_is_shown_without_looking_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pages = []
    for looks in (True, False):
        if not looks:
            monkeypatch.setattr("kair_tui.tui.session._SHOWN_SO_FAR", frozenset())
        async with opened(STAGES) as (app, pilot):
            await pilot.press("5")
            await until(pilot, partial(is_settled, app))
            pages.append(screen_text(app))
    assert pages[0] == pages[1]


@played
async def test_a_screen_that_is_left_amid_its_rows_ends_the_replay_and_one_that_is_opened_again_has_them(
    stops: Stops, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kair_tui.tui.screens.overview._AHEAD_AFTER_S", 1000)
    async with opened(STAGES) as (app, pilot):
        await shown(app, pilot)
        stops.go_on()
        await until(pilot, partial(says, app, BAR_OF_KINDS))
        bars = front(app, WhatifScreen).query_one(StepBars).lines
        await until(pilot, lambda: stops.waits == 2)
        await pilot.press("escape")
        await until(pilot, lambda: not app.is_busy)
        assert isinstance(app.screen, OverviewScreen)
        screen = await shown(app, pilot)
        assert screen.query_one(StepBars).lines == bars
        assert screen.query_one(PriceBars).items[0].part == "no straggler"
        stops.go_on(1000)
        await until(pilot, partial(is_settled, app))
        assert screen.query_one(StepBars).lines == bars


@played
async def test_rows_that_are_there_stay_where_the_rest_is_cancelled(stops: Stops) -> None:
    async with opened(STAGES) as (app, pilot):
        await shown(app, pilot)
        stops.go_on()
        await until(pilot, partial(says, app, BAR_OF_KINDS))
        await pilot.press("C")
        await until(pilot, lambda: not app.is_busy)
        assert "cancelled kair whatif" in screen_lines(app)[-2]
        assert_says(app, BAR_OF_KINDS, "each alone, so far:")


@pytest.mark.parametrize("folder", [SAMPLES / "healthy"])
@played
async def test_a_job_in_which_nothing_was_found_says_that_it_is_replayed(folder: Path, stops: Stops) -> None:
    async with opened(str(folder)) as (app, pilot):
        await shown(app, pilot)
        assert_says(app, "fixes  being replayed", "no straggler")
        stops.go_on(1000)
        await until(pilot, partial(is_settled, app))
