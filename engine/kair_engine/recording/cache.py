"""Caches parsed traces between runs in the user's cache folder, by the content they came from.

Each entry is `<key>.parquet`, the fragment, and `<key>.json`, its description with the checksums of both. They are
written in a separate folder under `unfinished/` and moved here when complete. Deleting any of it is safe.

Also measures the cache, and removes all of it or the least recently used entries.
"""

import errno
import hashlib
import os
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from kair_engine.errors import BusyError, UnwritableError
from kair_engine.frozen import dataclass
from kair_engine.readers.paths import archive_of, metadata_files
from kair_engine.recording.kept_files import (
    FileChecksum,
    Hold,
    checked_body,
    checksum_of,
    hold,
    is_intact,
    remove_unused,
    with_checksum,
)
from kair_engine.trace.files import OWN, make_folder, read_kept, remove_unwritten, why_distrusted, write_whole
from kair_engine.trace.json_text import encode_json, kept_json
from kair_engine.trace.model import FragmentInfo, KairWarning, short_warning

FRAGMENTS: Final = "fragments"
UNFINISHED: Final = "unfinished"
MOVING: Final = ".moving"
"""Suffix of the note with the inode of a fragment that is being moved to its place."""
CHOOSE: Final = "$KAIR_CACHE"
"""The variable that moves the cache elsewhere."""
LIMIT: Final = 20 * 10**9
"""Size of the cache in bytes, unless another limit is set."""
_RECENT_S: Final = 3600.0
"""Entries used this recently may be in use."""
_HALF_S: Final = 60.0
"""Half an entry that is older than this will not become complete."""


@dataclass(frozen=True)
class CacheSize:
    """The number of parsed traces, and the bytes of their files."""

    entries: int = 0
    bytes: int = 0


@dataclass
class _EntryFiles:
    files: list[Path]
    bytes: int = 0
    used: float = 0.0


def tidy_cache(root: Path) -> None:
    """Remove what killed imports left behind."""

    def is_left(folder: Path) -> bool:
        for moving in folder.glob(f"*{MOVING}"):
            with suppress(OSError, ValueError):
                _drop_half(root / FRAGMENTS / f"{moving.stem}.parquet", int(read_kept(moving)))
        return True

    remove_unused(leftovers(root), is_left)
    remove_unwritten(root)


def _drop_half(fragment: Path, inode: int) -> None:
    """Remove a fragment without a description, unless another import has put its own in its place."""
    if not fragment.with_suffix(".json").exists() and fragment.stat().st_ino == inode:
        fragment.unlink()


def cache_size(root: Path) -> CacheSize:
    """Return the size of the cache below `root`."""
    return _size(_entries(root))


def clear(root: Path) -> CacheSize:
    """Remove every entry. Raises BusyError while traces are parsed into it, UnwritableError if that is forbidden."""
    tidy_cache(root)
    if leftovers(root):
        raise BusyError(f"another kair is parsing traces into {root}", "clear it afterwards")
    entries = _entries(root)
    for entry in entries:
        try:
            _remove(entry)
        except OSError as error:
            raise UnwritableError(root, error, CHOOSE) from error
    return _size(entries)


def evict(root: Path, limit: int) -> CacheSize:
    """Remove the least recently used entries until `limit` bytes remain; entries of the last hour are kept."""
    now, held = time.time(), _entries(root)
    entries = sorted(held, key=lambda entry: entry.used)
    over = sum(entry.bytes for entry in entries) - limit
    removed = []
    for entry in entries:
        half = len(entry.files) == 1 and now - entry.used > _HALF_S
        if half or (over > 0 and now - entry.used > _RECENT_S):
            with suppress(OSError):
                _remove(entry)
                over -= entry.bytes
                removed.append(entry)
    return _size(removed)


def leftovers(root: Path) -> list[Path]:
    """Return the folders in which imports work, or worked until they were killed."""
    try:
        return list((root / UNFINISHED).iterdir())
    except OSError:
        return []


