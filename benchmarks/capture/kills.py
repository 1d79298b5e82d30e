"""Kills parts of capture at random times, and checks what is left.

Of a simulated job one part after the other is killed (or the store taken away, filled, or the coordinator stopped)
while it runs; at its end every step that a rank committed must be in the store once, the job readable all the time, and
no rank have stood still.

    python benchmarks/capture/kills.py --what agent --count 20
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from kair_capture.coordinator.step_log import read_all
from kair_capture.places import JobPlaces
from kair_engine.errors import InputError
from kair_engine.recording.job_file import JOB_FILE, open_job_folder

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RANKS = 4
STEP_MS = 25
SLOW = "2:0.3:60"


@dataclass
class Outcome:
    """What one run of kills left."""

    what: str
    kills: int
    steps: int = 0
    """(rank, step) that ranks committed."""
    lost: int = 0
    twice: int = 0
    unknown: int = 0
    """In the store, though no rank says so: at most one for each kill of a trainer."""
    unreadable: list[str] = field(default_factory=list)
    reads: int = 0
    windows: int = 0
    drops: int = 0
    """Records that found no room in a ring, as the last agent counted them: those of steps that are lost, if any."""
    longest_pause_ms: float = 0.0

    @property
    def is_good(self) -> bool:
        """Whether what must hold does."""
        allowed = self.kills if "trainer" in self.what else 0
        return not (self.lost or self.twice or self.unreadable) and self.unknown <= allowed


class Scene:
    """A job with its agent and its coordinator, each a process."""

    def __init__(self, folder: Path, seed: int, spell: float | None = None, idle_s: int = 3) -> None:
        """`spell`: seconds that something is away, always; None: 1 to 8, by chance.

        `idle_s`: after the job's end, until the agent ends; the coordinator does after twice as long.
        """
        self.folder, self.seed, self._spell, self._idle_s = folder, seed, spell, idle_s
        self.store = folder / "store"
        self.places = JobPlaces(self.store, "kills")
        self.run_dir = Path(tempfile.mkdtemp(prefix="kair-kills-", dir="/dev/shm"))
        self.progress = folder / "progress"
        self.progress.mkdir()
        self.until = folder / "until"
        own = {
            "KAIR_STORE": str(self.store),
            "KAIR_JOB": "kills",
            "KAIR_RUN_DIR": str(self.run_dir),
            "KAIR_SPOOL_DIR": str(folder / "spool"),
            "KAIR_AGENT_IDLE": str(idle_s),
        }
        self.environment = {**os.environ, **own}
        self.coordinator = self.start_coordinator()
        _wait_until(self.places.address.exists)
        self.agent = self.start_agent()
        _wait_until((self.run_dir / "rows.journal").exists)
        self.start_ns = time.monotonic_ns() + 2 * 10**9
        self.trainers = [self.start_trainer(rank) for rank in range(RANKS)]
        self.pauses: list[float] = []

    def start_coordinator(self) -> subprocess.Popen[bytes]:
        arguments = ("coordinator", "--job", "kills", "--listen", "127.0.0.1:0", "-q")
        leaving = ("--leave-after", str(2 * self._idle_s), "--max-overhead", "50%")
        return self._start("kair_tui", *arguments, *leaving, log="coordinator.log")

    def start_agent(self) -> subprocess.Popen[bytes]:
        return self._start("kair_capture.agent", log="agent.log")

    def start_trainer(self, rank: int) -> subprocess.Popen[bytes]:
        plan = ("--world", str(RANKS), "--steps", "1000000", "--step-ms", str(STEP_MS), "--slow", SLOW)
        where = ("--progress", str(self.progress), "--until", str(self.until))
        command = [sys.executable, str(HERE / "simulated_job.py"), "--ranks", str(rank), *plan, *where]
        command += ["--start-ns", str(self.start_ns), "--seed", str(self.seed)]
        return subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE)

    def _start(self, module: str, *arguments: str, log: str) -> subprocess.Popen[bytes]:
        with (self.folder / log).open("ab") as file:
            command = [sys.executable, "-m", module, *arguments]
            return subprocess.Popen(command, env=self.environment, stdout=file, stderr=file, cwd=ROOT)

    def wait_a_spell(self, chance: random.Random) -> None:
        """For what was taken away."""
        time.sleep(chance.uniform(1, 8) if self._spell is None else self._spell)

    def finish(self) -> None:
        """The job ends, then its agent, then the coordinator."""
        self.until.touch()
        for trainer in self.trainers:
            out, _ = trainer.communicate(timeout=240)
            with suppress(ValueError, IndexError):
                self.pauses.append(json.loads(out.splitlines()[-1])["longest_pause_ms"])
        self.agent.wait(timeout=240)
        self.coordinator.wait(timeout=240)
        shutil.rmtree(self.run_dir, ignore_errors=True)

    def abandon(self) -> None:
        """After a failure: nothing is left running."""
        for process in (*self.trainers, self.agent, self.coordinator):
            process.kill()
            process.wait()
        shutil.rmtree(self.run_dir, ignore_errors=True)


def kill_trainer(scene: Scene, chance: random.Random) -> None:
    rank = chance.randrange(RANKS)
    scene.trainers[rank].kill()
    scene.trainers[rank].wait()
    assert scene.trainers[rank].stdout is not None
    scene.trainers[rank].stdout.close()
    scene.trainers[rank] = scene.start_trainer(rank)


def kill_agent(scene: Scene, _: random.Random) -> None:
    scene.agent.kill()
    scene.agent.wait()
    scene.agent = scene.start_agent()
    journal, began = scene.run_dir / "rows.journal", time.time()
    _wait_until(lambda: journal.stat().st_mtime > began)


def kill_coordinator(scene: Scene, _: random.Random) -> None:
    scene.coordinator.kill()
    scene.coordinator.wait()
    scene.coordinator = scene.start_coordinator()
    _wait_until(lambda: json.loads(scene.places.address.read_text())["pid"] == scene.coordinator.pid)


def _wait_until(is_up: Callable[[], bool]) -> None:
    """What is killed while it starts is killed at few different moments."""
    for _ in range(600):
        with suppress(OSError, ValueError, KeyError):
            if is_up():
                return
        time.sleep(0.05)


def stop_coordinator(scene: Scene, chance: random.Random) -> None:
    """Nobody answers for a while."""
    scene.coordinator.send_signal(signal.SIGSTOP)
    scene.wait_a_spell(chance)
    scene.coordinator.send_signal(signal.SIGCONT)


def take_store_away(scene: Scene, chance: random.Random) -> None:
    """As when it is unmounted: what was open stays open, and by its name it is no longer there."""
    away = scene.folder / "away"
    scene.store.rename(away)
    scene.store.write_text("not a folder")
    scene.wait_a_spell(chance)
    scene.store.unlink()
    away.rename(scene.store)


def fill_disk(scene: Scene, chance: random.Random) -> None:
    """The store's file system is a small one in memory; something else takes all of it for a while."""
    filler = scene.store / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(1 << 16)):
            pass
    time.sleep(chance.uniform(1, 5))
    filler.unlink()


