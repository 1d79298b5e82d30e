"""A store that cannot be written, is away, or is another folder when it is back: training goes on, and it is told."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import fault
import pytest
from support.broken_store import BrokenStore
from support.patience import PATIENCE_S, wait_until

from kair_capture.agent.step_rows import Rows
from kair_capture.coordinator.step_log import read_all
from kair_capture.places import JobPlaces

pytestmark = pytest.mark.live
KAIR = (sys.executable, "-m", "kair_tui")


class Running:
    """A job of two ranks without a framework, which trains until it is told to end, and its coordinator."""

    def __init__(self, folder: Path, stack: ExitStack, **environment: str) -> None:
        self.places, self._folder, self._stack = JobPlaces(folder / "store", "job"), folder, stack
        own = {
            "KAIR_STORE": str(self.places.store),
            "KAIR_RUN_DIR": str(folder / "run"),
            "KAIR_SPOOL_DIR": str(folder / "spool"),
            "KAIR_AGENT_IDLE": "1",
        }
        self.plain = {**os.environ, **own}
        self._environment = {**self.plain, **environment}
        listening = ("--job", "job", "--listen", "127.0.0.1:0", "--leave-after", "4")
        self.coordinator = self._started("coordinator", *listening)
        self.until(self.places.address.exists)
        script = [sys.executable, str(fault.HERE / "simulated_job.py"), "--ranks", "0-1", "--world", "2"]
        job = [*script, "--steps", "100000", "--step-ms", "20", "--until", str(folder / "end")]
        self.job = self._started("capture", "run", "--job", "job", "--", *job)
        self.until(lambda: self.step() >= 60)

    def _started(self, *words: str) -> subprocess.Popen[str]:
        with (self._folder / "log").open("a") as log:
            process = subprocess.Popen([*KAIR, *words], env=self._environment, cwd=fault.ROOT, stderr=log, text=True)
        self._stack.callback(process.kill)
        return process

    def step(self) -> int:
        """The last that the status tells."""
        return int(json.loads(self.places.status.read_bytes())["step"]) if self.places.status.exists() else -1

    def said(self) -> list[str]:
        """What the coordinator said of the store."""
        return [line for line in (self._folder / "log").read_text().splitlines() if "written" in line]

    def until(self, holds: Callable[[], bool]) -> None:
        """Until that is so."""

        def is_so() -> bool:
            assert self.coordinator.poll() is None
            return holds()

        wait_until(is_so, every_s=0.1)

    def ended(self) -> Rows:
        """The job's steps in the store; it ends well, and its coordinator tells of no rank and of no stall."""
        (self._folder / "end").touch()
        assert self.job.wait(PATIENCE_S) == 0
        assert self.coordinator.wait(PATIENCE_S) == 0
        status = json.loads(self.places.status.read_bytes())
        assert (status["state"], status["alerts"], status["unwritten_since"]) == ("over", [], None)
        rows = read_all(self.places.steps)
        steps = range(int(rows["step"].min()), status["step"] + 1)
        assert [int(step) for step in rows["step"]] == [step for step in steps for _ in range(2)]
        return rows

    def kair(self, *words: str) -> str:
        """What one command says."""
        command = [*KAIR, *words]
        done = subprocess.run(command, env=self.plain, cwd=fault.ROOT, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr


@contextmanager
def running(folder: Path, **environment: str) -> Iterator[Running]:
    with ExitStack() as stack:
        yield Running(folder, stack, **environment)


@pytest.mark.parametrize("error", [errno.EROFS, errno.EIO], ids=errno.errorcode.get)
def test_no_step_is_lost_where_the_store_refuses(tmp_path: Path, error: int) -> None:
    try:
        store = BrokenStore(tmp_path / "library", tmp_path / "store")
    except OSError:
        pytest.skip("a store that refuses needs a C compiler")
    with running(tmp_path, **store.environment) as job:
        store.set(error)
        job.until(lambda: len(job.said()) == 1)
        store.set(0)
        job.until(lambda: len(job.said()) == 2)
        assert job.ended()["step"].min() == 0
        assert job.said() == [
            f"kair: the store cannot be written ({os.strerror(error)}): agents keep what they have until it can be",
            "kair: the store can be written again",
        ]


def test_a_store_that_comes_back_as_another_folder_is_told_and_goes_on_there(tmp_path: Path) -> None:
    with running(tmp_path) as job:
        store = job.places.store
        store.rename(tmp_path / "before")
        job.until(lambda: len(job.said()) == 1)
        assert f"the store {store} is not there" in job.kair("watch", "job", "--once")
        assert not store.exists()
        store.mkdir()
        job.until(lambda: len(job.said()) == 3)
        before = read_all(JobPlaces(tmp_path / "before", "job").steps)
        job.until(lambda: job.step() > before["step"].max() + 20)
        told = job.kair("watch", "job", "--once")
        assert f"the job's folder in the store was replaced before step {before['step'].max() + 1}" in told
        assert "max-overhead" in job.kair("capture", "set", "job")  # the key and the address are in it
        assert job.ended()["step"].min() == before["step"].max() + 1
        assert job.said()[1:] == [
            "kair: the job's folder in the store was replaced: what was written before is not in it",
            "kair: the store can be written again",
        ]
