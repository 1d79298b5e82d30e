"""A job folder of the store: `job.json`, the description of the job, next to the folder of its recording.

`job.json` names the recording's folder. A job is replaced by adding another folder and then replacing `job.json` in one
step: readers see the old recording or the new one, whole. The old one stays until nobody reads it.

Also removes, once unused, what killed imports left in a store, and replaced recordings.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from kair_engine.errors import DamagedJobError, InputError
from kair_engine.frozen import dataclass
from kair_engine.recording.fragments import Fragment
from kair_engine.recording.job_assembly import assemble
from kair_engine.recording.kept_files import (
    FileChecksum,
    Hold,
    checked_body,
    hold,
    is_intact,
    remove_unused,
    with_checksum,
)
from kair_engine.trace.files import Modes, read_kept, remove_unwritten, write_whole
from kair_engine.trace.json_text import encode_json
from kair_engine.trace.model import FragmentInfo, Job, KairWarning, Trace, short_warning

JOB_FILE: Final = "job.json"
RECORDING: Final = "recording-"
"""Prefix of recordings' folders."""
SCHEMA: Final = "kair.job"
VERSION: Final = 3


@dataclass(frozen=True)
class KeptFragment:
    """A fragment of a stored job; `path` is relative to the job's folder."""

    path: str
    seal: FileChecksum
    info: FragmentInfo


@dataclass(frozen=True)
class JobFile:
    """The content of `job.json`."""

    name: str
    imported_at: str
    source: str
    recording: str
    """The name of its folder, next to `job.json`."""
    fragments: tuple[KeptFragment, ...]
    warnings: tuple[KairWarning, ...]


def is_job_folder(path: Path) -> bool:
    """Return whether `path` is a job folder, rather than a folder of traces with an unrelated job.json."""
    try:
        return f'"{SCHEMA}"'.encode() in read_kept(path / JOB_FILE, 200)
    except OSError:
        return False


def holds_job(path: Path) -> bool:
    """Return whether a folder of the store is a job's, even a damaged one's."""
    return is_job_folder(path) or bool(recordings_in(path))


def is_watched(folder: Path) -> bool:
    """Return whether a coordinator keeps, or kept, its view of a running job in a folder of the store."""
    return (folder / "capture").is_dir()


def recordings_in(folder: Path) -> list[Path]:
    """Return the folders of recordings in a job's folder: several while the job is replaced or an old one is in use."""
    try:
        return [path for path in folder.iterdir() if path.name.startswith(RECORDING)]
    except OSError:
        return []


def write_job_file(folder: Path, job: JobFile, modes: Modes) -> None:
    """Write `job.json` whole. Raises OSError if the disk is full."""
    write_whole(folder / JOB_FILE, with_checksum(encode_json(job), schema=SCHEMA, version=VERSION), modes)


def read_job_file(folder: Path) -> JobFile:
    """Return the content of `job.json`.

    Raises InputError if it is damaged, of another version, or points out of the folder.
    """
    path = folder / JOB_FILE
    try:
        content = read_kept(path)
    except FileNotFoundError as error:
        raise DamagedJobError(f"{path} is gone") from error
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    try:
        _require_version(msgspec.json.decode(content), path)
        job = msgspec.json.decode(checked_body(content), type=JobFile)
        _require_inside(folder, (job.recording, *(fragment.path for fragment in job.fragments)))
    except (ValueError, RecursionError) as error:
        raise DamagedJobError(f"{path} is damaged: {' '.join(str(error).split())}") from error
    return job


def open_job_folder(folder: Path) -> Trace:
    """Return the trace of a job folder. Missing or damaged fragments are left out with a warning.

    While the trace is in use its files stay, even if the job is replaced. Raises InputError if no fragment is left.
    """
    job, held = _in_use(folder)
    fragments, gone, damaged = _sorted_out(folder, job)
    warnings = [*job.warnings]
    for what, lost in (("gone", gone), ("damaged", damaged)):
        if lost:
            text = f"{lost[0]}, a fragment of the job, is {what}, and left out"
            if len(lost) > 1:
                text = f"{len(lost)} fragments of the job are {what}, {lost[0]} among them; they are left out"
            warnings.append(short_warning("unreadable_file", text))
    if not fragments:
        raise DamagedJobError(f"all recordings of {folder} are gone or damaged")
    trace = assemble(job.name, str(folder), fragments, warnings).trace
    stored = replace(trace.job, source=job.source, stored_in=str(folder / job.recording))
    return replace(trace, job=stored, held=held)


