"""Finds the job of a command: named, by path, or the one in use.

The grammar of `--step`.

Notes: what a person wrote of a job, kept with it.

A cache of one entry: what one question leaves for the next, in the hands of whoever asks both.
"""

import os
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from kair_engine.errors import InputError, KairError, UsageError
from kair_engine.frozen import dataclass
from kair_engine.trace.model import Job, Trace
from kair_tui.cli.places import (
    OF_TRACES,
    cache_limit,
    cache_root,
    data_root,
    is_mirror,
    kept_with,
    memory_limit,
    store_root,
)
from kair_tui.render.answer import Note
from kair_tui.render.units import spans

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kair_engine.recording.importing import Progress
    from kair_engine.store.jobs import Store
    from kair_tui.cli.output import Watcher


@dataclass(frozen=True)
class StoreSession:
    """What a command about the store is given: the store, and whom long work reports to."""

    store: "Store"
    progress: "Watcher"


@dataclass(frozen=True)
class JobWanted:
    """The job and the steps that were asked for, and in which store; None where nothing was said."""

    job: str | None = None
    step: str = "all"
    files: Sequence[Path] = ()
    """More files of the job, where several make it up."""
    store: Path | None = None
    debug: bool = False
    """Whether defects are told with their traceback."""


@dataclass(frozen=True)
class JobSource:
    """Where a job is."""

    name: str
    """As a command names it: a name in the store, or a path."""
    path: Path
    stored: bool
    """True for a job of the store, whose folder `path` is."""
    why: str | None = None
    """Why it was taken, where none was named."""
    more: tuple[Path, ...] = ()
    """The other files, where several were named as one job."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """All that was named."""
        return (self.path, *self.more)


def open_job(
    job: str | None,
    chosen_store: Path | None,
    *,
    progress: "Progress",
    note: "Callable[[str], None]",
    files: Sequence[Path] = (),
    reads_history: bool = False,
) -> Trace:
    """The trace of `job`, or of the job in use, in which case `note` is told which one that is.

    `files` are others that belong to it. Raises InputError where there is none. With `reads_history` a job that is
    watched need not be sampled: its trace has no steps.
    """
    try:
        source = locate(job, chosen_store, files)
    except InputError:
        if reads_history and (watched := _watched(job or os.environ.get("KAIR_JOB", ""), chosen_store)) is not None:
            return watched
        raise
    if source.why is not None:
        note(f"using job {source.name} ({source.why})")
    return open_source(source, progress=progress)


def _watched(job: str, chosen_store: Path | None) -> Trace | None:
    """A job of which only the history of steps is known; None of any other."""
    from kair_tui.cli.step_history import unsampled

    folder = store_root(chosen_store) / job
    return unsampled(folder) if job and not _looks_like_path(job) and (folder / "capture").is_dir() else None


def tidy(chosen_store: Path | None) -> None:
    """Removes what commands that were killed left in the store, in the cache and among the user's own."""
    from kair_engine.recording.cache import tidy_cache
    from kair_engine.recording.job_file import tidy_store
    from kair_engine.trace.files import remove_unwritten

    tidy_store(store_root(chosen_store))
    tidy_cache(cache_root())
    for kind in OF_TRACES:
        remove_unwritten(data_root() / kind)


def locate(job: str | None, chosen_store: Path | None, files: Sequence[Path] = ()) -> JobSource:
    """Where `job`, or the job in use, is; with more `files`, where the one job is that they are together.

    Raises InputError where there is none, UsageError for an empty name, or several jobs.
    """
    root = store_root(chosen_store)
    if job is not None and files:
        return _of_files([Path(job), *files], root)
    why = None
    mirrors = is_mirror(root)
    if mirrors and job is None:
        _fetch(root, None)
    if job is None:
        job, why = _default_job(root)
    if not job.strip():
        raise UsageError(
            "the job's name is empty", "a variable that is not set? Without any name the job in use is taken"
        )
    path = Path(job)
    if mirrors:
        _fetch(root, job)
    if is_stored(job, root):
        return JobSource(job, root / job, True, why)
    if path.exists():
        return JobSource(job, path, False, why)
    if _looks_like_path(job):
        raise InputError(f"{path}: no such file or folder")
    raise unknown_job(job, root)


