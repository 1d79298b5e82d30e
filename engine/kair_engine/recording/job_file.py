"""A job folder of the store: `job.json`, what the job is, beside its `fragments/`."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from kair_engine.errors import DamagedJobError, InputError
from kair_engine.recording.cache import write_whole
from kair_engine.recording.job_assembly import Fragment, assemble
from kair_engine.trace.model import FragmentInfo, KairWarning, Trace
from kair_engine.trace.warning_texts import short_warning

JOB_FILE: Final = "job.json"
BOOKMARKS: Final = "bookmarks.json"
NOTES: Final = "notes.json"
USERS_OWN: Final = (BOOKMARKS, NOTES)
"""What a person made of the job: it stays when the job is replaced."""
SCHEMA: Final = "kair.job"
VERSION: Final = 2


@dataclass(frozen=True)
class JobFile:
    """What `job.json` says; fragment paths are relative to its folder."""

    name: str
    imported_at: str
    source: str
    fragments: tuple[tuple[str, FragmentInfo], ...]
    warnings: tuple[KairWarning, ...]


def is_job_folder(path: Path) -> bool:
    """Whether `path` is a job folder, rather than a folder of traces with some job.json of its own."""
    try:
        with (path / JOB_FILE).open("rb") as file:
            return f'"{SCHEMA}"'.encode() in file.read(200)
    except OSError:
        return False


def write_job_file(folder: Path, job: JobFile) -> None:
    """Writes `job.json` whole. Raises OSError when the disk is full."""
    document = {
        "schema": SCHEMA,
        "version": VERSION,
        "name": job.name,
        "imported_at": job.imported_at,
        "source": job.source,
        "fragments": [{"path": path, "info": msgspec.to_builtins(info, str_keys=True)} for path, info in job.fragments],
        "warnings": msgspec.to_builtins(job.warnings),
    }
    write_whole(folder / JOB_FILE, json.dumps(document).encode())


def read_job_file(folder: Path) -> JobFile:
    """What `job.json` says. Raises InputError where it is damaged, newer, or points out of the folder."""
    path = folder / JOB_FILE
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise DamagedJobError(f"{path} is damaged: it is not JSON") from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise InputError(f"{path} is not a job file")
    version = document.get("version")
    if isinstance(version, int) and version != VERSION:
        by, way_out = ("a newer", "upgrade kair") if version > VERSION else ("an older", "import the job again")
        raise InputError(f"{path} was written by {by} kair (format {version}, this one reads {VERSION})", way_out)
    try:
        return _parsed(document, folder)
    except (msgspec.MsgspecError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedJobError(f"{path} is damaged: {error}") from error


def open_job_folder(folder: Path) -> Trace:
    """The trace of a job folder. Fragments that are gone are left out with a warning."""
    job = read_job_file(folder)
    fragments: list[Fragment] = []
    gone: list[Fragment] = []
    for relative, info in job.fragments:
        path = folder / relative
        (fragments if path.is_file() else gone).append(Fragment(path, info))
    warnings = [*job.warnings]
    if gone:
        text = f"{len(gone)} fragments of the job are gone, {gone[0].path} among them; they are left out"
        warnings.append(short_warning("unreadable_file", text))
    trace = assemble(job.name, str(folder), fragments, warnings).trace
    return replace(trace, job=replace(trace.job, source=job.source, stored_in=str(folder)))


def _parsed(document: dict[str, Any], folder: Path) -> JobFile:
    fragments = []
    for entry in document["fragments"]:
        relative = _inside(entry["path"], folder)
        fragments.append((relative, msgspec.convert(entry["info"], FragmentInfo, str_keys=True)))
    warnings = tuple(msgspec.convert(warning, KairWarning) for warning in document["warnings"])
    name, imported_at, source = (_text(document[key]) for key in ("name", "imported_at", "source"))
    return JobFile(name, imported_at, source, tuple(fragments), warnings)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("a field is no text")
    return value


def _inside(relative: object, folder: Path) -> str:
    """A fragment's path, which must stay within its job: job.json may come from someone else."""
    if not isinstance(relative, str) or "\0" in relative:
        raise ValueError("a fragment's path is no text")
    if not (folder / relative).resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"a fragment's path leads out of the job: {relative[:80]}")
    return relative
