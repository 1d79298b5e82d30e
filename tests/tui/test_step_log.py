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
