"""Which job a command is about: named, by path, or the one in use."""

import os
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from kair_engine.errors import InputError
from kair_engine.model import Trace
from kair_tui.places import cache_root, store_root

if TYPE_CHECKING:
    from collections.abc import Callable

    from kair_engine.store.jobs import Store
    from kair_tui.progress import ProgressBar


def open_job(
    job: str | None, chosen_store: Path | None, *, progress: "ProgressBar", note: "Callable[[str], None]"
) -> Trace:
    """The trace of `job`, or of the job in use, in which case `note` is told which one that is.

    Raises InputError where there is none.
    """
    root = store_root(chosen_store)
    if job is None:
        job, why = _default_job(root)
        note(f"using job {job} ({why})")
    if _looks_like_path(job):
        return _open_path(Path(job), progress)
    if is_stored(job, root):
        return _store(root).open(job)
    if Path(job).exists():
        return _open_path(Path(job), progress)
    raise unknown_job(job, root)


def _default_job(root: Path) -> tuple[str, str]:
    if named := os.environ.get("KAIR_JOB"):
        return named, "$KAIR_JOB"
    store = _store(root)
    if current := store.current():
        return current, "kair use"
    if latest := store.latest():
        return latest, "most recent"
    raise InputError(
        f"no job was named, and the store {root} has none",
        "kair triage FOLDER, or kair import FOLDER --job NAME",
    )


def _looks_like_path(job: str) -> bool:
    separators = {os.sep, os.altsep or os.sep}
    return job.startswith(".") or any(separator in job for separator in separators)


def _open_path(path: Path, progress: "ProgressBar") -> Trace:
    from kair_engine.opening import open_trace

    if not path.exists():
        raise InputError(f"{path}: no such file or folder")
    return open_trace(path, cache=cache_root(), progress=progress)


def _store(root: Path) -> "Store":
    from kair_engine.store.jobs import Store

    return Store(root)


def is_stored(job: str, root: Path) -> bool:
    """Whether the store at `root` has a job of that name."""
    from kair_engine.store.job_file import is_job_folder

    return not _looks_like_path(job) and is_job_folder(root / job)


def unknown_job(job: str, root: Path) -> InputError:
    """The error for a name that is no job's, with the nearest names that are."""
    names = [stored.name for stored in _store(root).jobs()]
    near = get_close_matches(job, names, n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else "kair jobs lists the store's jobs"
    return InputError(f"no job {job!r} in the store {root}, and no such file or folder", hint)
