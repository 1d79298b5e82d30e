"""A job folder of the store: `job.json`, what the job is, beside the folder of its recording.

`job.json` names the recording's folder. To replace a job is to put another folder beside it and then another `job.json`
in place of this one, which is one step: who reads the job sees the old recording or the new one, whole. The old one
stays until nobody reads it any more.

What killed imports left in a store, and recordings that were replaced: removed once nobody uses them.
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
"""How the names of recordings' folders begin."""
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
    """What `job.json` says."""

    name: str
    imported_at: str
    source: str
    recording: str
    """The name of its folder, beside `job.json`."""
    fragments: tuple[KeptFragment, ...]
    warnings: tuple[KairWarning, ...]


def is_job_folder(path: Path) -> bool:
    """Whether `path` is a job folder, rather than a folder of traces with some job.json of its own."""
    try:
        return f'"{SCHEMA}"'.encode() in read_kept(path / JOB_FILE, 200)
    except OSError:
        return False


def holds_job(path: Path) -> bool:
    """Whether a folder of the store is a job's, a damaged one's too."""
    return is_job_folder(path) or bool(recordings_in(path))


def is_watched(folder: Path) -> bool:
    """Whether a coordinator keeps, or kept, what it sees of a running job in a folder of the store."""
    return (folder / "capture").is_dir()


def recordings_in(folder: Path) -> list[Path]:
    """Return the folders of recordings in a job's: one, more while the job is being replaced or an old one is still
    read.
    """
    try:
        return [path for path in folder.iterdir() if path.name.startswith(RECORDING)]
    except OSError:
        return []


def write_job_file(folder: Path, job: JobFile, modes: Modes) -> None:
    """Write `job.json` whole. Raises OSError when the disk is full."""
    write_whole(folder / JOB_FILE, with_checksum(encode_json(job), schema=SCHEMA, version=VERSION), modes)


def read_job_file(folder: Path) -> JobFile:
    """Return what `job.json` says.

    Raises InputError where it is damaged, of another version, or points out of the folder.
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
    """Return the trace of a job folder. Fragments that are gone or damaged are left out with a warning.

    While the trace is in use its files stay, even where the job is replaced. Raises InputError where nothing is left.
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
    """Return what a job folder says of its job, whether its recordings are there or not. Raises InputError."""
    job = read_job_file(folder)
    return assemble(
        job.name, str(folder), [Fragment(folder / kept.path, kept.info) for kept in job.fragments], [*job.warnings]
    ).trace.job


def _in_use(folder: Path) -> tuple[JobFile, Hold | None]:
    """Return what the job is, and the hold on its recording; read again where that was replaced in between."""
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
    """Return the good fragments, and the paths of those that are gone and of those that are damaged."""
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
        by, way_out = ("a newer", "upgrade kair") if version > VERSION else ("an older", "import the job again")
        raise InputError(f"{path} was written by {by} kair (format {version}, this one reads {VERSION})", way_out)


def _require_inside(folder: Path, paths: Iterable[str]) -> None:
    """Paths must stay within the job: job.json may come from someone else."""
    # Not by Path.resolve, which raises for links that lead to themselves: those lead nowhere.
    whole = Path(os.path.realpath(folder))
    within = f"{str(whole).rstrip(os.sep)}{os.sep}"
    for one in paths:
        real = "" if "\0" in one else os.path.realpath(whole / one)
        if real != str(whole) and not real.startswith(within):
            raise ValueError(f"a path leads out of the job: {one[:80]!r}")


IMPORTING: Final = ".importing"
"""How the name of a folder ends in which a job is put together; it begins with a dot."""
REMOVED: Final = ".removed"
"""The same of a job that was removed."""
FETCHING: Final = ".fetching"
"""The same of what comes from a store behind a URL."""
CAPTURE: Final = "capture"
"""The folder of a job in which its coordinator keeps what it has to know."""
EVIDENCE: Final = "evidence"
"""The folder, of a job or beside traces, of what telemetry, logs and schedulers say: no trace lies in it."""
_PASSING: Final = (IMPORTING, REMOVED, FETCHING)


def tidy_store(root: Path) -> None:
    """Look at the whole store; one that is not there, or cannot be written, stays as it is."""
    with suppress(OSError), os.scandir(root) as entries:
        found = [(Path(entry.path), entry.name) for entry in entries if entry.is_dir(follow_symlinks=False)]
        remove_unused(path for path, name in found if name.startswith(".") and name.endswith(_PASSING))
        tidy_jobs(path for path, name in found if not name.startswith("."))
        for folder in (root, *(path for path, _ in found)):
            remove_unwritten(folder)
            remove_unwritten(folder / CAPTURE)


def tidy_jobs(folders: Iterable[Path], *, without_locks: bool = False) -> None:
    """Remove recordings that are not their job's any more, and what is half written in the others.

    `without_locks` those that somebody may read, where nobody can tell.
    """
    for folder in folders:
        recordings = recordings_in(folder)
        for recording in recordings:
            remove_unwritten(recording)
        if len(recordings) > 1:
            remove_unused(recordings, _is_replaced, without_locks)


def _is_replaced(recording: Path) -> bool:
    """Raise InputError where that cannot be told."""
    return recording.name != read_job_file(recording.parent).recording
