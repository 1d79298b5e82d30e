"""Kills every command that changes files before each of its changes, and looks at what is left.

    python validation/fuzz/kills.py --at-changes [NAME…]

After a kill `kair jobs` answers without a word, every job of the store is whole, and every file that was named has all
of its content, the old or the new, or is not there. After the same command again the folders hold what they hold
after a command that was never killed: nothing else.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests")]

from kair_engine.store.jobs import Store  # noqa: E402 (the path above leads there)

SAMPLES: Final = ROOT / "sample_traces"
TRACES, OTHER_TRACES = SAMPLES / "healthy", SAMPLES / "slow_host"
JOB, OTHER, WATCHED = "job1", "job2", "watched"
_HEX: Final = re.compile(r"(?<![0-9a-f])[0-9a-f]{7,40}(?![0-9a-f])")
_FAILED: Final = (0, 2, 3, 10)
_MOST_CHANGES: Final = 400
_LONG_AGO_S: Final = 1_700_000_000
_HOOK: Final = """
import os, signal, sys
CHANGES = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.truncate", "os.chmod"}
WRITING = os.O_WRONLY | os.O_RDWR
ground, left = sys.argv.pop(1), int(sys.argv.pop(1))

def before(event, given):
    global left
    if event not in CHANGES or event == "open" and not given[2] & WRITING:
        return
    # Names without a folder are below one that is open: a tree that is being removed, a file that gets its name.
    names = [one for one in given[: 1 if event == "open" else 2] if isinstance(one, str | bytes | os.PathLike)]
    if any(str(one).startswith(ground) or "/" not in os.fsdecode(one) for one in names):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(before)
"""
_COMMAND: Final = "from kair_tui.cli.main import main\nsys.exit(main())"
_COORDINATOR: Final = """
import functools, hashlib
from pathlib import Path
from support.captured import fragment_of, rows_for
from kair_capture.agent.spool import Spool
from kair_capture.coordinator.coordinator import Coordinator
from kair_capture.coordinator import committing, scope_log, step_log
from kair_capture.coordinator.coordinator import CoordinatorSettings
from kair_capture.places import JobPlaces
from kair_capture.wire import Rows

# Few rows and fragments are as many as a long job has: journals are packed, fragments joined.
step_log.ROWS_A_PART = 16
committing.Committer.compact = functools.partialmethod(committing.Committer.compact, 2)
store, first = Path(sys.argv[1]), int(sys.argv[2])
places = JobPlaces(store, "watched")
coordinator = Coordinator(CoordinatorSettings(places, listen=("127.0.0.1", 0)))
assert coordinator.on_rows(0, Rows(0, rows_for(0, range(first, first + 12)).tobytes())) is not None
coordinator.stop()
coordinator.run()
"""
_NOTES: Final = """
from pathlib import Path
from kair_engine.recording.opening import open_trace
from kair.app.notes import Notes
from kair.app.places import kept_with, store_root
from kair_tui.render.answer import Note
from kair.app.notes import Bookmark, Bookmarks
from kair_engine.store.jobs import Store
for job in (Store(store_root(None)).open("job1").job,):
    Notes.of(job).write(Note("rank 1", "rank", "a note", "2026-01-01T00:00:00+00:00"))
for file in (store_root(None) / "job1" / "bookmarks.json", kept_with(Path("x"), "bookmarks")):
    Bookmarks(file).toggle(Bookmark("rank 1", "rank", 1))
