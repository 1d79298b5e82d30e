"""The ledger of a store: the predictions for each job, and the runs that were triaged.

The folder `.ledger` of the store has a file per job, which outlives the job's recording, with a line for each run and
prediction: a checksum, a blank, and JSON. A damaged line is skipped, and dropped with the next change. A process that
changes a file locks the folder, and replaces the file in one step. Nothing is sent anywhere.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Final

import msgspec

from kair_engine.frozen import dataclass
from kair_engine.results.ledger import JobRun, LedgerEntry
from kair_engine.trace.files import make_folder, modes_below, read_kept, write_whole
from kair_engine.trace.json_text import encode_json
from kair_engine.trace.model import KairWarning, short_warning

FOLDER: Final = ".ledger"
_SUFFIX: Final = ".lines"
_MOST_ENTRIES: Final = 1000
_MOST_RUNS: Final = 200
"""Runs of a job, the newest."""
_DIGITS: Final = 16


class _Line(msgspec.Struct, omit_defaults=True):
    entry: LedgerEntry | None = None
    run: JobRun | None = None


@dataclass(frozen=True)
class JobLedger:
    """The ledger of one job."""

    entries: tuple[LedgerEntry, ...] = ()
    runs: tuple[JobRun, ...] = ()
    damaged: int = 0
    """Lines that were skipped."""
    of_others: tuple[bytes, ...] = ()
    """Intact lines of a kind that this version does not know: they are kept."""


def ledger_of(store: Path, job: str) -> JobLedger:
    """Return the ledger of a job; empty if there is no file, or it cannot be read."""
    try:
        content = read_kept(_file(store, job))
    except OSError:
        return JobLedger()
    return _decoded(content)


def whole_ledger(store: Path) -> tuple[dict[str, JobLedger], list[KairWarning]]:
    """Return the ledger of every past or present job, by name, and a warning for each damaged file."""
    found, warnings = {}, []
    for file in sorted((store / FOLDER).glob(f"[!.]*{_SUFFIX}")):
        job = file.name.removesuffix(_SUFFIX)
        found[job] = ledger_of(store, job)
        if damaged := found[job].damaged:
            lines = "line is" if damaged == 1 else "lines are"
            warnings.append(
                short_warning("damaged_ledger", f"{damaged} {lines} left out of the ledger of job {job}: damaged")
            )
    return found, warnings


def change_ledger(store: Path, job: str, change: Callable[[JobLedger], JobLedger]) -> JobLedger:
    """Return a job's ledger after `change`, which runs while no other process changes it.

    If the store cannot be written, return what would have been kept.
    """
    with suppress(OSError), _alone(store):
        kept = ledger_of(store, job)
        changed = change(kept)
        if changed != kept:
            write_whole(_file(store, job), _encoded(changed), modes_below(store))
        return changed
    return change(ledger_of(store, job))


@contextmanager
def _alone(store: Path) -> Iterator[None]:
    """Wait until no other process changes the ledger. Raises OSError if it cannot be written."""
    folder = store / FOLDER
    make_folder(folder, modes_below(store))
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _file(store: Path, job: str) -> Path:
    return store / FOLDER / f"{job}{_SUFFIX}"


def _decoded(content: bytes) -> JobLedger:
    entries, runs, others, damaged = list[LedgerEntry](), list[JobRun](), list[bytes](), 0
    for line in content.splitlines():
        checksum, _, body = line.partition(b" ")
        if checksum != _checksum(body):
            damaged += 1
            continue
        try:
            record = msgspec.json.decode(body, type=_Line)
        except (ValueError, RecursionError):
            others.append(line)
            continue
        if record.entry is not None:
            entries.append(record.entry)
        if record.run is not None:
            runs.append(record.run)
    return JobLedger(tuple(entries), tuple(runs), damaged, tuple(others))


def _encoded(ledger: JobLedger) -> bytes:
    known = [_Line(run=run) for run in ledger.runs[-_MOST_RUNS:]]
    known += [_Line(entry=entry) for entry in ledger.entries[-_MOST_ENTRIES:]]
    bodies = map(encode_json, known)
    lines = [*ledger.of_others, *(_checksum(body) + b" " + body for body in bodies)]
    return b"".join(line + b"\n" for line in lines)


def _checksum(body: bytes) -> bytes:
    return blake2b(body, digest_size=_DIGITS // 2).hexdigest().encode()
