"""Presses random keys on the full screen of six jobs, with signals, resizes and jobs that are replaced or deleted.

    nice python benchmarks/random_keys.py --keys 10000 --seed 1 [--only NAME ...]

The real program runs in a pseudo-terminal: a sample, a pipeline, a real job and a real what-if trace (where they are
beside the checkout), a simulated 3D job of 256 ranks with a slow link, and one of 1,024 with a slow host. Each is
imported into a store of its own; now and then it is imported again, other traces take its name, or it is deleted. The
program is stopped and continued, ended by SIGTERM and SIGHUP and begun anew. The status is 1 where a traceback or a
defect was told, the program ended by itself or no more, or did not leave the terminal as it was.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import TimeoutExpired

from pseudo_terminal import Terminal

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "validation" / "accuracy"))

from kair_engine.store.jobs import Store

ROOT = Path(__file__).parents[1]
SAMPLES, TRACES = ROOT / "sample_traces", ROOT.parent / "shared" / "traces"
SIZES = ((160, 50), (80, 24), (60, 20), (59, 19), (200, 60), (120, 30))
NAMED = {
    "escape": "\x1b[27u",
    "enter": "\r",
    "tab": "\t",
    "up": "\x1b[A",
    "down": "\x1b[B",
    "right": "\x1b[C",
    "left": "\x1b[D",
    "page up": "\x1b[5~",
    "page down": "\x1b[6~",
    "home": "\x1b[H",
    "end": "\x1b[F",
    "ctrl+p": "\x10",
    "ctrl+r": "\x12",
    "ctrl+d": "\x04",
    "ctrl+u": "\x15",
}
OFTEN = ("escape", "escape", "escape", "enter", "enter", "up", "down", "left", "right")
KEYS = (*NAMED, *OFTEN, *"1234567889sSgoyemNfGnpvwarzcFDHHMWAuRhjklx440>< ?/+-[]$%:")
"""Not q: the program would end. What it saves goes to a folder that is deleted."""
ASKED = (":triage", ":blame --limit 5", ":sensitivity", ":whatif", ":localize --by host", "/!rank:1", "/x")
"""Typed as a whole: their answers come while one is elsewhere already."""
THREADS = "threads.txt"
PROGRAM = """
import asyncio, faulthandler, signal, sys
from kair_tui.cli.main import main
told = open(sys.argv[1], "w")
def tell(*_):
    for task in asyncio.all_tasks():
        print(task.get_name(), file=told)
        waiting = task.get_coro()
        while frame := getattr(waiting, "cr_frame", getattr(waiting, "gi_frame", None)):
            print("   ", frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name, file=told)
            waiting = getattr(waiting, "cr_await", getattr(waiting, "gi_yieldfrom", None))
    told.flush()