def _entries(root: Path) -> list[_EntryFiles]:
    found: dict[str, _EntryFiles] = {}
    with suppress(OSError):
        for path in (root / FRAGMENTS).iterdir():
            with suppress(OSError):
                status = path.stat()
                entry = found.setdefault(path.stem, _EntryFiles([]))
                entry.files.append(path)
                entry.bytes += status.st_size
                entry.used = max(entry.used, status.st_mtime)
    return list(found.values())


def _remove(entry: _EntryFiles) -> None:
    # The description first: without it there is no entry.
    for path in sorted(entry.files, key=lambda path: path.suffix):
        path.unlink(missing_ok=True)


def _size(entries: list[_EntryFiles]) -> CacheSize:
    return CacheSize(len(entries), sum(entry.bytes for entry in entries))


# Part of every key: raised whenever readers give another table for the same file.
READER_VERSION: Final = 54
_SAMPLE: Final = 64 << 10
_PARQUET_MAGIC: Final = b"PAR1"
_TEMPORARY: Final = "kair-without-cache-"
"""Prefix of temporary folders: unused ones with it are removed, so a person must not choose such a name."""


_held: Final[list[Hold]] = []
"""Temporary caches stay in use until the process ends: traces are read from them."""


class _Entry(msgspec.Struct):
    seal: FileChecksum
    info: FragmentInfo


class FragmentCache:
    """The entries below one folder; several processes may use it at once.

    A folder that others can write to is neither read nor written. If new entries take it beyond `limit` bytes, the
    least recently used ones are removed.
    """

    def __init__(self, root: Path, limit: int = LIMIT) -> None:
        self.place = root
        """Its intended place."""
        self._limit = limit
        self.warnings: tuple[KairWarning, ...] = ()
        self._root = root
        self._distrust = _distrust(root)
        self._work: Path | None = None
        self._hold: Hold | None = None

    @property
    def folder(self) -> Path:
        """The folder of the entries."""
        return self._root / FRAGMENTS

    @property
    def work(self) -> Path:
        """The folder where new ones are written until complete; `make_writable` creates it."""
        assert self._work is not None
        return self._work

    def make_writable(self) -> None:
        """Create the folders; if that fails, use temporary ones until the process ends."""
        if self._work is not None:
            return
        if self._distrust is not None:
            self._go_without(_said(self.place, self._distrust), None)
            return
        try:
            self._make_folders()
        except OSError as error:
            self.go_without(error)

    def go_without(self, error: OSError) -> None:
        """Switch to a temporary folder, and warn why. Raises UnwritableError without one, too."""
        self._go_without(f"cannot write the cache {self.place} ({error.strerror or error}; {CHOOSE})", error)

    def _go_without(self, why: str, error: OSError | None) -> None:
        self.close()
        self.warnings = (short_warning("cache_unwritable", f"{why}: parsed traces will not be kept"),)
        try:
            self._root = _temporary_root()
            self._distrust = None
            self._make_folders()
        except OSError as of_temporary:
            raise UnwritableError(self.place, error or of_temporary, CHOOSE) from of_temporary

    @property
    def is_temporary(self) -> bool:
        """Whether nothing will be kept."""
        return bool(self.warnings)

    def fragment(self, key: str) -> Path:
        """Return the path of the fragment of `key`, existing or not."""
        return self.folder / f"{key}.parquet"

    def find(self, key: str, source: Path) -> FragmentInfo | None:
        """Return the entry's description, or None if it is missing or damaged."""
        if self._distrust is not None:
            return None
        path = self.fragment(key)
        with suppress(OSError):
            entry = kept_json(path.with_suffix(".json"), _Entry, checked_body)
            if entry is not None and is_intact(path, entry.seal):
                with suppress(OSError):
                    os.utime(path.with_suffix(".json"))  # the last use: the oldest goes first
                return replace(entry.info, source=str(source))
        return None

    def close(self) -> None:
        """Remove incomplete entries, and those beyond the limit."""
        if self._work is not None:
            import shutil

            shutil.rmtree(self._work, ignore_errors=True)
            self._work = None
            evict(self._root, self._limit)
        if self._hold is not None:
            self._hold.close()

    def _make_folders(self) -> None:
        if _is_undecodable(self.folder):
            raise OSError(errno.EILSEQ, "its name is not UTF-8")
        make_folder(self.folder)
        make_folder(self._root / UNFINISHED)
        while self._work is None:
            work = self._root / UNFINISHED / f"{os.getpid()}.{os.urandom(4).hex()}"
            work.mkdir(OWN.folder)
            with suppress(FileNotFoundError):  # another process took it for a leftover
                self._hold, self._work = hold(work), work


