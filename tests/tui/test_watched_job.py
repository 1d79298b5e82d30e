"""A watched job of which nothing was sampled, on the full screen: its verdict, own times, steps, and its hang."""

import re
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from support.hangs import behind
from support.screen_text import answered, assert_says, go, opened, played, screen_text, until
from support.watched_job import HANG, watched_job

from kair_tui.tui.frame import watching
from kair_tui.tui.frame.app import KairApp
from kair_tui.tui.widgets.header_and_footer import StatusLine

pytestmark = pytest.mark.slow


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KAIR_STORE", str(tmp_path / "store"))
    return tmp_path / "store"


@played
async def test_it_opens_with_the_verdict_of_its_history_and_each_ranks_own_time(store: Path) -> None:
    watched_job(store)
    async with opened("job", size=(120, 40)) as (app, pilot):
        await until(pilot, lambda: answered(app) and "own time" in screen_text(app))
        assert_says(app, "straggler: rank 1 (compute since step 100", "4 ranks · 231 steps", "following")
        assert re.search(r"▲ rank 1 node-1 +7.19 ms [▃-█]{50}", screen_text(app))
        assert re.search(r"  rank 0 node-1 +4.65 ms [▂-█]{50}", screen_text(app))
        await go(app, pilot, "H")
        await until(pilot, lambda: "every step" in screen_text(app))
        await go(app, pilot, "5")
        await until(pilot, lambda: "kair whatif needs sampled steps" in screen_text(app))


@played
async def test_it_shows_what_the_running_job_records(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_LIVE_S", 0.0)
    watched_job(store, until=99)
    async with opened("job", size=(120, 40)) as (app, pilot):
        await until(pilot, lambda: answered(app) and "own time" in screen_text(app))
        assert "straggler: " not in screen_text(app)
        watched_job(store)

        def looks(app: KairApp) -> bool:
            app.job_watch.look()
            return answered(app) and "straggler: rank 1" in screen_text(app)

        await until(pilot, lambda: looks(app))
        assert_says(app, "4 ranks · 231 steps")


@played
@pytest.mark.parametrize("steps", [239, -1])
async def test_a_job_that_hangs_shows_who_stands_where(store: Path, steps: int) -> None:
    watched_job(store, until=steps, hang=replace(HANG, step=steps))
    async with opened("job") as (app, pilot):
        await until(pilot, lambda: answered(app))
        assert_says(app, "straggler: rank 1 (hang", "rank 1 is in step 240, in input, at job/train.py:16 <module>")
        await go(app, pilot, "2")
        await until(pilot, lambda: "is in step 240, in input, at job/train.py:16 <module>" in screen_text(app))


@played
async def test_of_a_job_that_stands_still_nothing_unknown_is_shown_as_0(tmp_path: Path) -> None:
    hang = behind(Random(3)).run()
    (culprit,) = hang.culprits
    async with opened(str(hang.write(tmp_path / "dumps", "2.10")), size=(120, 40)) as (app, pilot):
        shown = screen_text(app)
        assert "score" not in shown and "0.000" not in shown and "0 µs" not in shown and "slow" not in shown
        status = app.screen.query_one(StatusLine).text
        assert re.match(rf"rank {culprit}( · node\S+)? · ▲ accused · ", status), status
        await pilot.press("right")
        assert "called number 13" in app.screen.query_one(StatusLine).text
        await pilot.press("enter")
        await until(pilot, lambda: "outliers" in screen_text(app))
        assert "score 0" not in screen_text(app)
