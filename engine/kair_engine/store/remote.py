"""A store behind a URL (`s3://…`, `gs://…`, whatever pyarrow or fsspec support), and its mirror on this machine.

Reads use the mirror, a folder of the cache, into which jobs are fetched on demand. Files are written whole: to a
temporary key first, which is then moved to its name. The file system defines a move; object stores copy, and a copy
appears whole as well. Named files never change except `job.json` and a job's status, each in one such move, after all
files that it names.
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
    """Return the URL in the path of a store's folder, which has lost a slash; None for a folder."""
    match = _URL.fullmatch(str(place))
    if match is None or place.exists():
        return None
    return f"{match[1]}://{'/' if match[1] == 'file' else ''}{match[2]}"


def mirror_of(url: str, cache: Path) -> Path:
    """Return the local folder that mirrors the store `url`, created if missing. Raises OSError."""
    folder = cache / _MIRRORS / _mirror_name(url)
    if _mirrored(folder) != url:
        make_folder(folder)
        write_whole(folder / _MARK, url.encode("utf-8", "surrogateescape"))
    return folder


def place_of(store: Path, job: str | None = None) -> str:
    """Return where a store, or a job of it, is: the URL of a mirror, without any password in it, else the folder."""
    url = _mirrored(store)
    if url is None:
        return str(store if job is None else store / job)
    root, mark, options = re.sub(r"(?<=://)[^/@]*@", "", url).partition("?")
    return f"{root}{mark}{options}" if job is None else f"{root.rstrip('/')}/{job}{mark}{options}"


def remote_of(store: Path) -> "RemoteStore | None":
    """Return the store that a folder mirrors; None for a local store.

    Raises UsageError if the URL cannot be used.
    """
    url = _mirrored(store)
    return None if url is None else RemoteStore(url, store)


def _mirrored(folder: Path) -> str | None:
    """Return the URL that a folder mirrors.

    A mirror is cleared of files that its store lacks, so a folder of another name never counts as one, whatever its
    mark.
    """
    try:
        url = read_kept(folder / _MARK).decode("utf-8", "surrogateescape")
    except OSError:
        return None
    return url if folder.name == _mirror_name(url) else None


def _mirror_name(url: str) -> str:
    return blake2b(url.encode("utf-8", "surrogateescape"), digest_size=12).hexdigest()


class RemoteStore:
    """The keys below one URL. Names are relative, with slashes. All methods raise OSError if it is unreachable."""

    def __init__(self, url: str, mirror: Path) -> None:
        """Raise UsageError for an unsupported URL."""
        self.url: Final = url
        self._mirror = mirror
        self._given: tuple[Any, str] | None = None

    def put(self, source: Path, name: str) -> None:
        """Write a file; it appears whole, or is replaced in one step."""
        files, root = self._files()
        target = f"{root}/{name}"
        parent, _, last = target.rpartition("/")
        unfinished = f"{parent}/.{last}.{secrets.token_hex(4)}"
        with self._as_os_errors():
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
        """Read a key into a file, which appears whole. Raises FileNotFoundError if it does not exist."""
        files, root = self._files()
        with _fetching(self._mirror) as folder:
            unfinished = folder / "file"
            with (
                self._as_os_errors(),
                files.open_input_stream(f"{root}/{name}") as content,
                unfinished.open("xb") as copy,
            ):
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
        """Return unfinished names of `put` below a folder → when they were written (Unix, s); None if unknown.

        A killed process leaves one. Nobody reads them; if one is removed that still grows, `put` fails and is retried.
        """
        return {
            name: None if one.mtime_ns is None else one.mtime_ns / 1e9
            for name, one in self._listed(folder, deep=True)
            if _UNFINISHED.fullmatch(one.base_name)
        }

    def _listed(self, folder: str, *, deep: bool) -> Iterator[tuple[str, Any]]:
        """Yield names with file information. Keys may hold `..`: names that lead out of the store are left out."""
        from pyarrow.fs import FileSelector

        files, root = self._files()
        base = f"{root}/{folder}".rstrip("/")
        with self._as_os_errors():
            found = files.get_file_info(FileSelector(base, allow_not_found=True, recursive=deep))
        for one in found:
            name = PurePosixPath(one.path.lstrip("/")).relative_to(root.lstrip("/"))
            if ".." not in name.parts:
                yield str(name), one

    def remove(self, name: str) -> None:
        """Remove a key, which may no longer exist."""
        files, root = self._files()
        with suppress(FileNotFoundError), self._as_os_errors():
            files.delete_file(f"{root}/{name}")

    def _files(self) -> tuple[Any, str]:
        """Return the file system, and the path of the store in it; connected on first use."""
        if self._given is None:
            with self._as_os_errors():
                files, path = _connected(self.url)
            self._given = files, path.rstrip("/")
        return self._given

    @contextmanager
    def _as_os_errors(self) -> Iterator[None]:
        """Convert the various errors of file systems to OSError."""
        try:
            yield
        except (OSError, UsageError):
            raise
        except Exception as error:
            raise OSError(f"{type(error).__name__}: {error}") from error