def complete(unfinished: Path, final: Path, info: FragmentInfo) -> None:
    """Move a written fragment to its place, with its description. Raises OSError if the disk is full.

    A process that is killed between both moves leaves half an entry; a note in the folder left behind identifies it.
    Moving the fragment changes its status, but not its checksum.
    """
    seal, moving = checksum_of(unfinished), unfinished.with_suffix(MOVING)
    try:
        moving.write_text(str(unfinished.stat().st_ino))
        unfinished.replace(final)
        _write_description(final, unfinished.with_suffix(".json"), seal, info)
    finally:
        moving.unlink(missing_ok=True)


def _write_description(final: Path, unfinished: Path, seal: FileChecksum, info: FragmentInfo) -> None:
    try:
        seal = FileChecksum(seal.bytes, seal.checksum, final.stat().st_ctime_ns)
        write_whole(unfinished, with_checksum(encode_json(_Entry(seal, info))))
        unfinished.replace(final.with_suffix(".json"))
    except BaseException:
        final.unlink(missing_ok=True)
        raise


def content_key(source: Path, rank: int | None = None) -> str:
    """Return the key of a file's content, read as `rank` if the file states none. Raises OSError.

    For a file in an archive, the archive's content and the path within it count.
    """
    source = source.absolute()
    archive = archive_of(source)
    if archive is not None:
        within = hashlib.blake2b(repr((content_key(archive, rank), source.parts)).encode(), digest_size=20)
        return within.hexdigest()
    digest = hashlib.blake2b(digest_size=20)
    # Rank and host can come from the names, so equal files of different names are different traces.
    names = [folder for folder in source.parts[:-2] if folder.startswith("host=")]
    status = source.stat()
    digest.update(repr((READER_VERSION, rank, names, source.parts[-2:], status.st_size, status.st_mtime_ns)).encode())
    with source.open("rb") as file:
        head = file.read(_SAMPLE)
        digest.update(head)
        if status.st_size > _SAMPLE:
            file.seek(max(status.st_size - _SAMPLE, _SAMPLE))
            digest.update(file.read(_SAMPLE))
    if head.startswith(_PARQUET_MAGIC):
        for path in metadata_files(source):
            digest.update(read_kept(path))
    return digest.hexdigest()


def distrust_of(root: Path) -> tuple[KairWarning, ...]:
    """Return a warning about a cache that others can write to."""
    why = _distrust(root)
    return () if why is None else (short_warning("cache_unwritable", f"{_said(root, why)}: it is not used"),)


def _said(root: Path, why: str) -> str:
    return f"the cache {root} {why} (chmod go-w, or {CHOOSE})"


def _distrust(root: Path) -> str | None:
    return why_distrusted(root) or why_distrusted(root / FRAGMENTS)


def _is_undecodable(path: Path) -> bool:
    """Return whether the path has bytes that are not UTF-8, which Polars and pyarrow cannot open."""
    return any("\ud800" <= sign <= "\udfff" for sign in str(path))


def _temporary_root() -> Path:
    import atexit
    import shutil
    import tempfile

    remove_unused(_abandoned(Path(tempfile.gettempdir())))
    folder = Path(tempfile.mkdtemp(prefix=_TEMPORARY))
    _held.append(hold(folder))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _abandoned(folder: Path) -> list[Path]:
    """Return temporary folders of this user that a killed process may have left."""
    found = []
    for path in folder.glob(f"{_TEMPORARY}*"):
        with suppress(OSError):
            if path.lstat().st_uid == os.geteuid() and (path / FRAGMENTS).is_dir():
                found.append(path)
    return found
