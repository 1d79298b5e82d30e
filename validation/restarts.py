"""Does anything grow while a job is restarted over and over? Its agent, heartbeat and coordinator, and its run folder.

    python validation/restarts.py [--restarts 100] [--steps 20] [--keep DIR]

A job of two ranks (gloo) runs under `kair capture run` with a coordinator; in each attempt a rank raises an exception,
and all are started again, on another port: torchrun's restarts in place hang with gloo, without Kair as well. In each
attempt the handles, threads and memory of Kair's three processes are read, and what lies in the run folder. Printed are
the figures after an eighth of the attempts and at the end, and which attempts the history of steps has. The status is 1
where something grew, or where an attempt is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE)]

from captured_takes import KAIR  # noqa: E402  (of the folder beside this one)

from kair_capture.coordinator.step_log import attempts_in, read_all  # noqa: E402
from kair_capture.places import JobPlaces  # noqa: E402
from kair_capture.unheard import agent_in  # noqa: E402

RANKS: Final = 2
MOST_MIB: Final = 16
"""A process may take so much more at the end: the coordinator keeps the last steps of an attempt, and its alerts."""
ATTEMPT_S: Final = 300.0


@dataclass(frozen=True)
class Held:
    """What a process holds."""

    handles: int
    threads: int
    mib: float

    @classmethod
    def by(cls, pid: int) -> Held:
        """Return what a process holds now. Raises OSError where there is none."""
        fields = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
        )
        return cls(len(os.listdir(f"/proc/{pid}/fd")), int(fields["Threads"]), int(fields["VmRSS"].split()[0]) / 1024)  # noqa: PTH208  (names alone)

    def least(self, other: Held) -> Held:
        """Return the less of each."""
        return Held(min(self.handles, other.handles), min(self.threads, other.threads), min(self.mib, other.mib))


@dataclass(frozen=True)
class Look:
    """What was held throughout an attempt: files of ranks that begin or have just ended are not held for long."""

    attempt: int
    agent: Held
    heartbeat: Held
    coordinator: Held
    files: int
    """In the run folder."""

    def least(self, other: Look) -> Look:
        """Return the less of each, of two looks at an attempt."""
        held = (self.agent.least(other.agent), self.heartbeat.least(other.heartbeat))
        return Look(self.attempt, *held, self.coordinator.least(other.coordinator), min(self.files, other.files))

    def grown(self, first: Look) -> list[str]:
        """Return what is more than it was in an earlier attempt."""
        found = []
        for name in ("agent", "heartbeat", "coordinator"):
            before, now = getattr(first, name), getattr(self, name)
            found += [
                f"{what} of the {name}: {had} to {has}"
                for what, had, has, more in (
                    ("handles", before.handles, now.handles, 2),
                    ("threads", before.threads, now.threads, 1),
                    ("MiB", round(before.mib), round(now.mib), MOST_MIB),
                )
                if has - had > more
            ]
        return found + [f"files: {first.files} to {self.files}"] * (self.files - first.files > 2)

    def row(self) -> str:
        """Return the figures as a row of a table."""
        held = [
            f"{one.handles} / {one.threads} / {one.mib:.0f}" for one in (self.agent, self.heartbeat, self.coordinator)
        ]
        return f"| {self.attempt} | {' | '.join(held)} | {self.files} |"


class Restarted:
    """A job that is restarted, and its coordinator; `stack` ends them."""

    def __init__(self, folder: Path, restarts: int, steps: int, stack: ExitStack) -> None:
        self.places: Final = JobPlaces(folder / "store", "restarts")
        self._run_dir = folder / "run"
        environment = {
            **os.environ,
            "KAIR_STORE": str(self.places.store),
            "KAIR_RUN_DIR": str(self._run_dir),
            "KAIR_SPOOL_DIR": str(folder / "spool"),
            "KAIR_AGENT_IDLE": "3",
            "OMP_NUM_THREADS": "1",
        }
        job = [sys.executable, __file__, "--launch", "--restarts", str(restarts), "--steps", str(steps)]
        self._log = stack.enter_context((folder / "log").open("w", encoding="utf-8"))

        def started(*words: str) -> subprocess.Popen[bytes]:
            process = subprocess.Popen(
                [*KAIR, *words], env=environment, stdout=self._log, stderr=self._log, start_new_session=True
            )
            stack.callback(_end, process)
            return process

        self.coordinator: Final = started(
            "coordinator", "--job", "restarts", "--listen", "127.0.0.1:0", "--leave-after", "90"
        )
        while not self.places.address.exists() and self.coordinator.poll() is None:
            time.sleep(0.1)
        self.job: Final = started("capture", "run", "--job", "restarts", "--", *job)

    def attempt(self) -> int:
        """Return the attempt that the coordinator knows; 0 before the first."""
        with suppress(OSError, ValueError):
            return int(json.loads(self.places.status.read_bytes()).get("attempt") or 0)
        return 0

    def look(self, attempt: int) -> Look | None:
        """Return what is held; None where a process is not there."""
        agent = agent_in(self._run_dir)
        if agent is None:
            return None
        with suppress(OSError, ValueError, KeyError, IndexError):
            of_threads = Path(f"/proc/{agent.pid}/task").glob("*/children")
            children = " ".join(path.read_text(encoding="ascii") for path in of_threads).split()
            (heartbeat,) = [
                pid for pid in map(int, children) if b"heartbeat" in Path(f"/proc/{pid}/cmdline").read_bytes()
            ]
            files = sum(1 for path in self._run_dir.rglob("*") if path.is_file())
            return Look(attempt, Held.by(agent.pid), Held.by(heartbeat), Held.by(self.coordinator.pid), files)
        return None

    def looks(self) -> list[Look]:
        """Return what each attempt held, until the job ends. Raises TimeoutError where no attempt follows."""
        found: list[Look] = []
        changed = time.monotonic()
        while self.job.poll() is None:
            attempt, known = self.attempt(), found[-1].attempt if found else 0
            if attempt >= max(known, 1) and (look := self.look(attempt)):
                if attempt == known:
                    found[-1] = found[-1].least(look)
                else:
                    found.append(look)
                    changed = time.monotonic()
            if time.monotonic() - changed > ATTEMPT_S:
                raise TimeoutError(f"no attempt follows {found[-1].attempt if found else 0}")
            time.sleep(0.2)
        while agent_in(self._run_dir) is not None:
            if found and (look := self.look(found[-1].attempt)):
                found[-1] = found[-1].least(look)
            time.sleep(0.2)
        self.coordinator.send_signal(signal.SIGTERM)
        self.coordinator.wait(60)
        return found


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(10)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def launch(restarts: int, steps: int) -> None:
    """Be the job's launcher: attempt after attempt, each until its ranks are gone."""
    script = [sys.executable, str(HERE / "hangs_job.py"), "exception", "1", str(steps)]
    for _ in range(restarts + 1):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(RANKS)}
        ranks = [
            subprocess.Popen(script, env={**os.environ, **meeting, "RANK": str(rank), "LOCAL_RANK": str(rank)})
            for rank in range(RANKS)
        ]
        for rank in ranks:
            rank.wait(ATTEMPT_S)


