"""Finds the job of a command: named, by path, or the one in use."""

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kair_engine.errors import InputError, KairError, UsageError
from kair_engine.frozen import dataclass
from kair_engine.trace.model import Trace
from kair_tui.cli.places import OF_TRACES, cache_limit, cache_root, data_root, is_mirror, memory_limit, store_root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kair_engine.recording.importing import Progress
    from kair_engine.store.jobs import Store
    from kair_tui.cli.output.progress import Watcher


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


def open_job(
    job: str | None, chosen_store: Path | None, *, progress: "Progress", note: "Callable[[str], None]"
) -> Trace:
    """The trace of `job`, or of the job in use, in which case `note` is told which one that is.

    Raises InputError where there is none.
    """
    source = locate(job, chosen_store)
    if source.why is not None:
        note(f"using job {source.name} ({source.why})")
    return open_source(source, progress=progress)


def tidy(chosen_store: Path | None) -> None:
    """Removes what commands that were killed left in the store, in the cache and among the user's own."""
    from kair_engine.recording.cache_upkeep import tidy_cache
    from kair_engine.recording.store_upkeep import tidy_store
    from kair_engine.trace.permissions import remove_unwritten

    tidy_store(store_root(chosen_store))
    tidy_cache(cache_root())
    for kind in OF_TRACES:
        remove_unwritten(data_root() / kind)


def locate(job: str | None, chosen_store: Path | None) -> JobSource:
    """Where `job`, or the job in use, is. Raises InputError where there is none, UsageError for an empty name."""
    root = store_root(chosen_store)
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


def _fetch(root: Path, job: str | None) -> None:
    """Of a store behind a URL: the job, or without one the list of all."""
    from kair_engine.store.remote import fetch_job, fetch_jobs

    if job is None:
        fetch_jobs(root)
    else:
        fetch_job(root, job)


def open_source(source: JobSource, *, progress: "Progress") -> Trace:
    """The trace of a job that was located. Raises InputError where it is unreadable or none."""
    from kair_engine.trace.malloc_trim import keep_freed_memory  # loads ctypes, as numpy does
    from kair_engine.trace.steps.memory_limit import limit_memory

    keep_freed_memory()
    limit_memory(memory_limit())
    if source.stored:
        return _store(source.path.parent).open(source.path.name)
    from kair_engine.recording.opening import open_trace

    return open_trace(source.path, cache=cache_root(), cache_limit=cache_limit(), progress=progress)


@contextmanager
def blaming_files(*traces: Trace) -> "Iterator[None]":
    """Raises InputError where what is done within fails since a trace's files are gone, or no such as Kair writes."""
    try:
        yield
    except KairError:
        raise
    except Exception as error:
        from kair_engine.trace.soundness import unsound_file

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
