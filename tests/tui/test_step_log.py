"""The full screen about a job's log: its steps over time with what is slow marked, and what to record next."""

from pathlib import Path

import numpy as np
import pytest
from support.screen_text import assert_says, go, opened, played, screen_text

from kair_tui.tui.widgets.step_strip import StepStrip

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_places")]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log that is slower from step 151 to 250, and at every 32nd step."""
    seconds = np.exp(0.01 * np.random.default_rng(3).standard_normal(400))
    seconds[31::32] *= 2
    seconds[150:250] *= 1.3
    path = tmp_path / "train.log"
    path.write_text("".join(f"completed step: {n}, seconds: {s:.4f}\n" for n, s in enumerate(seconds, 1)))
    return path


@played
async def test_shows_steps_over_time_and_what_the_log_says(log: Path) -> None:
    async with opened(str(log), size=(120, 40)) as (app, pilot):
        assert_says(app, "from step 151 to 250", "one step in 32", "next:")
        strip = app.screen.query_one(StepStrip)
        assert sum(row.slow for row in strip._summary) == 100 + 9
        strip.focus()
        strip.action_move(160)
        await pilot.pause()
        assert "step 161" in screen_text(app)
        await go(app, pilot, "3")
        assert "needs a recording" in screen_text(app)


@played
async def test_a_rank_that_its_own_lines_set_apart_is_listed(tmp_path: Path) -> None:
    chance = np.random.default_rng(8)
    load = 5.0 * np.exp(0.03 * chance.standard_normal((300, 8)))
    load[150:, 2] += 40.0
    lines = (
        f"[rank{rank}]: [Epoch 0, Batch {n}] load: {ms:.2f}ms | backward: {200 + max(own) - ms:.2f}ms\n"
        for n, own in enumerate(load.tolist(), 1)
        for rank, ms in enumerate(own)
    )
    path = tmp_path / "train.log"
    path.write_text("".join(lines))
    async with opened(str(path), size=(120, 40)) as (app, pilot):
        assert_says(app, "straggler: rank 2", "input")
        await pilot.press("enter")
        await pilot.pause()
        assert screen_text(app)
