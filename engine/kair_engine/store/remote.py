"""A store behind a URL (`s3://…`, `gs://…`, whatever pyarrow or fsspec know), and its mirror on this machine.

What is read is read from the mirror, a folder of the cache, into which jobs are fetched as they are asked for. What is
written appears whole: it goes to a key of its own first and is moved to its name then. A move is what the file system
has for it; object stores copy, and a copy appears whole as well. Nothing that has a name is ever changed but
`job.json` and what says how a job is doing, each in one such move, after everything that it names.
"""

import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from typing import Any, Final

from kair_engine.errors import DamagedJobError, InputError, UsageError
from kair_engine.recording.job_file import FETCHING, JOB_FILE, JobFile, holds_job, is_job_folder, read_job_file
from kair_engine.recording.kept_files import hold
from kair_engine.trace.files import make_folder, open_kept, read_kept, write_whole

_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+(.+)")
_MARK: Final = ".remote"
_MIRRORS: Final = "stores"
_COPIED_AT_ONCE: Final = 1 << 20
_STATUS: Final = ("capture/status.json", "capture/alerts.ndjson")
_COORDINATORS_LOCK: Final = "capture/lock"
_UNFINISHED: Final = re.compile(r"\..+\.[0-9a-f]{8}")
_JOB: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def url_in(place: Path) -> str | None:
    """Return the URL that was given for a store's folder, of which a path has swallowed a slash; None where it is a
    folder.
    """
    match = _URL.fullmatch(str(place))
    if match is None or place.exists():
        return None
    return f"{match[1]}://{'/' if match[1] == 'file' else ''}{match[2]}"


def mirror_of(url: str, cache: Path) -> Path:
    """Return the folder that stands for the store `url` here; it is made where it is missing. Raises OSError."""
    folder = cache / _MIRRORS / _mirror_name(url)
    if _mirrored(folder) != url:
        make_folder(folder)
        write_whole(folder / _MARK, url.encode("utf-8", "surrogateescape"))
    return folder


def place_of(store: Path, job: str | None = None) -> str:
    """Where a store, or a job of it, is: the URL where the folder is a mirror, without a password that stands in it."""
    url = _mirrored(store)
    if url is None:
        return str(store if job is None else store / job)
    root, mark, options = re.sub(r"(?<=://)[^/@]*@", "", url).partition("?")
    return f"{root}{mark}{options}" if job is None else f"{root.rstrip('/')}/{job}{mark}{options}"


def remote_of(store: Path) -> "RemoteStore | None":
    """Return what a folder is the mirror of; None for a store of its own.

    Raises UsageError where the URL cannot be used.
    """
    url = _mirrored(store)
    return None if url is None else RemoteStore(url, store)


def _mirrored(folder: Path) -> str | None:
    """Return the URL that a folder is the mirror of.

    Of what the store lacks a mirror is emptied: a folder of another name is none, whoever wrote the mark into it.
    """
    try:
        url = read_kept(folder / _MARK).decode("utf-8", "surrogateescape")
    except OSError:
        return None
    return url if folder.name == _mirror_name(url) else None


def _mirror_name(url: str) -> str:
    return blake2b(url.encode("utf-8", "surrogateescape"), digest_size=12).hexdigest()


