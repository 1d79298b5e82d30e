"""The full screen about logs of NCCL's Inspector: the verdict and steps, and what needs operators says so."""

from pathlib import Path

import pytest
from support.inspector_logs import MadeJob
from support.screen_text import assert_says, go, opened, played, screen_text

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_places")]


@played
async def test_shows_the_verdict_and_follows_no_job(tmp_path: Path) -> None:
    logs = MadeJob(late={3: 1.15}).write(tmp_path / "logs")
    async with opened(str(logs), size=(120, 40)) as (app, pilot):
        assert_says(app, "rank 3", "8 ranks")
        assert "following" not in screen_text(app)
        await go(app, pilot, "3")
        assert "needs operators" in screen_text(app)
