"""What killed imports left in a store, and recordings that were replaced: removed once nobody uses them."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from kair_engine.recording.in_use import remove_unused
from kair_engine.recording.job_file import read_job_file, recordings_in
from kair_engine.trace.permissions import remove_unwritten

IMPORTING: Final = ".importing"
"""How the name of a folder ends in which a job is put together; it begins with a dot."""
REMOVED: Final = ".removed"
"""The same of a job that was removed."""
FETCHING: Final = ".fetching"
"""The same of what comes from a store behind a URL."""
CAPTURE: Final = "capture"
"""The folder of a job in which its coordinator keeps what it has to know."""
_PASSING: Final = (IMPORTING, REMOVED, FETCHING)


def tidy_store(root: Path) -> None:
    """Looks at the whole store; one that is not there, or cannot be written, stays as it is."""
    with suppress(OSError), os.scandir(root) as entries:
        found = [(Path(entry.path), entry.name) for entry in entries if entry.is_dir(follow_symlinks=False)]
        remove_unused(path for path, name in found if name.startswith(".") and name.endswith(_PASSING))
        tidy_jobs(path for path, name in found if not name.startswith("."))
        for folder in (root, *(path for path, _ in found)):
            remove_unwritten(folder)
            remove_unwritten(folder / CAPTURE)


def tidy_jobs(folders: Iterable[Path], *, without_locks: bool = False) -> None:
    """Removes recordings that are not their job's any more, and what is half written in the others.

    `without_locks` those that somebody may read, where nobody can tell.
    """
    for folder in folders:
        recordings = recordings_in(folder)
        for recording in recordings:
            remove_unwritten(recording)
        if len(recordings) > 1:
            remove_unused(recordings, _is_replaced, without_locks)


def _is_replaced(recording: Path) -> bool:
    """Raises InputError where that cannot be told."""
    return recording.name != read_job_file(recording.parent).recording