def described_job(folder: Path) -> Job:
    """Return a job folder's description of its job, whether its recordings exist or not. Raises InputError."""
    job = read_job_file(folder)
    return assemble(
        job.name, str(folder), [Fragment(folder / kept.path, kept.info) for kept in job.fragments], [*job.warnings]
    ).trace.job


def _in_use(folder: Path) -> tuple[JobFile, Hold | None]:
    """Return the job file, and the hold on its recording; read again if that was replaced in between."""
    job = read_job_file(folder)
    while True:
        try:
            return job, hold(folder / job.recording)
        except FileNotFoundError:
            before, job = job, read_job_file(folder)
            if job.recording == before.recording:
                return job, None
        except OSError:
            return job, None


def _sorted_out(folder: Path, job: JobFile) -> tuple[list[Fragment], list[str], list[str]]:
    """Return the good fragments, and the paths of missing and of damaged ones."""
    good: list[Fragment] = []
    gone, damaged = [], []
    for kept in job.fragments:
        path = folder / kept.path
        try:
            if is_intact(path, kept.seal):
                good.append(Fragment(path, kept.info))
            else:
                damaged.append(kept.path)
        except OSError:
            gone.append(kept.path)
    return good, gone, damaged


def _require_version(document: Any, path: Path) -> None:  # noqa: ANN401
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise ValueError("it is not a job file")
    version = document.get("version")
    if isinstance(version, int) and version != VERSION:
        by, hint = ("a newer", "upgrade kair") if version > VERSION else ("an older", "import the job again")
        raise InputError(f"{path} was written by {by} kair (format {version}, this one reads {VERSION})", hint)


def _require_inside(folder: Path, paths: Iterable[str]) -> None:
    """Raise unless paths stay within the job: job.json may come from someone else."""
    # Not by Path.resolve, which raises for links that lead to themselves: those lead nowhere.
    whole = Path(os.path.realpath(folder))
    within = f"{str(whole).rstrip(os.sep)}{os.sep}"
    for one in paths:
        real = "" if "\0" in one else os.path.realpath(whole / one)
        if real != str(whole) and not real.startswith(within):
            raise ValueError(f"a path leads out of the job: {one[:80]!r}")


IMPORTING: Final = ".importing"
"""Suffix of the folder in which a job is assembled; its name begins with a dot."""
REMOVED: Final = ".removed"
"""Suffix of a removed job's folder."""
FETCHING: Final = ".fetching"
"""Suffix of a folder that is fetched from a store behind a URL."""
CAPTURE: Final = "capture"
"""The folder of a job in which its coordinator keeps its state."""
EVIDENCE: Final = "evidence"
"""The folder, of a job or next to traces, for telemetry, logs and schedulers' records: no trace lies in it."""
_PASSING: Final = (IMPORTING, REMOVED, FETCHING)


def tidy_store(root: Path) -> None:
    """Tidy the whole store; one that is missing, or cannot be written, stays as it is."""
    with suppress(OSError), os.scandir(root) as entries:
        found = [(Path(entry.path), entry.name) for entry in entries if entry.is_dir(follow_symlinks=False)]
        remove_unused(path for path, name in found if name.startswith(".") and name.endswith(_PASSING))
        tidy_jobs(path for path, name in found if not name.startswith("."))
        for folder in (root, *(path for path, _ in found)):
            remove_unwritten(folder)
            remove_unwritten(folder / CAPTURE)


def tidy_jobs(folders: Iterable[Path], *, without_locks: bool = False) -> None:
    """Remove replaced recordings of jobs, and unfinished files in the others.

    `without_locks`: also those that somebody may be reading, if the file system has no locks.
    """
    for folder in folders:
        recordings = recordings_in(folder)
        for recording in recordings:
            remove_unwritten(recording)
        if len(recordings) > 1:
            remove_unused(recordings, _is_replaced, without_locks)


def _is_replaced(recording: Path) -> bool:
    """Return whether the recording was replaced. Raises InputError if that is unknown."""
    return recording.name != read_job_file(recording.parent).recording
