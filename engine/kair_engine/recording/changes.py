"""Notices that the files of a job are no longer those that were read."""

from dataclasses import dataclass
from pathlib import Path

from kair_engine.errors import InputError
from kair_engine.recording.discovery import find_files
from kair_engine.recording.job_file import JOB_FILE, holds_job


@dataclass(frozen=True)
class SourceState:
    """Every file that makes a job, with what changes when it is written anew; equal while nothing changed."""

    files: tuple[tuple[str, int, int, int], ...]
    """Path, inode, size and time of the last change (ns)."""


def state_of(source: Path) -> SourceState | None:
    """How a folder of traces, a trace file or a job folder of the store looks now; None where it is gone.

    A job of the store is told by its `job.json`, which is written last, whole, and anew with each import.
    """
    try:
        files = (source / JOB_FILE,) if holds_job(source) else find_files(source).files
        states = [(str(path), path.stat()) for path in files]
    except (InputError, OSError):
        return None
    return SourceState(tuple((path, of.st_ino, of.st_size, of.st_mtime_ns) for path, of in states)) if states else None
