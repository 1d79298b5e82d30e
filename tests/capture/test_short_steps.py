"""A job whose steps are thinned: what its readers say of a slow rank."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import fault
import numpy as np
import pytest

from kair_capture.coordinator.step_log import read_all
from kair_capture.ring import EVERY_SHIFT, StepFlag

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(find_spec("torch") is None, reason="training needs torch: pip install 'kair[record]'"),
]


def test_a_slow_rank_of_a_thinned_job_is_named_with_its_part_price_and_step(tmp_path: Path) -> None:
    from support import short_steps_job as job

    ranks = [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node", "3"]
    places = fault.watched([*ranks, job.__file__], tmp_path, leave_after_s=1)
    rows = read_all(places.steps)
    assert np.unique(rows["step"]).tolist() == [*range(job.STEPS)]
    thinned = rows["flags"] & StepFlag.THINNED > 0
    assert 0.7 < thinned.mean() < 0.95
    assert (rows["forward_us"] > 0).all() and (rows["cpu_us"][rows["step"] > 200] > 0).all()
    assert set((rows["flags"][thinned] >> EVERY_SHIFT).tolist()) == {4}

    command = [sys.executable, "-m", "kair_tui", "triage", places.job, "--store", str(places.store), "--json"]
    done = subprocess.run(command, cwd=fault.ROOT, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)["data"]
    # What else a busy machine costs is no rank's fault.
    (accused,) = [one for one in found["findings"] if one["ranks"]]
    # Where other work takes its core, computing for longer is the host's as well.
    assert (accused["ranks"], accused["evidence"][0]["about"]) == ([job.SLOW_RANK], "forward")
    assert accused["cause"] in ("compute", "host")
    # Ranks that share busy cores lose more than what one of them takes longer.
    assert 0.5 < accused["time_lost_us_per_step"] / (job.SLOWER_S * 1e6 / 2) < 3
    assert abs(accused["since"] - job.FROM_STEP) < 40

    status = json.loads(places.status.read_bytes())
    assert status["parts_every"] == 16
    alerts = [one["ranks"] for one in status["alerts"] if one["kind"] == "slow_rank" and not one["over"]]
    # Where other work takes its core, an alert may be over and come again.
    assert all(ranks == [job.SLOW_RANK] for ranks in alerts)
