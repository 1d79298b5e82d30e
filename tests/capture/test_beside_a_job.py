"""Agent, coordinator and job as processes: slow, and the same as the benchmarks run for longer."""

import sys
from pathlib import Path

import fault
import kills
import pytest


@pytest.mark.live
def test_whatever_is_killed_no_step_is_lost_and_none_is_counted_twice() -> None:
    outcome = kills.run("agent,coordinator,trainer", 3, seed=1, idle_s=1)
    assert outcome.steps > 100
    assert (outcome.lost, outcome.twice, outcome.unreadable) == (0, 0, [])
    assert outcome.unknown <= 1


@pytest.mark.live
def test_a_rank_that_becomes_slow_is_noticed_sampled_and_named_without_anybodys_help(tmp_path: Path) -> None:
    # A job without a framework, all ranks in one process; fault.py's own job is PyTorch's, with a process for each.
    job = [sys.executable, str(fault.HERE / "simulated_job.py"), "--ranks", "0-3", "--world", "4", "--steps", "225"]
    job += ["--step-ms", "40", "--slow", f"{fault.SLOW_RANK}:0.6:{fault.FROM_STEP}"]
    found = fault.told(fault.watched(job, tmp_path, leave_after_s=1))
    assert ("slow_rank", [fault.SLOW_RANK]) in [(kind, ranks) for kind, _, ranks in found["alerts"]]
    assert found["windows"][0][2] == "committed"
    assert found["first_in_ranking"] == fault.SLOW_RANK