class RemoteStore:
    """The keys below one URL. Names are relative, with slashes. All methods raise OSError where it is away."""

    def __init__(self, url: str, mirror: Path) -> None:
        """Raise UsageError where nothing is known of such URLs."""
        self.url: Final = url
        self._mirror = mirror
        self._given: tuple[Any, str] | None = None

    def put(self, source: Path, name: str) -> None:
        """Write a file; it appears whole, or is replaced in one step."""
        files, root = self._files()
        target = f"{root}/{name}"
        parent, _, last = target.rpartition("/")
        unfinished = f"{parent}/.{last}.{secrets.token_hex(4)}"
        with self._told():
            files.create_dir(parent, recursive=True)
            try:
                with source.open("rb") as content, files.open_output_stream(unfinished) as copy:
                    shutil.copyfileobj(content, copy, _COPIED_AT_ONCE)
                files.move(unfinished, target)
            except BaseException:
                with suppress(Exception):
                    files.delete_file(unfinished)
                raise

    def get(self, name: str, target: Path) -> None:
        """Read a key into a file, which appears whole. Raises FileNotFoundError where there is none."""
        files, root = self._files()
        with _fetching(self._mirror) as folder:
            unfinished = folder / "file"
            with self._told(), files.open_input_stream(f"{root}/{name}") as content, unfinished.open("xb") as copy:
                os.fchmod(copy.fileno(), 0o600)
                shutil.copyfileobj(content, copy, _COPIED_AT_ONCE)
            make_folder(target.parent)
            unfinished.replace(target)

    def sizes(self, folder: str = "", *, deep: bool = True) -> dict[str, int]:
        """Return the names below a folder and their sizes, -1 for folders; unfinished ones are left out."""
        from pyarrow.fs import FileType

        return {
            name: one.size if one.type == FileType.File else -1
            for name, one in self._listed(folder, deep=deep)
            if not one.base_name.startswith(".")
        }

    def unfinished(self, folder: str = "") -> dict[str, float | None]:
        """Names below a folder that `put` began, and when they were written (Unix, s); None where that is not told.

        Whoever was killed there leaves one. Nobody reads them; where one is removed that still grows, `put` fails, and
        is tried again.
        """
        return {
            name: None if one.mtime_ns is None else one.mtime_ns / 1e9
            for name, one in self._listed(folder, deep=True)
            if _UNFINISHED.fullmatch(one.base_name)
        }

    def _listed(self, folder: str, *, deep: bool) -> Iterator[tuple[str, Any]]:
        """Names and what the file system says of them. Keys may hold `..`: what leads out of the store is left out."""
        from pyarrow.fs import FileSelector

        files, root = self._files()
        base = f"{root}/{folder}".rstrip("/")
        with self._told():
            found = files.get_file_info(FileSelector(base, allow_not_found=True, recursive=deep))
        for one in found:
            name = PurePosixPath(one.path.lstrip("/")).relative_to(root.lstrip("/"))
            if ".." not in name.parts:
                yield str(name), one

    def remove(self, name: str) -> None:
        """Remove a key, which may be gone already."""
        files, root = self._files()
        with suppress(FileNotFoundError), self._told():
            files.delete_file(f"{root}/{name}")

    def _files(self) -> tuple[Any, str]:
        """Return the file system, and the path of the store in it; connected when it is needed first."""
        if self._given is None:
            with self._told():
                files, path = _connected(self.url)
            self._given = files, path.rstrip("/")
        return self._given

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Raise as OSError what file systems raise that are written elsewhere."""
        try:
            yield
        except (OSError, UsageError):
            raise
        except Exception as error:
            raise OSError(f"{type(error).__name__}: {error}") from error


@contextmanager
def _fetching(mirror: Path) -> Iterator[Path]:
    """Make a folder for what is not whole yet. One that a killed process leaves goes with the next command."""
    held = None
    while held is None:
        folder = mirror / f".{secrets.token_hex(4)}{FETCHING}"
        make_folder(folder)
        with suppress(FileNotFoundError):  # another process took it for a leftover
            held = hold(folder)
    with held:
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _connected(url: str) -> tuple[Any, str]:
    import pyarrow as pa
    from pyarrow.fs import FileSystem, FSSpecHandler, PyFileSystem

    try:
        files, path = FileSystem.from_uri(url)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        try:
            import fsspec
        except ImportError:
            raise UsageError(f"the store {url} needs fsspec ({error})", "pip install 'kair[fsspec]'") from error
        try:
            found, path = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as unknown:
            raise UsageError(f"the store {url} cannot be used: {unknown}") from unknown
        files = PyFileSystem(FSSpecHandler(found))
    return files, path


def fetch_jobs(store: Path) -> None:
    """Make a mirror list the jobs that its store has; a job that was opened here stays as it was then.

    Does nothing for a store of its own. Raises InputError where the store is away.
    """
    remote = remote_of(store)
    if remote is None:
        return
    with _away(remote):
        jobs = [name for name, size in remote.sizes(deep=False).items() if size < 0 and _JOB.fullmatch(name)]
        for job in jobs:
            if not is_job_folder(store / job):
                with suppress(FileNotFoundError):  # one of which nothing was sampled yet
                    remote.get(f"{job}/{JOB_FILE}", store / job / JOB_FILE)
    for folder in store.iterdir():
        if _JOB.fullmatch(folder.name) and folder.name not in jobs and holds_job(folder):
            shutil.rmtree(folder, ignore_errors=True)


def fetch_job(store: Path, job: str) -> None:
    """Brings a mirror's job up to date: what is missing of it, and its `job.json` then.

    Does nothing for a store of its own, where the store has no such job, or where a coordinator works on the mirror:
    then it is ahead of the store. Raises InputError where the store is away.
    """
    if not _is_worked_on(store / job):
        restore_job(store, job)


def restore_job(store: Path, job: str) -> None:
    """Restore a job for the coordinator itself."""
    remote = remote_of(store)
    if remote is None or not _JOB.fullmatch(job):
        return
    with _away(remote):
        for again in (True, True, False):
            try:
                _fetch(remote, store / job, job)
            except FileNotFoundError:
                # What the job named was joined with others and removed meanwhile: it names those now.
                if not again:
                    raise
            else:
                return


def fetch_status(store: Path, job: str) -> None:
    """Fetch how a job that is watched is doing."""
    remote = remote_of(store)
    if remote is None or not _JOB.fullmatch(job) or _is_worked_on(store / job):
        return
    with _away(remote):
        for name in _STATUS:
            with suppress(FileNotFoundError):
                remote.get(f"{job}/{name}", store / job / name)


def fetch_confirmed(store: Path, job: str) -> None:
    """Fetch what `kair confirm` found in it."""
    _fetch_folder(store, job, "confirm", ".json")


def fetch_evidence(store: Path, job: str) -> None:
    """Fetch what is known of its hosts and devices: tables that are not here yet, and who its ranks are."""
    _fetch_folder(store, job, "evidence", ".json")
    _fetch_folder(store, job, "evidence", ".parquet", only_new=True)


def _fetch_folder(store: Path, job: str, folder: str, ending: str, *, only_new: bool = False) -> None:
    """`only_new`: what is here with the same size is the same."""
    remote = remote_of(store)
    if remote is None or not _JOB.fullmatch(job) or _is_worked_on(store / job):
        return
    with _away(remote):
        for _ in range(_LISTED):
            is_whole = True
            for name, size in remote.sizes(f"{job}/{folder}").items():
                if size >= 0 and name.endswith(ending) and not (only_new and _has_size(store / name, size)):
                    try:
                        remote.get(name, store / name)
                    except FileNotFoundError:
                        is_whole = False
            if is_whole:
                return


_LISTED: Final = 3
"""Times that a folder is looked into where files go while they are fetched: they were joined, or written anew."""


def _has_size(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except OSError:
        return False


def _is_worked_on(folder: Path) -> bool:
    try:
        handle = open_kept(folder / _COORDINATORS_LOCK)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def _fetch(remote: RemoteStore, folder: Path, job: str) -> None:
    """Raise FileNotFoundError where something went while it was fetched."""
    with _fetching(folder.parent) as beside:
        try:
            remote.get(f"{job}/{JOB_FILE}", beside / JOB_FILE)
        except FileNotFoundError:
            return
        document = _read(remote, job, beside)
        for name in _missing(folder, document):
            remote.get(f"{job}/{name}", folder / name)
        make_folder(folder / document.recording)
        (beside / JOB_FILE).replace(folder / JOB_FILE)


def _read(remote: RemoteStore, job: str, fetched: Path) -> JobFile:
    try:
        return read_job_file(fetched)
    except DamagedJobError as error:
        raise InputError(str(error).replace(str(fetched), f"{remote.url}/{job}")) from error


def _missing(folder: Path, job: JobFile) -> Iterator[str]:
    """Yield the files of a job that are not here. read_job_file has seen to it that no path leads out of the folder."""
    for fragment in job.fragments:
        if not _has_size(folder / fragment.path, fragment.seal.bytes):
            yield fragment.path


@contextmanager
def _away(remote: RemoteStore) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        text = " ".join(str(error).split())[:300]
        raise InputError(f"cannot read the store {remote.url}: {text}") from error
