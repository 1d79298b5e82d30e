"""Kills imports, replacements and triages at random moments, and looks at what is left of store and cache.

    python validation/fuzz/kills.py --kills 200 --seed 0
    python validation/fuzz/kills.py --at-changes [NAME…]

After each kill: every process that the command started is gone within a second (beside the time in which a busy
machine had no processor for it), the job that was there before is there and whole, as it was or as it was to become,
and nothing else is left once another command has run. `--at-changes` kills every command that changes files, before
each change that it makes, instead of at random moments (`changes.py`).
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fuzz.changes import Outcome, kills_at_changes

from kair_engine.recording.cache import clear
from kair_engine.store.jobs import Store

SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"
BEFORE, AFTER = SAMPLES / "healthy", SAMPLES / "slow_host"
SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
KEPT, FRESH = "kept", "fresh"
ORPHAN_S = 1.0
"""How long a worker may outlive who started it, beside the time that it stood in line for a processor."""
_GIVEN_UP_S = 20.0
_KEPT_FILES = frozenset({"fragments", "verdict.json", "triage.json"})
"""Of a recording in the store."""
# The samples are small: a command that is to use workers for them has to be told.
_PROGRAM = """
import sys
from kair_engine.recording import importing

if sys.argv.pop(1) == "parallel":
    importing._PARALLEL_FROM = 0