faulthandler.register(signal.SIGUSR1, file=told, all_threads=True)
signal.signal(signal.SIGUSR2, tell)
sys.exit(main(sys.argv[2:]))
"""
"""The program, which writes what its threads are at when it is asked to: where it hangs."""
MARKS = (b"Traceback (most recent call last)", b"defect of Kair", b"defect in Kair")
ENDED = {signal.SIGTERM, signal.SIGHUP}
PAUSE_S, PATIENCE_S = 0.02, 120.0
LATEST, TOLD = 40, 1500


@dataclass(frozen=True)
class Job:
    """A job to walk through: its traces, which may be missing."""

    name: str
    traces: Callable[[Path], Path | None]


def real(*parts: str) -> Callable[[Path], Path | None]:
    """Traces that are there, or not."""

    def found(_: Path) -> Path | None:
        path = Path(*parts)
        return path if path.exists() else None

    return found


def simulated(name: str) -> Callable[[Path], Path | None]:
    """Traces that are made now."""

    def made(folder: Path) -> Path:
        from compute_faults import SlowHost
        from job_folder import write_job_folder
        from layouts import JobLayout
        from network_faults import SlowEdge
        from simulator import JobSpec, simulate

        specs = {
            "slow link of 256": JobSpec(JobLayout("3d", dp=8, pp=8, tp=4), 3, 0, (SlowEdge(3, 2, 1, extra_ms=8.0),)),
            "slow host of 1,024": JobSpec(JobLayout("dp", 1024), 4, 0, (SlowHost("node50", 1.3),)),
        }
        (recording,) = simulate([specs[name]])
        return write_job_folder(recording, folder / name.replace(" ", "_"))

    return made


JOBS = (
    Job("slow_operator", real(str(SAMPLES), "slow_operator")),
    Job("pipeline", real(str(SAMPLES), "pipeline_slow_operator")),
    Job("megatron-tp8", real(str(TRACES), "megatron-tp8")),
    Job("ST", real(str(TRACES), "bytedance", "trace-ST.parquet")),
    Job("slow link of 256", simulated("slow link of 256")),
    Job("slow host of 1,024", simulated("slow host of 1,024")),
)


@dataclass
class Walk:
    """One job's walk: the program in its terminal, begun anew whenever a signal ended it."""

    folder: Path
    traces: Path
    keys: int
    rnd: random.Random
    done: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    """Of the session that is under way."""
    failures: list[str] = field(default_factory=list)
    pressed: int = 0
    signals: int = 0
    """Sent, resizes among them."""
    changes: int = 0
    """Times that the job was replaced or deleted."""

    def run(self) -> None:
        """Until all keys are pressed."""
        self._import(self.traces)
        while self.pressed < self.keys:
            self._import_if_gone()
            self._session()
            if self.complaints:
                self.failures.append(f"{'; '.join(self.complaints)}\n    after {' '.join(self.done[-LATEST:])}")
                self.complaints.clear()
            self.done.clear()

    def _session(self) -> None:
        """The program from its begin to its end."""
        environment = {**os.environ, "TERM": "xterm-256color", "LANG": "C.UTF-8"}
        for name in ("COLUMNS", "LINES"):
            environment.pop(name, None)
        command = [sys.executable, "-c", PROGRAM, str(self.folder / THREADS), "tui", "walk", "--debug"]
        with Terminal(command, environment, self.rnd.choice(SIZES)) as terminal:
            before = terminal.modes()
            if not self._wait(terminal, b"\x1b[?1049h"):
                self.complaints.append("nothing was painted")
                self.done.append(terminal.written[-TOLD:].decode(errors="replace"))
                return
            if self.rnd.random() < 0.7:
                terminal.settle(1.0)
            end = None
            while end is None and self.pressed < self.keys and terminal.is_running and not self.complaints:
                end = self._act(terminal)
            if not terminal.is_running:
                self.complaints.append("it ended by itself")
            else:
                end = end or signal.SIGTERM
                terminal.send(end)
            self._judge(terminal, end, before)

    def _act(self, terminal: Terminal) -> signal.Signals | None:
        """A key, now and then something else; the signal that is to end the program, if that is due."""
        chance = self.rnd.random()
        if chance < 0.002:
            return self.rnd.choice(sorted(ENDED))
        if chance < 0.006:
            self._change()
        elif chance < 0.011:
            self._stop_and_go_on(terminal)
        elif chance < 0.035:
            self._resize(terminal)
        elif chance < 0.045:
            self._type(terminal, self.rnd.choice(ASKED) + "\r")
        else:
            key = self.rnd.choice(KEYS)
            self._type(terminal, NAMED.get(key, key), key)
        if self.rnd.random() < 0.3:
            terminal.settle(PAUSE_S)
        return None

    def _type(self, terminal: Terminal, text: str, name: str | None = None) -> None:
        self.done.append(name or repr(text))
        self.pressed += len(text) if name is None else 1
        terminal.press(text)

    def _resize(self, terminal: Terminal) -> None:
        size = self.rnd.choice(SIZES)
        self.done.append(f"<{size[0]}x{size[1]}>")
        self.signals += 1
        terminal.resize(size)

    def _stop_and_go_on(self, terminal: Terminal) -> None:
        self.done.append("<stop>")
        self.signals += 2
        terminal.send(signal.SIGTSTP)
        until = time.monotonic() + PATIENCE_S
        while not terminal.is_stopped and terminal.is_running and time.monotonic() < until:
            terminal.read(0.05)
        if terminal.is_running and not terminal.is_stopped:
            self._hangs(terminal, "it did not stop")
        terminal.send(signal.SIGCONT)

    # What becomes of the job meanwhile.

    def _change(self) -> None:
        there = (self._store / "walk").exists()
        what = self.rnd.choice(("again", "other", *(["delete"] if there else [])))
        self.done.append(f"<{what}>")
        self.changes += 1
        if what == "delete":
            Store(self._store).remove("walk")
        else:
            self._import(self.traces if what == "again" else SAMPLES / "healthy")

    def _import_if_gone(self) -> None:
        if not (self._store / "walk").exists():
            self._import(self.traces)

    def _import(self, traces: Path) -> None:
        if not (traces / "job.json").exists():
            Store(self._store).import_traces([traces], "walk", cache=Path(os.environ["KAIR_CACHE"]), replace=True)
            return
        # A simulated one is a job's folder already: it takes the place of the other as an import's does.
        copy, old = self._store / ".copy", self._store / ".old"
        shutil.copytree(traces, copy)
        if (self._store / "walk").exists():
            (self._store / "walk").rename(old)
        copy.rename(self._store / "walk")
        shutil.rmtree(old, ignore_errors=True)

    @property
    def _store(self) -> Path:
        return Path(os.environ["KAIR_STORE"])

    # What must hold.

    def _hangs(self, terminal: Terminal, said: str) -> None:
        self.complaints.append(said)
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            terminal.send(number)
            terminal.settle(2.0)
        self.complaints += [f"told: {mark.decode()}" for mark in MARKS if mark in terminal.written]
        self.done.append(terminal.written[-TOLD:].decode(errors="replace"))
        self.done.append((self.folder / THREADS).read_text())

    def _wait(self, terminal: Terminal, text: bytes) -> bool:
        until = time.monotonic() + PATIENCE_S
        while text not in terminal.written and time.monotonic() < until:
            terminal.read(0.2)
        return text in terminal.written

    def _judge(self, terminal: Terminal, end: signal.Signals | None, before: Sequence[object]) -> None:
        try:
            status = terminal.status()
        except TimeoutExpired:
            self._hangs(terminal, "it did not end")
            return
        terminal.settle(0.1)
        if end is not None and status != 128 + end:
            self.complaints.append(f"status {status} after {end.name}")
        self.complaints += [f"told: {mark.decode()}" for mark in MARKS if mark in terminal.written]
        *_, after = terminal.written.rpartition(b"\x1b[?1049l")
        if b"\x1b[?1049l" not in terminal.written or b"\x1b[?25h" not in after:
            self.complaints.append("the terminal still shows the full screen, or no cursor")
        if terminal.modes() != before:
            self.complaints.append("the terminal is not in the modes that it was in")
        if self.complaints:
            self.done.append(after[-TOLD:].decode(errors="replace"))


def main() -> int:
    """Plays the walks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=10_000, help="of all jobs together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", choices=[job.name for job in JOBS])
    wanted = parser.parse_args()
    chosen = [job for job in JOBS if not wanted.only or job.name in wanted.only]
    folder = Path(tempfile.mkdtemp(prefix="kair-keys-"))
    os.environ |= {"KAIR_STORE": str(folder / "store"), "XDG_DATA_HOME": str(folder / "data")}
    os.environ |= {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "engine"), os.environ.get("PYTHONPATH", "")])}
    os.environ.setdefault("KAIR_CACHE", str(folder / "cache"))
    os.chdir(folder)
    failed = False
    try:
        for job in chosen:
            traces = job.traces(folder)
            if traces is None:
                print(f"{job.name}: not here")
                continue
            walk = Walk(folder, traces, wanted.keys // len(chosen), random.Random(f"{wanted.seed} {job.name}"))
            walk.run()
            count = f"{walk.pressed} keys, {walk.signals} signals, {walk.changes} changes of the job"
            said = f"{len(walk.failures)} failures" if walk.failures else "no traceback, terminal restored"
            print(f"{job.name}: {count}: {said}", *walk.failures, sep="\n  ", flush=True)
            failed |= bool(walk.failures)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