def run(folder: Path, restarts: int, steps: int) -> tuple[list[Look], dict[int, int]]:
    """Run the job; return the looks, and of each attempt in the history its last step."""
    with ExitStack() as stack:
        job = Restarted(folder, restarts, steps, stack)
        looks = job.looks()
        return looks, {one.number: one.last_step for one in attempts_in(read_all(job.places.steps))}


def main() -> int:
    """Print the table; 1 where something grew or is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--restarts", type=int, default=100)
    parser.add_argument("--steps", type=int, default=20, help="of each attempt")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--launch", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.launch:
        launch(given.restarts, given.steps)
        return 0
    with ExitStack() as stack:
        folder = given.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kair-restarts-")))
        folder.mkdir(parents=True, exist_ok=True)
        looks, attempts = run(folder, given.restarts, given.steps)
    first, last = looks[len(looks) // 8], looks[-1]
    print("| attempt | agent: handles / threads / MiB | heartbeat | coordinator | files |\n|---|---|---|---|---|")
    print(f"{first.row()}\n{last.row()}")
    wrong = last.grown(first)
    missing = sorted(set(range(1, given.restarts + 2)) - set(attempts))
    short = [number for number, step in attempts.items() if step < given.steps - 1]
    wrong += [f"attempts not in the history: {missing}"] * bool(missing)
    wrong += [f"attempts of which the last steps are missing: {short}"] * bool(short)
    print(f"{len(attempts)} attempts in the history; " + ("; ".join(wrong) or "nothing grew, nothing is missing"))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
