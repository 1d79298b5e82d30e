"""Commands that are killed at random moments leave a store that is whole, and nothing else."""

from pathlib import Path

import pytest
from fuzz.kills import SAMPLES, kills

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not (SAMPLES / "healthy").exists(), reason="the sample traces are not recorded yet"),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are found in /proc"),
]


def test_a_kill_leaves_no_worker_no_half_job_and_no_file(tmp_path: Path) -> None:
    seen = list(kills(4, 2, tmp_path, longest_s=0.5))
    assert [one.wrong for one in seen] == [()] * 4
    assert any(one.was_running for one in seen)