@contextmanager
def _fetching(mirror: Path) -> Iterator[Path]:
    """Make a folder for incomplete files. The next command removes the one of a killed process."""
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
    """Make a mirror list the jobs of its store; a job that was opened here stays as it was then.

    Does nothing for a local store. Raises InputError if the store is unreachable.
    """
    remote = remote_of(store)
    if remote is None:
        return
    with _away(remote):
        jobs = [name for name, size in remote.sizes(deep=False).items() if size < 0 and _JOB.fullmatch(name)]
        for job in jobs:
            if not is_job_folder(store / job):
                with suppress(FileNotFoundError):  # a job of which nothing was sampled yet
                    remote.get(f"{job}/{JOB_FILE}", store / job / JOB_FILE)
    for folder in store.iterdir():
        if _JOB.fullmatch(folder.name) and folder.name not in jobs and holds_job(folder):
            shutil.rmtree(folder, ignore_errors=True)


def fetch_job(store: Path, job: str) -> None:
    """Update a mirror's job: first its missing files, then its `job.json`.

    Does nothing for a local store, if the store has no such job, or while a coordinator works on the mirror, which is
    then newer than the store. Raises InputError if the store is unreachable.
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
                # The job's files were joined with others and removed meanwhile; the job now names the joined ones.
                if not again:
                    raise
            else:
                return


def fetch_status(store: Path, job: str) -> None:
    """Fetch the status of a watched job."""
    remote = remote_of(store)
    if remote is None or not _JOB.fullmatch(job) or _is_worked_on(store / job):
        return
    with _away(remote):
        for name in _STATUS:
            with suppress(FileNotFoundError):
                remote.get(f"{job}/{name}", store / job / name)


def fetch_confirmed(store: Path, job: str) -> None:
    """Fetch the results of `kair confirm` for the job."""
    _fetch_folder(store, job, "confirm", ".json")


def fetch_evidence(store: Path, job: str) -> None:
    """Fetch the job's evidence: new tables about hosts and devices, and its ranks' identities."""
    _fetch_folder(store, job, "evidence", ".json")
    _fetch_folder(store, job, "evidence", ".parquet", only_new=True)


def _fetch_folder(store: Path, job: str, folder: str, ending: str, *, only_new: bool = False) -> None:
    """Fetch a folder's files; `only_new`: a local file of the same size counts as equal."""
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
"""How often a folder is listed if files disappear while they are fetched: they were joined, or rewritten."""


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
    """Fetch a job. Raises FileNotFoundError if something disappeared meanwhile."""
    with _fetching(folder.parent) as fetched:
        try:
            remote.get(f"{job}/{JOB_FILE}", fetched / JOB_FILE)
        except FileNotFoundError:
            return
        document = _read(remote, job, fetched)
        for name in _missing(folder, document):
            remote.get(f"{job}/{name}", folder / name)
        make_folder(folder / document.recording)
        (fetched / JOB_FILE).replace(folder / JOB_FILE)


def _read(remote: RemoteStore, job: str, fetched: Path) -> JobFile:
    try:
        return read_job_file(fetched)
    except DamagedJobError as error:
        raise InputError(str(error).replace(str(fetched), f"{remote.url}/{job}")) from error


def _missing(folder: Path, job: JobFile) -> Iterator[str]:
    """Yield the missing files of a job. read_job_file has checked that no path leads out of the folder."""
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
