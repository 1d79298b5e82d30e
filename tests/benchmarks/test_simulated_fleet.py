"""A small fleet is simulated as validation/fleet.py does it: `kair fleet` says of each job what is true."""

from __future__ import annotations

from pathlib import Path

import pytest
from fleet import Job, page, write

import kair


@pytest.mark.slow
def test_a_fleet_says_who_is_slow_and_what_is_wasted(tmp_path: Path) -> None:
    truths = {f"job{seed}": write(seed, tmp_path) for seed in range(16)}
    fleet = kair.fleet(store=tmp_path, progress=False)
    jobs = [Job(truths[found.name], found) for found in fleet.jobs]
    assert 2 < sum(job.truth.slow for job in jobs) < 14
    assert [job.found.slow for job in jobs] == [job.truth.slow for job in jobs]
    assert [job.found.waste for job in jobs] == pytest.approx([job.truth.waste for job in jobs], abs=0.03)
    healthy = [job.found for job in jobs if job.truth.cause == "none"]
    assert healthy and all(job.within_noise and not job.slow for job in healthy)
    named = {(job.truth.cause, job.found.cause) for job in jobs if job.truth.slow}
    assert named <= {("compute",) * 2, ("input",) * 2, ("host",) * 2, ("host", "periodic_pause")}
    assert "| GPU time wasted |" in "\n".join(page(truths, fleet, 0))
