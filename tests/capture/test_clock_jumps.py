"""Clocks that are set while a job trains: nobody is accused, nothing is lost, nothing takes less than no time."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fault
import numpy as np
import pytest
from support.patience import PATIENCE_S, wait_until
from support.program import KAIR
from support.set_clock import SetClock

from kair_capture.coordinator.step_log import attempts_in, last_attempt, read_all
from kair_capture.places import JobPlaces

STEPS, STEP_MS = 500, 20
HOUR = 3600
OF = {
    "a host": ("two", (2 * HOUR, -10 * 60)),
    "a host, and back again": ("two", (-3 * HOUR, 60)),
    "the coordinator's": ("coordinator", (-3 * HOUR, 24 * HOUR)),
}
"""Whose clock is set, and to how many seconds ahead of the real one."""


class Running:
    """A job of two hosts with two ranks each, and its coordinator; some of these processes see the set clock."""

    def __init__(self, folder: Path, clock: SetClock, of: str) -> None:
        self.places, self._folder = JobPlaces(folder / "store", "set"), folder
        self._clock, self._of = clock, of
        self._start = time.monotonic_ns() + 20 * 10**9

    def start(self, who: str, *words: str) -> subprocess.Popen[bytes]:
        own = {
            "KAIR_STORE": str(self.places.store),
            "KAIR_HOST": who,
            "KAIR_RUN_DIR": str(self._folder / f"run-{who}"),
            "KAIR_SPOOL_DIR": str(self._folder / f"spool-{who}"),
            "KAIR_AGENT_IDLE": "2",
            **(self._clock.environment if who == self._of else {}),
        }
        with (self._folder / f"{who}.log").open("ab") as log:
            return subprocess.Popen([*KAIR, *words], env={**os.environ, **own}, cwd=fault.ROOT, stderr=log)

    def ranks(self, who: str, ranks: str, steps: int = STEPS, *more: str) -> subprocess.Popen[bytes]:
        script = [sys.executable, str(fault.HERE / "simulated_job.py"), "--ranks", ranks, "--world", "4"]
        job = [*script, "--steps", str(steps), "--step-ms", str(STEP_MS), "--start-ns", str(self._start), *more]
        return self.start(who, "capture", "run", "--job", "set", "--", *job)

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.places.status.read_bytes())
        return found

    def until_step(self, step: int) -> None:
        wait_until(lambda: self.places.status.exists() and self.status()["step"] >= step, every_s=0.1)


@contextmanager
def watched(folder: Path, of: str) -> Iterator[tuple[Running, SetClock, subprocess.Popen[bytes]]]:
    try:
        clock = SetClock(folder / "clock")
    except OSError:
        pytest.skip("a clock that is set needs a C compiler")
    job = Running(folder, clock, of)
    coordinator = job.start(
        "coordinator", "coordinator", "--job", "set", "--listen", "127.0.0.1:0", "--leave-after", "4"
    )
    try:
        yield job, clock, coordinator
    finally:
        coordinator.kill()
        coordinator.wait()


@pytest.mark.live
@pytest.mark.parametrize(("of", "jumps"), OF.values(), ids=OF)
def test_nobody_is_accused_and_no_step_is_lost_where_a_clock_is_set(
    tmp_path: Path, of: str, jumps: tuple[int, ...]
) -> None:
    with watched(tmp_path, of) as (job, clock, coordinator):
        hosts = [job.ranks("one", "0-1"), job.ranks("two", "2-3")]
        for number, seconds in enumerate(jumps, 1):
            job.until_step(number * 120)
            clock.set(seconds)
        assert [one.wait() for one in hosts] == [0, 0]
        assert coordinator.wait(PATIENCE_S) == 0
        status = job.status()
        assert (status["state"], status["step"], status["attempt"], status["alerts"]) == ("over", STEPS - 1, 1, [])
        rows = read_all(job.places.steps)
        assert len(rows) == len(last_attempt(rows)) == 4 * STEPS
        assert [(one.ranks, one.first_step, one.last_step) for one in attempts_in(rows)] == [
            ((0, 1, 2, 3), 0, STEPS - 1)
        ]
        for rank in range(4):
            of_rank = rows[rows["rank"] == rank]
            assert (np.diff(of_rank["begin_us"].astype(np.int64)) > 0).all()
        assert rows["step_us"].max() < 1e6
        triage = subprocess.run(
            [*KAIR, "triage", "set", "--store", str(job.places.store), "--json"],
            cwd=fault.ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert json.loads(triage.stdout)["data"]["verdict"] == "no_straggler"