"""


@dataclass(frozen=True)
class Changing:
    """A command that changes files, or a program that does."""

    name: str
    words: tuple[str, ...]
    program: str = _COMMAND
    again: tuple[str, ...] | None = None
    """What completes it after a kill, where that is not the same."""
    cache_limit: str = "20G"
    measures: bool = False
    """The files that it writes have other figures each time."""


def kinds(ground: Path) -> tuple[Changing, ...]:
    """All of them. `{out}` is a folder for files that people name; `old.*` are there before."""
    out = ground / "out"
    traces, steps = str(TRACES), ("--step", "4-5")
    return (
        Changing("import", ("import", str(OTHER_TRACES), "--job", "fresh")),
        Changing("import --replace", ("import", str(OTHER_TRACES), "--job", JOB, "--replace")),
        Changing("triage of a stored job", ("triage", JOB)),
        Changing("triage of traces", ("triage", traces)),
        Changing("triage --report", ("triage", JOB, "--report", str(out / "new.html"))),
        Changing("triage --report in its place", ("triage", JOB, "--report", str(out / "old.html"))),
        Changing("fleet --report", ("fleet", "--report", str(out / "new.md"))),
        Changing("whatif --timeline", ("whatif", JOB, *steps, "--timeline", str(out / "old.json"))),
        *(
            Changing(f"export {name}", ("export", JOB, *steps, "--plain", "-o", str(out / name)))
            for name in ("new.json.gz", "old.json", "old.pftrace", "new.csv", "old.parquet", "new.arrow")
        ),
        Changing("jobs --whatif", ("jobs", "--whatif")),
        Changing("jobs rm", ("jobs", "rm", OTHER)),
        Changing("jobs rm of the job in use", ("jobs", "rm", JOB)),
        Changing("use", ("use", OTHER)),
        Changing("baseline save", ("baseline", "save", "fresh", JOB)),
        Changing("baseline save --replace", ("baseline", "save", "healthy", OTHER, "--replace")),
        Changing("baseline use", ("baseline", "use", "healthy")),
        Changing("baseline use none", ("baseline", "use", "none")),
        Changing("baseline rm", ("baseline", "rm", "healthy")),
        Changing("triage that evicts", ("triage", str(SAMPLES / "slow_operator")), cache_limit="1M"),
        Changing("cache clear", ("cache", "clear")),
        Changing(
            "probe --out",
            ("probe", "--seconds", "0.1", "--device", "cpu", "--out", str(out / "old.json")),
            measures=True,
        ),
        Changing("run", ("run", str(ground / "book.kair"), JOB)),
        Changing("shell -c", ("shell", JOB, "-c", f"use job {OTHER}; triage; export --plain -o {out / 'new.csv'}")),
        Changing("--man-pages", ("--man-pages", str(ground / "man"))),
        Changing("--install-completion", ("--install-completion", "fish")),
        Changing("notes and bookmarks", (), _NOTES),
        Changing("coordinator", (str(ground / "store"), "20"), _COORDINATOR),
    )


@dataclass(frozen=True)
class Outcome:
    """One kill, and what was wrong after it."""

    kind: str
    change: int
    wrong: tuple[str, ...]


class Ground:
    """Folders as they are before each command; made once, and copied."""

    def __init__(self, folder: Path) -> None:
        self._kept, self.folder = folder / "kept", folder / "ground"
        self.folder.mkdir()
        self._prepare()
        self.folder.rename(self._kept)
        self._reference: dict[str, tuple[set[str], Mapping[str, int]]] = {}

    @property
    def environment(self) -> Mapping[str, str]:
        """Of every command."""
        places = {
            "KAIR_STORE": "store",
            "KAIR_CACHE": "cache",
            "TMPDIR": "tmp",
            "HOME": "home",
            "XDG_DATA_HOME": "data",
            "KAIR_JOB": "",
        }
        own = {name: str(self.folder / place) if place else "" for name, place in places.items()}
        return {**os.environ, **own, "PYTHONPATH": os.pathsep.join(sys.path)}

    def run(self, kind: Changing, change: int = 0, *, again: bool = False) -> "subprocess.CompletedProcess[str]":
        """Runs it, killed before that change; to its end where it has fewer, or the change is 0."""
        words = kind.again if again and kind.again is not None else kind.words
        command = [sys.executable, "-c", _HOOK + kind.program, str(self.folder), str(change), *words]
        return subprocess.run(
            command,
            env={**self.environment, "KAIR_CACHE_LIMIT": kind.cache_limit},
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            errors="replace",
        )

    def killed(self, kind: Changing, change: int) -> Outcome | None:
        """What is wrong after a kill before that change; None where the command has fewer."""
        if kind.name not in self._reference:
            self._reset()
            self._expect_answer(self.run(kind))
            sizes = self._named_sizes()
            self._expect_answer(self.run(Changing("jobs", ("jobs",))))
            self.run(kind, again=True)
            self._reference[kind.name] = self._paths(), sizes
        self._reset()
        done = self.run(kind, change)
        if done.returncode != -signal.SIGKILL:
            return None
        return Outcome(kind.name, change, tuple(self._look(kind)))

    def _look(self, kind: Changing) -> Iterator[str]:
        paths, sizes = self._reference[kind.name]
        before = self._named_sizes(self._kept)
        for name, size in self._named_sizes().items():
            if kind.measures and size != before.get(name):
                json.loads((self.folder / name).read_bytes())
            elif not Path(name).name.startswith(".") and size not in (before.get(name), sizes.get(name)):
                yield f"{name} has {size} bytes, {sizes.get(name)} when it is whole"
        listed = self.run(Changing("jobs", ("jobs", "--json")))
        if listed.returncode or listed.stderr:
            yield f"kair jobs: {listed.returncode} {listed.stderr}"
        yield from self._damaged_jobs()
        again = self.run(kind, again=True)
        if again.returncode not in _FAILED or "Traceback" in again.stderr:
            yield f"again: {again.returncode} {again.stderr[-600:]}"
        yield from self._damaged_jobs()
        yield from (f"left: {path}" for path in sorted(self._paths() - paths))
        yield from (f"missing: {path}" for path in sorted(paths - self._paths()))

    def _damaged_jobs(self) -> Iterator[str]:
        jobs, warnings = Store(self.folder / "store").listing()
        yield from (f"jobs: {warning.message}" for warning in warnings)
        for job in jobs:
            trace = Store(self.folder / "store").open(job.name)
            if trace.job.warnings and job.name != WATCHED:
                yield f"{job.name}: {trace.job.warnings}"
            if trace.scan().collect().height < trace.job.operations:
                yield f"{job.name} has fewer rows than operations"

    def _named_sizes(self, ground: Path | None = None) -> dict[str, int]:
        ground = ground or self.folder
        return {
            str(path.relative_to(ground)): path.stat().st_size
            for folder in ("out", "man", "home")
            for path in (ground / folder).rglob("*")
            if path.is_file()
        }

    def _paths(self) -> set[str]:
        """Everything there, what is random in the names left out."""
        found = (str(path.relative_to(self.folder)) for path in self.folder.rglob("*"))
        return {_HEX.sub("HEX", re.sub(r"\.\d+\.(?=[0-9a-f]{8}$)", ".PID.", name)) for name in found}

    def _reset(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self._kept, self.folder, symlinks=True)

    def _prepare(self) -> None:
        for name in ("tmp", "out", "home", "data", "man"):
            (self.folder / name).mkdir()
        for source, job in ((TRACES, JOB), (OTHER_TRACES, OTHER)):
            self._expect_answer(self.run(Changing("import", ("import", str(source), "--job", job))))
        for words in (("baseline", "save", "healthy", JOB), ("use", JOB)):
            self._expect_answer(self.run(Changing("prepare", words)))
        for name in ("old.html", "old.json", "old.pftrace", "old.parquet"):
            (self.folder / "out" / name).write_text("before")
        book = "t = triage\nuse step 4-5\nexport --plain -o out/old.json\nuse step all\n"
        (self.folder / "book.kair").write_text(book)
        for path in (self.folder / "cache").rglob("*"):
            os.utime(path, (_LONG_AGO_S, _LONG_AGO_S))
        self._watch()

    def _watch(self) -> None:
        """A job that a coordinator has watched, to which agents have delivered since."""
        program = _COORDINATOR + (
            "from kair_capture.wire import read_key\n"
            "key = read_key(places.key, places.job)\n"
            "for number in range(3):\n"
            "    spool = Spool(store.parent / 'spool', 1 << 30, places.delivered, 'node-1', None)\n"
            "    at = 40 + 10 * number\n"
            "    spool.put(fragment_of(store.parent / f'work{number}', range(2), first=at), at, at + 3, key)\n"
            "    spool.deliver_waiting()\n"
        )
        for first in (0, 12):
            kind = Changing("watch", (str(self.folder / "store"), str(first)), program if first else _COORDINATOR)
            self._expect_answer(self.run(kind))
        for folder in ("spool", "work0", "work1", "work2"):
            shutil.rmtree(self.folder / folder)

    @staticmethod
    def _expect_answer(done: "subprocess.CompletedProcess[str]") -> None:
        if done.returncode not in (0, 10):
            raise SystemExit(f"{json.dumps(done.args[4:])}: {done.returncode} {done.stderr[-2000:]}")


def kills_at_changes(folder: Path, names: Sequence[str] = ()) -> Iterator[Outcome]:
    """Every command, or those whose names are given, killed before every change that it makes to a file."""
    ground = Ground(folder)
    for kind in kinds(ground.folder):
        if names and kind.name not in names:
            continue
        for change in range(1, _MOST_CHANGES):
            outcome = ground.killed(kind, change)
            if outcome is None:
                break
            yield outcome