def _of_files(paths: Sequence[Path], root: Path) -> JobSource:
    """Several files, or folders, that are one job, which has the name of the folder that all are in."""
    for path in paths:
        if path.exists():
            continue
        if is_stored(str(path), root):
            raise UsageError(
                f"{path} is a job of the store: several files make one job, several jobs do not",
                "kair compare JOB1 JOB2",
            )
        raise InputError(f"{path}: no such file or folder")
    common = Path(os.path.commonpath([path.resolve() if path.is_dir() else path.resolve().parent for path in paths]))
    return JobSource(common.name or "trace", paths[0], False, more=tuple(paths[1:]))


def names_a_job(word: str) -> bool:
    """Whether a first word, which is no command, is there as a file or folder, or as a job of the store in use."""
    if not word.strip():
        return False
    if Path(word).exists():
        return True
    root = store_root(None)
    return is_stored(word, root) or (not _looks_like_path(word) and (root / word / "capture").is_dir())


def sources_of(job: Job) -> list[str]:
    """The files and folders that a job was read from, as they were named.

    Of several `source` has a list; a name that has a comma of its own is told by what there is.
    """
    parts = job.source.split(", ")
    return parts if len(parts) > 1 and all(map(os.path.exists, parts)) else [job.source]


def _fetch(root: Path, job: str | None) -> None:
    """Of a store behind a URL: the job, or without one the list of all."""
    from kair_engine.store.remote import fetch_job, fetch_jobs

    if job is None:
        fetch_jobs(root)
    else:
        fetch_job(root, job)


def open_source(source: JobSource, *, progress: "Progress") -> Trace:
    """The trace of a job that was located. Raises InputError where it is unreadable or none."""
    from kair_engine.trace.batches import (
        keep_freed_memory,  # loads ctypes, as numpy does
        limit_memory,
    )

    keep_freed_memory()
    limit_memory(memory_limit())
    if source.stored:
        return _store(source.path.parent).open(source.path.name)
    from kair_engine.recording.opening import open_sources, open_trace

    if source.more:
        return open_sources(
            source.paths, name=source.name, cache=cache_root(), cache_limit=cache_limit(), progress=progress
        ).trace
    return open_trace(source.path, cache=cache_root(), cache_limit=cache_limit(), progress=progress)


@contextmanager
def blaming_files(*traces: Trace) -> "Iterator[None]":
    """Raises InputError where what is done within fails since a trace's files are gone, or no such as Kair writes."""
    try:
        yield
    except KairError:
        raise
    except Exception as error:
        from kair_engine.trace.columns import unsound_file

        for trace in traces:
            if (found := unsound_file(trace)) is not None:
                again = "ask again" if trace.job.stored_in is None else "import the job again with --replace"
                raise InputError(f"cannot use {found[0]}: {found[1]}", again) from error
        raise


def _default_job(root: Path) -> tuple[str, str]:
    if named := os.environ.get("KAIR_JOB"):
        return named, "$KAIR_JOB"
    store = _store(root)
    if current := store.current():
        return current, "kair use"
    if latest := store.latest():
        return latest, "most recent"
    raise InputError(
        f"no job was named, and the store {store.told} has none",
        "kair triage FOLDER, or kair import FOLDER --job NAME",
    )


def _looks_like_path(job: str) -> bool:
    separators = {os.sep, os.altsep or os.sep}
    return job.startswith(".") or any(separator in job for separator in separators)


def _store(root: Path) -> "Store":
    from kair_engine.store.jobs import Store

    return Store(root)


def is_stored(job: str, root: Path) -> bool:
    """Whether the store at `root` has a job of that name."""
    from kair_engine.recording.job_file import holds_job

    return not _looks_like_path(job) and holds_job(root / job)