KINDS: dict[str, Callable[[Scene, random.Random], None]] = {
    "trainer": kill_trainer,
    "agent": kill_agent,
    "coordinator": kill_coordinator,
    "unreachable": stop_coordinator,
    "store-away": take_store_away,
    "disk-full": fill_disk,
}


class Reader:
    """Opens the job again and again, as its users may."""

    def __init__(self, scene: Scene, outcome: Outcome) -> None:
        self._scene, self._outcome = scene, outcome
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        folder = self._scene.places.folder
        while not self._ended.wait(0.1):
            try:
                if not (folder / JOB_FILE).exists():
                    continue
                warnings = open_job_folder(folder).job.warnings
            except (InputError, OSError) as error:
                if not self._scene.store.is_dir() or not folder.exists():
                    continue  # the store is away
                self._outcome.unreadable.append(str(error))
                continue
            self._outcome.reads += 1
            self._outcome.unreadable += [one.message for one in warnings if one.code == "unreadable_file"]


def run(what: str, count: int, seed: int, spell: float | None = None, idle_s: int = 3) -> Outcome:
    """One job, `count` kills in it, of the kinds in `what` in turn."""
    chance, outcome = random.Random(seed), Outcome(what, count)
    with tempfile.TemporaryDirectory(prefix="kair-kills-") as name:
        folder = Path(name)
        mounted = what == "disk-full" and _mount(folder / "store")
        scene = Scene(folder, seed, spell, idle_s)
        reader = Reader(scene, outcome)
        try:
            time.sleep(max((scene.start_ns - time.monotonic_ns()) / 1e9, 0) + 1)
            for number in range(count):
                time.sleep(chance.uniform(0.2, 2.0))
                kinds = what.split(",")
                KINDS[kinds[number % len(kinds)]](scene, chance)
            time.sleep(2)
            scene.finish()
        except BaseException:
            scene.abandon()
            raise
        finally:
            reader.stop()
            if mounted and sys.exc_info()[0] is not None:
                subprocess.run(["umount", str(folder / "store")], check=False)
        _check(scene, outcome)
        if not outcome.is_good:
            for log in ("coordinator.log", "agent.log"):
                print((folder / log).read_text()[-3000:], file=sys.stderr)
        if mounted:
            subprocess.run(["umount", str(folder / "store")], check=False)
    return outcome


def _mount(folder: Path) -> bool:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m,mode=0700", "kair-kills", str(folder)], check=True)
    return True


def _check(scene: Scene, outcome: Outcome) -> None:
    committed = {
        (int(path.name.split("-")[1]), int(step))
        for path in scene.progress.iterdir()
        for step in np.frombuffer(path.read_bytes(), "<u4")
    }
    rows = read_all(scene.places.steps)
    kept = list(zip(rows["rank"].tolist(), rows["step"].tolist(), strict=True))
    outcome.steps = len(committed)
    outcome.lost = len(committed - set(kept))
    outcome.twice = len(kept) - len(set(kept))
    outcome.unknown = len(set(kept) - committed)
    outcome.drops = sum(host["drops"] for host in json.loads(scene.places.status.read_bytes())["hosts"])
    outcome.longest_pause_ms = max(scene.pauses, default=0.0)
    if (scene.places.folder / JOB_FILE).exists():
        trace = open_job_folder(scene.places.folder)
        cells = list(zip(trace.job.step_times.rank, trace.job.step_times.step, strict=True))
        outcome.twice += len(cells) - len(set(cells))
        outcome.windows = len(trace.job.steps)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--what", default="all", help=f"{', '.join(KINDS)}; several, set apart by commas, in turn")
    parser.add_argument("--count", type=int, default=5)
    parser.add_argument("--spell", type=float, help="seconds that the store is away, or the coordinator stopped")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    good = True
    for what in KINDS if given.what == "all" else (given.what,):
        outcome = run(what, given.count, given.seed, given.spell)
        print(json.dumps({**asdict(outcome), "good": outcome.is_good}), flush=True)
        good &= outcome.is_good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
