"""Find the job that was named, by path, by its name in the store, or the one in use; and open it."""

import os
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kair.app.places import (
    OF_TRACES,
    cache_limit,
    cache_root,
    data_root,
    is_mirror,
    memory_limit,
    state_of_files,
    store_root,
)
from kair_engine.errors import InputError, KairError, UsageError
from kair_engine.frozen import dataclass

if TYPE_CHECKING:
    from kair.app.question import Watcher
    from kair_engine.store.jobs import Store
    from kair_engine.trace.model import Job, Trace


@dataclass(frozen=True)
class JobSource:
    """States where a job is: files, or an entry of a store."""

    name: str
    """As a command names it: a name in the store, or a path."""
    path: Path
    stored: bool
    """True for a job of the store, whose folder `path` is."""
    why: str | None = None
    """Why it was taken, where none was named."""
    more: tuple[Path, ...] = ()
    """The other files, where several were named as one job."""
    log_pattern: str | None = None
    """The expression of a log's lines of steps; None for those that are known."""

    @property
    def key(self) -> tuple[Path | str | None, ...]:
        """Return what is read and how; equal keys mean the same job."""
        return (*self.paths, self.log_pattern)

    @property
    def paths(self) -> tuple[Path, ...]:
        """Return all named paths."""
        return (self.path, *self.more)


def tidy(chosen_store: Path | None) -> None:
    """Remove what killed commands left in the store, in the cache and in the user's data folder."""
    from kair_engine.recording.cache import tidy_cache
    from kair_engine.recording.job_file import tidy_store
    from kair_engine.trace.files import remove_unwritten

    tidy_store(store_root(chosen_store))
    tidy_cache(cache_root())
    for kind in OF_TRACES:
        remove_unwritten(data_root() / kind)


def locate(job: str | None, chosen_store: Path | None, files: Sequence[Path] = ()) -> JobSource:
    """Return where `job`, or the job in use, is; with more `files`, they are one job together.

    Raises InputError for an unknown job, UsageError for an empty name or several jobs.
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
        raise _missing(path)
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
        raise _missing(path)
    common = Path(os.path.commonpath([path.resolve() if path.is_dir() else path.resolve().parent for path in paths]))
    return JobSource(common.name or "trace", paths[0], False, more=tuple(paths[1:]))


def _missing(path: Path) -> InputError:
    from kair_engine.recording.opening import unreachable

    return unreachable(path, FileNotFoundError())


def names_a_job(word: str) -> bool:
    """Return whether a word is a path (it exists, or has a slash), or a job of the store in use."""
    if not word.strip():
        return False
    if Path(word).exists() or "/" in word:
        return True
    root = store_root(None)
    return is_stored(word, root)


def sources_of(job: "Job") -> list[str]:
    """Return the files and folders that a job was read from, as they were named.

    `source` lists several with commas; a name with a comma of its own is recognised because it exists.
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


def open_source(source: JobSource, *, progress: "Watcher") -> "Trace":
    """Return the trace of a located job. Raises InputError if it is unreadable or not a job."""
    from kair_engine.recording.job_file import holds_job, is_watched
    from kair_engine.trace.batches import (
        keep_freed_memory,  # loads ctypes, as numpy does
        limit_memory,
    )

    keep_freed_memory()
    limit_memory(memory_limit())
    if source.stored:
        if not holds_job(source.path):
            from kair.app.step_history import unsampled

            if (watched := unsampled(source.path)) is not None:  # its steps, and no operation
                return watched
            if is_watched(source.path):
                raise nothing_recorded(source.path)
        return _store(source.path.parent).open(source.path.name)
    from kair.app.inspector import inspector_logs, job_of_inspector
    from kair.app.logs import job_of_log, log_of

    if source.log_pattern is None and (files := inspector_logs(source.paths)):
        return job_of_inspector(files, source.name, source.paths, progress)
    lines = log_of(source.paths, source.log_pattern)
    if lines is None:
        return _opened_files(source, progress)
    try:
        trace = _opened_files(source, progress)
    except InputError:  # it says nothing but how long steps took
        return job_of_log(lines, source.name, source.paths)
    return replace(trace, lines=lines)


def _opened_files(source: JobSource, progress: "Watcher") -> "Trace":
    from kair_engine.recording.opening import open_sources, open_trace

    if source.more:
        return open_sources(
            source.paths, name=source.name, cache=cache_root(), cache_limit=cache_limit(), progress=progress
        ).trace
    return open_trace(source.path, cache=cache_root(), cache_limit=cache_limit(), progress=progress)


def nothing_recorded(folder: Path) -> InputError:
    """Return the error for a watched job without any recorded step, with a hint of what works."""
    if (folder / "capture" / "status.json").exists():
        hint = f"kair watch {folder.name} shows its ranks"
        return InputError(f"job {folder.name} is watched, and no step of it was recorded yet", hint)
    hint = f"kair coordinator --job {folder.name}"
    return InputError(f"job {folder.name} has no coordinator, which records its steps", hint)


def files_of(source: JobSource) -> Hashable:
    """Return the state of a job's files, None if they are gone; for a job that is only watched, of its records."""
    from kair_engine.recording.job_file import holds_job, is_watched
    from kair_engine.recording.opening import state_of

    if source.stored and is_watched(source.path) and not holds_job(source.path):
        return "watched", *(state_of_files(source.path / name) for name in ("steps", "hangs"))
    return state_of(source.path)


def read_source(source: JobSource, *, progress: "Watcher") -> "tuple[Trace, Hashable]":
    """Open a job, and return the state of its files before. Raises InputError if it is unreadable or not a job."""
    state = files_of(source)
    return open_source(source, progress=progress), state


def committed_at(job: str, chosen_store: Path | None) -> int | None:
    """Return when the store's job of that name was last written, Unix ns; None without such a job."""
    from kair_engine.recording.job_file import JOB_FILE

    with suppress(OSError):
        return (store_root(chosen_store) / job / JOB_FILE).stat().st_mtime_ns
    return None


@contextmanager
def blaming_files(*traces: "Trace") -> Iterator[None]:
    """Raise InputError if the body fails because a trace's files are gone or damaged."""
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
        f"no job was named, and the store {store.address} has none",
        "kair triage FOLDER, or kair import FOLDER --job NAME",
    )


def _looks_like_path(job: str) -> bool:
    separators = {os.sep, os.altsep or os.sep}
    return job.startswith(".") or any(separator in job for separator in separators)


def _store(root: Path) -> "Store":
    from kair_engine.store.jobs import Store

    return Store(root)


def is_stored(job: str, root: Path) -> bool:
    """Return whether the store at `root` has a job of that name, imported, sampled or only watched."""
    from kair_engine.recording.job_file import holds_job, is_watched

    return not _looks_like_path(job) and (holds_job(root / job) or is_watched(root / job))


def unknown_job(job: str, root: Path) -> InputError:
    """Return the error for an unknown job, with the most similar names."""
    from difflib import get_close_matches

    store = _store(root)
    names = [*(stored.name for stored in store.jobs()), *store.watched()]
    near = get_close_matches(job, names, n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else "kair jobs lists the store's jobs"
    return InputError(f"no job {job!r} in the store {store.address}, and no such file or folder", hint)