def unknown_job(job: str, root: Path) -> InputError:
    """The error for a name that is no job's, with the nearest names that are."""
    from difflib import get_close_matches

    if not _looks_like_path(job) and (root / job / "capture").is_dir():
        return InputError(
            f"job {job} is watched, and nothing of it was sampled yet",
            f"kair watch {job} shows its steps; kair capture now --job {job} samples some",
        )
    names = [stored.name for stored in _store(root).jobs()]
    near = get_close_matches(job, names, n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else "kair jobs lists the store's jobs"
    return InputError(f"no job {job!r} in the store {_store(root).told}, and no such file or folder", hint)


_PART = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")


@dataclass(frozen=True)
class StepChoice:
    """`all`, `last`, or ranges of step numbers, both ends included."""

    ranges: tuple[tuple[int, int], ...] = ()
    last: bool = False

    def among(self, steps: Sequence[int]) -> tuple[int, ...] | None:
        """The chosen ones of `steps`, or None for all. A single number is kept even if it is not among them.

        Raises UsageError for a range that holds none.
        """
        if self.last:
            return tuple(steps[-1:])
        if not self.ranges:
            return None
        return tuple(sorted({step for low, high in self.ranges for step in _within(low, high, steps)}))


def parse_steps(text: str) -> StepChoice:
    """`40`, `40-60`, `40,45,50-52`, `last` or `all`. Raises UsageError for anything else."""
    wanted = text.strip().lower()
    if wanted in ("all", "last"):
        return StepChoice(last=wanted == "last")
    return StepChoice(tuple(_range(part.strip(), text) for part in wanted.split(",")))


def step_text(steps: Sequence[int]) -> str:
    """The same grammar the other way: `40,45,50-52`."""
    return spans(tuple(steps), limit=len(steps)).replace(", ", ",")


def _range(part: str, whole: str) -> tuple[int, int]:
    match = _PART.fullmatch(part)
    if match is None:
        raise UsageError(f"--step {whole!r} is not a choice of steps", "use 40, 40-60, 40,45,50-52, last or all")
    low = int(match[1])
    high = int(match[2] or match[1])
    if high < low:
        raise UsageError(f"--step {part}: the range runs backwards", f"use {high}-{low}")
    return low, high


def _within(low: int, high: int, steps: Sequence[int]) -> Iterable[int]:
    if low == high:
        return (low,)
    inside = [step for step in steps if low <= step <= high]
    if not inside:
        known = f"{steps[0]}-{steps[-1]}" if steps else "none"
        raise UsageError(f"no step of {low}-{high} is among the complete steps of this job ({known})")
    return inside


class Notes:
    """Those of one job, in one file."""

    def __init__(self, file: Path, *, in_store: bool = False) -> None:
        self.file, self._in_store = file, in_store

    @classmethod
    def of(cls, job: Job) -> "Notes":
        """In the folder of a job of the store; for raw traces in the user's data folder, never beside the traces."""
        from kair_engine.recording.job_file import NOTES

        if job.stored_in is not None:
            return cls(Path(job.stored_in).parent / NOTES, in_store=True)
        return cls(kept_with(Path(job.source), "notes"))

    def all(self) -> tuple[Note, ...]:
        """In the order they were written; none where the file is missing or damaged."""
        import msgspec

        from kair_engine.trace.files import read_kept

        try:
            return msgspec.json.decode(read_kept(self.file), type=tuple[Note, ...])
        except (OSError, ValueError, RecursionError):
            return ()

    def on(self, about: str, screen: str) -> str:
        """What is noted on that already."""
        return next((one.text for one in self.all() if (one.about, one.screen) == (about, screen)), "")

    def write(self, note: Note) -> None:
        """Puts a note in the place of the one on the same; one without text takes it away. Raises OSError."""
        from kair_engine.trace.files import make_folder, modes_below, write_whole
        from kair_engine.trace.json_text import encode_json

        kept = tuple(one for one in self.all() if (one.about, one.screen) != (note.about, note.screen))
        if not self._in_store:  # There the folder of a job that was deleted is not made again.
            make_folder(self.file.parent)
        write_whole(self.file, encode_json((*kept, note) if note.text else kept), modes_below(self.file.parent))


Thing = TypeVar("Thing")


class OneEntryCache:
    """One thing, the last that was made: two of them may not fit into memory. Questions may come from several threads.

    A command whose `run` has a parameter `cache` is given it by the full screen; it is no option.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._key: Hashable = None
        self._thing: Any = None

    def holds(self, key: Hashable) -> bool:
        """Whether what was made for `key` is at hand."""
        return self._thing is not None and key == self._key

    def of(self, key: Hashable, make: Callable[[], Thing], fits: Callable[[Thing], bool] = lambda _: True) -> Thing:
        """What was made for `key`, made now where something else is kept or it does not fit.

        Raises what `make` raises.
        """
        with self._lock:
            if self._thing is None or key != self._key or not fits(self._thing):
                self._thing = None  # or both are in memory for a while
                self._thing, self._key = make(), key
            thing: Thing = self._thing
            return thing
