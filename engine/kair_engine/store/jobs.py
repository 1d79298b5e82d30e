"""The store: imported jobs in separate folders, and the job in use."""

import errno
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import quote

from kair_engine.errors import BusyError, InputError, NameTakenError, UnwritableStoreError, UsageError
from kair_engine.recording.cache import LIMIT
from kair_engine.recording.importing import Progress
from kair_engine.recording.job_assembly import AssembledJob
from kair_engine.recording.job_file import (
    IMPORTING,
    JOB_FILE,
    RECORDING,
    REMOVED,
    JobFile,
    KeptFragment,
    described_job,
    holds_job,
    is_watched,
    open_job_folder,
    read_job_file,
    tidy_jobs,
    write_job_file,
)
from kair_engine.recording.kept_files import checksum_of, claim, hold
from kair_engine.recording.opening import open_sources
from kair_engine.results.store import StragglerCost
from kair_engine.store.kept_answers import KeptVerdict, kept_cost, last_verdict
from kair_engine.store.remote import place_of, remote_of
from kair_engine.trace.files import Modes, create_file, make_folder, modes_below, read_kept, write_whole
from kair_engine.trace.model import FragmentInfo, KairWarning, Trace, short_warning

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_CURRENT: Final = "current"
_COPIED_AT_ONCE: Final = 1 << 20


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
    cost: StragglerCost | None
    """What stragglers cost it, if that was computed."""


class Store:
    """The jobs below one folder. A job exists completely or not at all; lists skip damaged ones."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def address(self) -> str:
        """The store's name: its folder, or the URL that it mirrors."""
        return place_of(self.root)

    def jobs(self) -> list[StoredJob]:
        """Return every job, by name."""
        return self.listing()[0]

    def listing(self) -> tuple[list[StoredJob], list[KairWarning]]:
        """Return every job, by name, and a warning for each damaged one that is left out."""
        try:
            folders = sorted(path for path in self.root.iterdir() if _NAME.fullmatch(path.name))
        except OSError:
            return [], []
        found, damaged = [], []
        is_mirror = remote_of(self.root) is not None
        for folder in filter(holds_job, folders):
            try:
                found.append(_summary(folder, is_mirror=is_mirror))
            except InputError as error:
                damaged.append(short_warning("damaged_job", f"job {folder.name} is left out: {error}"))
        return found, damaged

    def watched(self) -> list[str]:
        """Return the watched jobs, past ones included, of which nothing was sampled, by name."""
        with suppress(OSError):
            folders = sorted(path for path in self.root.iterdir() if _NAME.fullmatch(path.name))
            return [path.name for path in folders if is_watched(path) and not holds_job(path)]
        return []

    def open(self, name: str) -> Trace:
        """Return the trace of a job. Raises UsageError if no job has that name."""
        return open_job_folder(self._existing(name))

    def remove(self, name: str) -> None:
        """Remove a job, even a damaged one. Raises UsageError if it does not exist, BusyError while it is imported."""
        self._require_own()
        folder = self._existing(name)
        gone = self.root / f".{name}.{os.urandom(4).hex()}{REMOVED}"
        try:
            with self._importing(name):
                # First, so that a kill leaves no name without a job, which the next job of that name would inherit.
                if self._named_current() == name:
                    (self.root / f".{_CURRENT}").unlink(missing_ok=True)
                folder.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)
        except OSError as error:
            raise UnwritableStoreError(self.root, error) from error

    def use(self, name: str) -> None:
        """Make a job the one that commands use by default."""
        self._existing(name)
        try:
            write_whole(self.root / f".{_CURRENT}", name.encode(), modes_below(self.root))
        except OSError as error:
            raise UnwritableStoreError(self.root, error) from error

    def current(self) -> str | None:
        """Return the job in use, if it still exists."""
        name = self._named_current()
        is_there = name and _NAME.fullmatch(name) and (holds_job(folder := self.root / name) or is_watched(folder))
        return name if is_there else None

    def latest(self) -> str | None:
        """Return the job imported last."""
        latest = max(self.jobs(), key=lambda job: (job.imported_at, job.name), default=None)
        return latest.name if latest else None

    def import_traces(
        self,
        sources: Sequence[Path],
        job: str,
        *,
        cache: Path,
        cache_limit: int = LIMIT,
        replace: bool = False,
        progress: Progress | None = None,
        workers: int | None = None,
    ) -> Trace:
        """Parse `sources` and keep them as `job`, which appears or is replaced whole or not at all.

        Raises NameTakenError, UsageError for an invalid name, InputError if there is no trace, BusyError while another
        process imports that job, UnwritableStoreError if the disk is full.
        """
        self._require_own()
        self._check_free(job, replace)
        try:
            _require_utf8(self.root)
            with self._importing(job) as folder:
                self._check_free(job, replace)
                assembled = open_sources(
                    sources, name=job, cache=cache, cache_limit=cache_limit, progress=progress, workers=workers
                )
                self._commit(folder, assembled, sources)
        except OSError as error:
            raise UnwritableStoreError(self.root, error) from error
        return self.open(job)

    def _require_own(self) -> None:
        """Raise UsageError if this mirrors a store behind a URL, which only `kair coordinator` writes."""
        if remote_of(self.root) is not None:
            raise UsageError("stores behind URLs are written by kair coordinator alone", "choose a folder")

    def _check_free(self, name: str, replace: bool) -> None:
        if not _NAME.fullmatch(name):
            raise UsageError(f"{name!r} cannot name a job", "letters, digits, `.`, `_` and `-`, at most 100")
        if (self.root / name).exists() and not replace:
            raise NameTakenError(name)

    def _existing(self, name: str) -> Path:
        folder = self.root / name
        if _NAME.fullmatch(name) and (holds_job(folder) or is_watched(folder)):
            return folder
        known = ", ".join(job.name for job in self.jobs()[:8])
        raise UsageError(f"no job {name} in the store", f"it has {known}" if known else "the store is empty")

    def _named_current(self) -> str | None:
        try:
            return read_kept(self.root / f".{_CURRENT}").decode().strip()
        except (OSError, UnicodeDecodeError):
            return None

    @contextmanager
    def _importing(self, name: str) -> Iterator[Path]:
        """Hold the folder in which a job is assembled, which one process at a time can have.

        Raises BusyError, OSError.
        """
        make_folder(self.root)
        folder = self.root / f".{name}{IMPORTING}"
        claimed = None
        while claimed is None:
            with suppress(FileExistsError):
                folder.mkdir(modes_below(self.root).folder)
            with suppress(FileNotFoundError):  # another process ended in between
                claimed = claim(folder)
                if claimed is None:
                    raise BusyError(f"another kair is at work on the job {name}", "wait for it, or choose another name")
        try:
            if claimed.locked:
                _empty(folder)
            yield folder
        finally:
            with claimed:
                if claimed.is_of(folder):
                    shutil.rmtree(folder, ignore_errors=True)

    def _commit(self, folder: Path, assembled: AssembledJob, sources: Sequence[Path]) -> None:
        """Fill `folder` with the job, and move that into place in one step."""
        modes, name = modes_below(self.root), assembled.trace.job.name
        recording = folder / f"{RECORDING}{os.urandom(4).hex()}"
        recording.mkdir(modes.folder)
        with hold(recording):
            fragments = _copied(assembled, recording, modes)
            now = datetime.now(UTC).isoformat(timespec="microseconds")
            source = ", ".join(str(one.absolute()) for one in sources)
            job = JobFile(name, now, source, recording.name, fragments, assembled.input_warnings)
            write_job_file(folder, job, modes)
            final = self.root / name
            if not final.exists():
                _rename_new(folder, final)
                return
            recording.rename(final / recording.name)
            (folder / JOB_FILE).replace(final / JOB_FILE)
        tidy_jobs([final], without_locks=True)


