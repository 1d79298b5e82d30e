"""The store: imported jobs in folders of their own, and the one that is in use."""

import os
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import quote

from kair_engine.errors import InputError, KairError, NameTakenError, NoRoomError, UsageError
from kair_engine.recording.cache import write_whole
from kair_engine.recording.importing import Progress
from kair_engine.recording.job_assembly import AssembledJob
from kair_engine.recording.job_file import (
    USERS_OWN,
    JobFile,
    is_job_folder,
    open_job_folder,
    read_job_file,
    write_job_file,
)
from kair_engine.recording.opening import open_sources
from kair_engine.store.verdicts import KeptVerdict, last_verdict
from kair_engine.trace.model import FragmentInfo, KairWarning, Trace
from kair_engine.trace.warning_texts import short_warning

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_CURRENT: Final = "current"


@dataclass(frozen=True)
class StoredJob:
    """One job of the store, for a list of them."""

    name: str
    imported_at: str
    """UTC, ISO 8601."""
    source: str
    world_size: int
    ranks: int
    steps: int
    operations: int
    path: Path
    last: KeptVerdict | None


class Store:
    """The jobs below one folder. A job is there whole or not at all; lists pass over damaged ones."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def jobs(self) -> list[StoredJob]:
        """Every job, by name."""
        return self.listing()[0]

    def listing(self) -> tuple[list[StoredJob], list[KairWarning]]:
        """Every job, by name, and a warning for each that is damaged and left out."""
        try:
            folders = sorted(path for path in self.root.iterdir() if _NAME.fullmatch(path.name))
        except OSError:
            return [], []
        found, damaged = [], []
        for folder in filter(is_job_folder, folders):
            try:
                found.append(_summary(folder))
            except InputError as error:
                damaged.append(short_warning("damaged_job", f"job {folder.name} is left out: {error}"))
        return found, damaged

    def open(self, name: str) -> Trace:
        """The trace of a job. Raises UsageError where there is none of that name."""
        return open_job_folder(self._existing(name))

    def use(self, name: str) -> None:
        """Makes a job the one that commands take when none is named."""
        self._existing(name)
        try:
            write_whole(self.root / f".{_CURRENT}", name.encode())
        except OSError as error:
            raise KairError(f"cannot write the store {self.root}: {error.strerror or error}") from error

    def current(self) -> str | None:
        """The job in use, where it still exists."""
        try:
            name = (self.root / f".{_CURRENT}").read_text().strip()
        except (OSError, UnicodeDecodeError):
            return None
        return name if _NAME.fullmatch(name) and is_job_folder(self.root / name) else None

    def latest(self) -> str | None:
        """The job imported last."""
        latest = max(self.jobs(), key=lambda job: (job.imported_at, job.name), default=None)
        return latest.name if latest else None

    def import_traces(
        self,
        sources: Sequence[Path],
        job: str,
        *,
        cache: Path,
        replace: bool = False,
        progress: Progress | None = None,
        workers: int | None = None,
    ) -> Trace:
        """Parses `sources` and keeps them as `job`, which appears whole or not at all.

        Raises NameTakenError, UsageError for a name that is not allowed, InputError where there is no trace,
        NoRoomError when the disk is full.
        """
        self._check_free(job, replace)
        assembled = open_sources(sources, name=job, cache=cache, progress=progress, workers=workers)
        try:
            self._commit(assembled, sources, replace)
        except OSError as error:
            raise NoRoomError(f"cannot write the store {self.root}: {error.strerror or error}") from error
        return self.open(job)

    def _check_free(self, name: str, replace: bool) -> None:
        if not _NAME.fullmatch(name):
            raise UsageError(f"{name!r} cannot name a job", "letters, digits, `.`, `_` and `-`, at most 100")
        if (self.root / name).exists() and not replace:
            raise NameTakenError(name)

    def _existing(self, name: str) -> Path:
        folder = self.root / name
        if _NAME.fullmatch(name) and is_job_folder(folder):
            return folder
        known = ", ".join(job.name for job in self.jobs()[:8])
        raise UsageError(f"no job {name} in the store", f"it has {known}" if known else "the store is empty")

    def _commit(self, assembled: AssembledJob, sources: Sequence[Path], replace: bool) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        name = assembled.trace.job.name
        folder, final = self.root / f".{name}.{os.getpid()}.{os.urandom(4).hex()}", self.root / name
        try:
            _fill(folder, assembled, sources)
            if replace and final.exists():
                old = folder.with_name(f"{folder.name}.old")
                for name in USERS_OWN:
                    with suppress(FileNotFoundError):
                        shutil.copyfile(final / name, folder / name)
                final.rename(old)
                folder.rename(final)
                shutil.rmtree(old, ignore_errors=True)
            else:
                folder.rename(final)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _fill(folder: Path, assembled: AssembledJob, sources: Sequence[Path]) -> None:
    fragments = []
    for number, fragment in enumerate(assembled.fragments):
        relative = _fragment_path(fragment.info, number)
        (folder / relative).parent.mkdir(parents=True, exist_ok=True)
        _link_or_copy(fragment.path, folder / relative)
        fragments.append((relative, fragment.info))
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    name = assembled.trace.job.name
    source = ", ".join(str(one.absolute()) for one in sources)
    write_job_file(folder, JobFile(name, now, source, tuple(fragments), assembled.input_warnings))


def _fragment_path(info: FragmentInfo, number: int) -> str:
    hosts = sorted(set(info.hosts.values()))
    host = quote(hosts[0], safe="")[:80] if len(hosts) == 1 else "unknown"
    ranks = f"rank-{info.ranks[0]:05}" if len(info.ranks) == 1 else "ranks"
    return f"fragments/host={host}/{ranks}-{number:05}.parquet"


def _link_or_copy(source: Path, target: Path) -> None:
    """A hard link where both lie on one file system: fragments are never written to again, only replaced."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _summary(folder: Path) -> StoredJob:
    job = read_job_file(folder)
    opened = open_job_folder(folder).job
    return StoredJob(
        folder.name,
        job.imported_at,
        job.source,
        opened.world_size,
        len(opened.ranks),
        len(opened.steps),
        opened.operations,
        folder,
        last_verdict(folder),
    )