from kair_tui.cli.main import main
sys.exit(main())
"""


@dataclass(frozen=True)
class Kind:
    """A command that is killed."""

    name: str
    words: tuple[str, ...]


KINDS = (
    Kind("import", ("import", str(AFTER), "--job", FRESH)),
    Kind("replace", ("import", str(AFTER), "--job", KEPT, "--replace")),
    Kind("replace back", ("import", str(BEFORE), "--job", KEPT, "--replace")),
    Kind("triage of a stored job", ("triage", KEPT)),
    Kind("triage of traces", ("triage", str(AFTER))),
)


@dataclass(frozen=True)
class Orphans:
    """The processes that outlived who started them."""

    lived_s: float
    in_line_s: float
    """Of that, how long one of their threads, or whoever watches them, was ready to run and had no processor."""

    @property
    def own_s(self) -> float:
        """How long they would have lived on a machine with nothing else to do."""
        return self.lived_s - self.in_line_s


@dataclass(frozen=True)
class Killed:
    """One kill, and what was wrong after it."""

    kind: str
    signal: str
    after_s: float
    was_running: bool
    orphans: "Orphans"
    wrong: tuple[str, ...]


@dataclass
class Ground:
    """A store and a cache to kill commands in."""

    folder: Path
    longest_s: float | None = None
    """Until when commands are killed; as long as they take, where that is None."""
    lengths: dict[tuple[Kind, bool], float] = field(default_factory=dict)
    rows: dict[int, int] = field(default_factory=dict)
    """The operations of either recording, and the rows of its table."""

    def __post_init__(self) -> None:
        (self.folder / "tmp").mkdir()
        self.store, self.cache = Store(self.folder / "store"), self.folder / "cache"

    @property
    def environment(self) -> Mapping[str, str]:
        """Of every command."""
        places = {"KAIR_STORE": self.store.root, "KAIR_CACHE": self.cache, "TMPDIR": self.folder / "tmp"}
        return {**os.environ, **{name: str(place) for name, place in places.items()}, "KAIR_JOB": ""}

    def start(self, words: Sequence[str], mode: str = "alone") -> "subprocess.Popen[bytes]":
        """A command in a session of its own, by which its workers are found."""
        return subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, mode, *words],
            env=self.environment,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def prepare(self) -> None:
        """The job that is there before, and how long each command takes."""
        for source in (AFTER, BEFORE):
            trace = self.store.import_traces([source], KEPT, cache=self.cache, replace=True)
            self.rows[trace.job.operations] = trace.scan().collect().height
        for kind in KINDS if self.longest_s is None else ():
            for parallel in (False, True):
                self._reset()
                began = time.monotonic()
                _, errors = self.start(kind.words, "parallel" if parallel else "alone").communicate()
                if errors:
                    raise SystemExit(f"{kind.name}: {errors.decode()}")
                self.lengths[kind, parallel] = time.monotonic() - began

    def kill(self, chance: random.Random) -> Killed:
        """One kill, and the look at what is left."""
        self._reset()
        kind, parallel, number = chance.choice(KINDS), chance.random() < 0.7, chance.choice(SIGNALS)
        after = chance.uniform(0, self.lengths.get((kind, parallel), self.longest_s or 0))
        process = self.start(kind.words, "parallel" if parallel else "alone")
        time.sleep(after)
        running = process.poll() is None
        if running:
            process.send_signal(number)
        return self._left_by(process, kind, number, after, running)

    def _left_by(
        self, process: "subprocess.Popen[bytes]", kind: Kind, number: signal.Signals, after: float, running: bool
    ) -> Killed:
        process.wait()
        orphans = _until_gone(process.pid)
        _, errors = process.communicate()
        wrong = [] if orphans.own_s <= ORPHAN_S else [f"workers lived on for {orphans.own_s:.1f} s"]
        wrong += [f"said: {errors.decode()}"] if b"Traceback" in errors else []
        wrong += self._look()
        return Killed(kind.name, number.name, after, running, orphans, tuple(wrong))

    def _reset(self) -> None:
        clear(self.cache)
        if FRESH in {job.name for job in self.store.jobs()}:
            self.store.remove(FRESH)

    def _look(self) -> Iterator[str]:
        status = self.start(("jobs",))
        _, errors = status.communicate()
        if status.returncode or errors:
            yield f"kair jobs: {status.returncode} {errors.decode()}"
        names = {job.name for job in self.store.jobs()}
        if KEPT not in names or not names <= {KEPT, FRESH}:
            yield f"the store has {sorted(names)}"
        for name in names:
            trace = self.store.open(name)
            found = trace.scan().collect().height
            if trace.job.warnings or self.rows.get(trace.job.operations) != found:
                yield f"{name} has {trace.job.operations} operations in {found} rows, {trace.job.warnings}"
            del trace
        yield from (f"left: {path.relative_to(self.folder)}" for path in self._leftovers(names))

    def _leftovers(self, jobs: set[str]) -> Iterator[Path]:
        yield from (self.folder / "tmp").iterdir()
        yield from (path for path in self.store.root.iterdir() if path.name not in jobs)
        for job in jobs:
            inside = list((self.store.root / job).iterdir())
            recordings = [path for path in inside if path.name.startswith("recording-")]
            yield from recordings[1:]
            yield from (path for path in inside if path not in recordings and path.name != "job.json")
            yield from (path for path in recordings[0].iterdir() if path.name not in _KEPT_FILES)
        if self.cache.exists():
            yield from (self.cache / "unfinished").iterdir()
            stems = Counter(path.stem for path in (self.cache / "fragments").iterdir())
            yield from (self.cache / "fragments" / stem for stem, files in stems.items() if files != 2)


def kills(count: int, seed: int, folder: Path, longest_s: float | None = None) -> Iterator[Killed]:
    """So many kills, one after another; each within `longest_s` seconds, where that is given."""
    ground = Ground(folder, longest_s)
    ground.prepare()
    chance = random.Random(seed)
    for _ in range(count):
        yield ground.kill(chance)


def _until_gone(session: int) -> Orphans:
    """Waits until no process of the session is left."""
    began, first, last = time.monotonic(), dict[Path, int](), dict[Path, int]()
    while (members := _members(session)) and time.monotonic() - began < _GIVEN_UP_S:
        for waited in (_in_line_ns(pid) for pid in (*members, os.getpid())):
            first = {**waited, **first}
            last |= waited
        time.sleep(0.02)
    lived = time.monotonic() - began
    in_line = max((last[thread] - first[thread] for thread in last), default=0) / 1e9
    return Orphans(lived, min(in_line, lived))


def _in_line_ns(process: int) -> dict[Path, int]:
    """How long each of its threads has been ready to run without a processor, since it began."""
    found = {}
    for thread in Path(f"/proc/{process}/task").glob("*/schedstat"):
        with suppress(OSError):
            found[thread] = int(thread.read_text().split()[1])
    return found


def _members(session: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            _, _, rest = path.read_text().rpartition(")")
        except OSError:
            continue
        state, _, _, of_session = rest.split()[:4]
        if int(of_session) == session and state != "Z":
            found.append(int(path.parent.name))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-changes", action="store_true", help="kill before each change to a file instead")
    parser.add_argument("names", nargs="*", help="with --at-changes: the commands, as they are told")
    wanted = parser.parse_args()
    with TemporaryDirectory(prefix="kills-") as folder:
        if wanted.at_changes:
            return _tell_changes(kills_at_changes(Path(folder), wanted.names))
        return _tell(kills(wanted.kills, wanted.seed, Path(folder)))


def _tell(killed: Iterator[Killed]) -> int:
    seen = []
    for number, one in enumerate(killed, 1):
        seen.append(one)
        state = "running" if one.was_running else "over"
        lived = f"{one.orphans.own_s:4.2f} s of {one.orphans.lived_s:5.2f} s"
        print(f"{number:4} {one.signal:8} {one.after_s:5.2f} s  {state:8} {lived}  {one.kind}", flush=True)
        for text in one.wrong:
            print(f"     WRONG: {text}", flush=True)
    hit = [one for one in seen if one.was_running]
    print(f"{len(seen)} kills, {len(hit)} of a command at work, {dict(Counter(one.kind for one in hit))}")
    longest = max(one.orphans.own_s for one in seen), max(one.orphans.lived_s for one in seen)
    print("workers lived on for at most {:.2f} s, with the time in line for a processor {:.2f} s".format(*longest))
    print(f"{sum(bool(one.wrong) for one in seen)} kills left something wrong")
    return int(any(one.wrong for one in seen))


def _tell_changes(killed: Iterator[Outcome]) -> int:
    counts: Counter[str] = Counter()
    bad = 0
    for one in killed:
        counts[one.kind] += 1
        bad += bool(one.wrong)
        for text in one.wrong:
            print(f"{one.kind}, before change {one.change}\n     WRONG: {text}", flush=True)
    for kind, count in counts.items():
        print(f"{count:4} kills of {kind}")
    print(f"{counts.total()} kills, {bad} left something wrong")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