def _rename_new(folder: Path, final: Path) -> None:
    try:
        folder.rename(final)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):  # there are no locks, and someone else was faster
            raise NameTakenError(final.name) from error
        raise


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _copied(assembled: AssembledJob, recording: Path, modes: Modes) -> tuple[KeptFragment, ...]:
    """Return the fragments in the store: copies, so that a damaged cache never damages a job."""
    kept = []
    for number, fragment in enumerate(assembled.fragments):
        path = recording / _fragment_path(fragment.info, number)
        make_folder(path.parent, modes)
        with fragment.path.open("rb") as content, os.fdopen(create_file(path, modes), "wb") as copy:
            shutil.copyfileobj(content, copy, _COPIED_AT_ONCE)
        relative = path.relative_to(recording.parent).as_posix()
        kept.append(KeptFragment(relative, checksum_of(path), fragment.info))
    return tuple(kept)


def _require_utf8(root: Path) -> None:
    """Raise UsageError for other paths, which Polars cannot open."""
    try:
        str(root.absolute()).encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"the store {root} has a name that is not UTF-8", "choose another place with --store"
        ) from None


def _fragment_path(info: FragmentInfo, number: int) -> str:
    hosts = sorted(set(info.hosts.values()))
    host = quote(hosts[0], safe="")[:80] if len(hosts) == 1 else "unknown"
    ranks = f"rank-{info.ranks[0]:05}" if len(info.ranks) == 1 else "ranks"
    return f"fragments/host={host}/{ranks}-{number:05}.parquet"


def _summary(folder: Path, *, is_mirror: bool) -> StoredJob:
    job = read_job_file(folder)
    # The recordings of a job behind a URL are fetched when it is opened.
    opened = described_job(folder) if is_mirror else open_job_folder(folder).job
    return StoredJob(
        folder.name,
        job.imported_at,
        job.source,
        opened.world_size,
        len(opened.ranks),
        len(opened.steps),
        opened.operations,
        folder,
        last_verdict(folder / job.recording),
        kept_cost(folder / job.recording, opened.operations),
    )
