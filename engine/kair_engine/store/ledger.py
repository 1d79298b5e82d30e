"""The ledger of a store: what was predicted of each job, and which runs were triaged.

A file for each job in the folder `.ledger` of the store, so that it outlives the job's recording; a line for each run
and prediction: a checksum, a blank, and JSON. A damaged line is passed over, and goes with the next change. Whoever
changes a file has the folder to itself, and the new file takes the old one's place in one step. Nothing of it is sent
anywhere.
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
"""Of a job, the newest."""
_DIGITS: Final = 16


class _Line(msgspec.Struct, omit_defaults=True):
    entry: LedgerEntry | None = None
    run: JobRun | None = None


@dataclass(frozen=True)
class JobLedger:
    """What is kept of one job."""

    entries: tuple[LedgerEntry, ...] = ()
    runs: tuple[JobRun, ...] = ()
    damaged: int = 0
    """Lines that were passed over."""
    of_others: tuple[bytes, ...] = ()
    """Whole lines that this version does not know: they stay."""


def ledger_of(store: Path, job: str) -> JobLedger:
    """Return what is kept of a job; nothing where there is no file, or it cannot be read."""
    try:
        content = read_kept(_file(store, job))
    except OSError:
        return JobLedger()
    return _decoded(content)


def whole_ledger(store: Path) -> tuple[dict[str, JobLedger], list[KairWarning]]:
    """Of every job that there was, by its name, and a warning for each file with damage."""
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
    """Return what is kept of a job after `change`, which is called while no other process changes it.

    A store that cannot be written goes without: then it is what would have been kept.
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
    """Wait until no other process changes the ledger. Raises OSError where there is no writing."""
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
            told = msgspec.json.decode(body, type=_Line)
        except (ValueError, RecursionError):
            others.append(line)
            continue
        if told.entry is not None:
            entries.append(told.entry)
        if told.run is not None:
            runs.append(told.run)
    return JobLedger(tuple(entries), tuple(runs), damaged, tuple(others))


def _encoded(ledger: JobLedger) -> bytes:
    told = [_Line(run=run) for run in ledger.runs[-_MOST_RUNS:]]
    told += [_Line(entry=entry) for entry in ledger.entries[-_MOST_ENTRIES:]]
    bodies = map(encode_json, told)
    lines = [*ledger.of_others, *(_checksum(body) + b" " + body for body in bodies)]
    return b"".join(line + b"\n" for line in lines)


def _checksum(body: bytes) -> bytes:
    return blake2b(body, digest_size=_DIGITS // 2).hexdigest().encode()
