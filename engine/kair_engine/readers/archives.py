"""Reads files within archives in place: `run.tar.gz/job/rank0.json` is a path like any other.

Nothing is unpacked to disk. Archives are untrusted: names that lead out of one, links, and members that decompress to
far more than their size are not followed. An archive within an archive is not opened.
"""

import io
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Final, cast

from kair_engine.errors import InputError
from kair_engine.readers.blocks import BlockReader
from kair_engine.readers.paths import archive_of

_MOST_MEMBERS: Final = 100_000
_LONGEST_NAME: Final = 1000
# Traces compress by 12 to 17, repeated ones by 40; a higher ratio is made on purpose.
_MOST_RATIO: Final = 200
_FREE: Final = 64 << 20
"""Bytes that any archive may decompress to, whatever its ratio."""
_MOST_TEXT: Final = 1 << 40
_KEPT: Final = 256 << 10
"""Bytes of a streamed member that can be read again, because its format is detected first."""


@dataclass(frozen=True)
class Members:
    """The files within an archive, and the number of entries that cannot be followed."""

    paths: tuple[Path, ...]
    skipped: int


@dataclass
class _Listing:
    sizes: dict[str, int] = field(default_factory=dict)
    skipped: int = 0


def members_of(archive: Path) -> Members | None:
    """Return the files in `archive`, in its order; None if it is no archive.

    Raises InputError if it is damaged from the start, holds too many files, or decompresses to far more than its size.
    """
    listing = _zip_listing(archive) if _is_zip(archive) else _tar_listing(archive)
    if listing is None:
        return None
    return Members(tuple(archive / name for name in listing.sizes), listing.skipped)


def open_member(path: Path) -> IO[bytes]:
    """Return a file within an archive, open for reading from its start. Raises OSError or InputError."""
    archive = archive_of(path)
    if archive is None:
        raise NotADirectoryError(20, "Not a directory", str(path))
    name = path.relative_to(archive).as_posix()
    return _open_in_zip(archive, name) if _is_zip(archive) else _Cursor.at(archive, name)


def _is_zip(archive: Path) -> bool:
    """Return whether the file begins as a zip file: a tar archive may well end with one."""
    with archive.open("rb") as file:
        return file.read(4) in (b"PK\x03\x04", b"PK\x05\x06")


def _safe_name(name: str) -> str | None:
    """Return the name as a path within the archive, or None where it leads elsewhere."""
    if len(name) > _LONGEST_NAME or "\0" in name or "\\" in name:
        return None
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        return None
    return path.as_posix()


def _hidden(name: str) -> bool:
    """Return whether the member is hidden or macOS's metadata of another; such files of a folder are left out, too."""
    return any(part.startswith(".") or part == "__MACOSX" for part in PurePosixPath(name).parts)


def _note(listing: _Listing, archive: Path, name: str, size: int) -> None:
    safe = _safe_name(name)
    if safe is None:
        listing.skipped += 1
    elif not _hidden(safe):
        listing.sizes.setdefault(safe, size)
    if len(listing.sizes) + listing.skipped > _MOST_MEMBERS:
        raise InputError(f"{archive.name} holds more than {_MOST_MEMBERS:,} files", "unpack only what is needed")


def _zip_listing(archive: Path) -> _Listing:
    listing = _Listing()
    try:
        with zipfile.ZipFile(archive) as file:
            entries = file.infolist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError) as error:
        raise InputError(f"{archive.name} is a damaged archive: {_one_line(error)}") from error
    for entry in entries:
        if entry.is_dir():
            continue
        if entry.flag_bits & 1 or entry.external_attr >> 28 == 0o12:
            listing.skipped += 1  # encrypted, or a link
            continue
        _require_proportion(archive, entry.file_size, max(entry.compress_size, 1))
        _note(listing, archive, entry.filename, entry.file_size)
    return listing


def _open_in_zip(archive: Path, name: str) -> IO[bytes]:
    try:
        file = zipfile.ZipFile(archive)
        entry = next(one for one in file.infolist() if _safe_name(one.filename) == name)
        _require_proportion(archive, entry.file_size, max(entry.compress_size, 1))
        return cast("IO[bytes]", _ZipMember(file, entry))
    except StopIteration:
        raise FileNotFoundError(2, "No such file in the archive", f"{archive}/{name}") from None
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError) as error:
        raise InputError(f"{archive.name}/{name} is damaged: {_one_line(error)}") from error


class _ZipMember(io.RawIOBase):
    """A member of a zip file; damage reads as its end, as in other compressed files."""

    def __init__(self, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> None:
        super().__init__()
        self._archive = archive
        self._file = archive.open(entry)

    def read(self, size: int = -1) -> bytes:
        try:
            return self._file.read(size)
        except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, OSError):
            return b""

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
            self._archive.close()
        super().close()


class _Text(io.RawIOBase):
    """The decompressed text of a tar archive, limited in proportion to its size on disk."""

    def __init__(self, archive: Path) -> None:
        super().__init__()
        self._archive = archive
        self._on_disk = max(archive.stat().st_size, 1)
        self._blocks: Iterator[bytes] = iter(BlockReader(archive))
        self._rest = b""
        self._given = 0

    def read(self, size: int = -1) -> bytes:
        pieces, needed = [self._rest], size - len(self._rest)
        while needed > 0 or size < 0:
            block = next(self._blocks, b"")
            if not block:
                break
            pieces.append(block)
            needed -= len(block)
            self._given += len(block)
            _require_proportion(self._archive, self._given, self._on_disk)
        text = b"".join(pieces)
        cut = len(text) if size < 0 else size
        self._rest = text[cut:]
        return text[:cut]


def _tar_listing(archive: Path) -> _Listing | None:
    listing = _Listing()
    try:
        with tarfile.open(fileobj=cast("IO[bytes]", _Text(archive)), mode="r|") as file:
            for member in file:
                if member.isdir():
                    continue
                if not member.isreg() or member.issparse():
                    listing.skipped += 1
                    continue
                _note(listing, archive, member.name, member.size)
                # `tarfile` would keep every header that it has seen.
                file.members = []  # type: ignore[attr-defined]
    except tarfile.ReadError as error:
        if not listing.sizes and not listing.skipped:
            return None
        # The archive is cut off: the members before the cut are usable.
        if "unexpected end" not in str(error) and "truncated" not in str(error):
            raise InputError(f"{archive.name} is a damaged archive: {_one_line(error)}") from error
    except (tarfile.TarError, ValueError, EOFError) as error:
        raise InputError(f"{archive.name} is a damaged archive: {_one_line(error)}") from error
    return listing


class _Cursor:
    """A position in a tar archive, from which the next member is read: reading members in order takes one pass."""

    _open: "_Cursor | None" = None

    def __init__(self, archive: Path) -> None:
        self._archive = archive
        self._file = tarfile.open(fileobj=cast("IO[bytes]", _Text(archive)), mode="r|")  # noqa: SIM115 (stays open)
        self._name: str | None = None
        self._stream: IO[bytes] | None = None
        self._kept = b""
        self._is_beyond = False

    @classmethod
    def at(cls, archive: Path, name: str) -> IO[bytes]:
        """Return the member of that name. Raises InputError if it can no longer be found."""
        known = cls._open
        try:
            if known is not None and known._archive == archive:
                if known._name == name and not known._is_beyond:
                    return cast("IO[bytes]", _TarMember(known))
                if known._forward(name):
                    return cast("IO[bytes]", _TarMember(known))
            cls._close()
            fresh = cls._open = cls(archive)
            if fresh._forward(name):
                return cast("IO[bytes]", _TarMember(fresh))
        except (tarfile.TarError, ValueError, EOFError) as error:
            cls._close()
            raise InputError(f"{archive.name} is a damaged archive: {_one_line(error)}") from error
        raise FileNotFoundError(2, "No such file in the archive", f"{archive}/{name}")

    @classmethod
    def _close(cls) -> None:
        if cls._open is not None:
            with suppress(tarfile.TarError, OSError):
                cls._open._file.close()
        cls._open = None

    def _forward(self, name: str) -> bool:
        """Return whether a member of that name lies ahead; if so, it becomes the current one."""
        while (member := self._file.next()) is not None:
            self._file.members = []  # type: ignore[attr-defined]
            if member.isreg() and not member.issparse() and _safe_name(member.name) == name:
                self._name, self._stream = name, self._file.extractfile(member)
                self._kept, self._is_beyond = b"", False
                return True
        self._name = None
        return False

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes of the current member from `offset`, which is the current end or lies within the bytes kept."""
        if offset < len(self._kept):
            return self._kept[offset : offset + size]
        assert self._stream is not None
        try:
            text = self._stream.read(size)
        except (tarfile.TarError, EOFError):
            return b""  # cut off or damaged
        if len(self._kept) + len(text) <= _KEPT and not self._is_beyond:
            self._kept += text
        else:
            self._is_beyond = True
        return text


class _TarMember(io.RawIOBase):
    """A member of a tar archive, from its start."""

    def __init__(self, cursor: _Cursor) -> None:
        super().__init__()
        self._cursor = cursor
        self._at = 0

    def read(self, size: int = -1) -> bytes:
        if size < 0:
            return b"".join(iter(lambda: self.read(1 << 20), b""))
        text = self._cursor.read(self._at, size)
        self._at += len(text)
        return text

    def seek(self, offset: int, whence: int = 0) -> int:
        assert whence == 0 and offset <= _KEPT
        self._at = offset
        return offset


def _require_proportion(archive: Path, text: int, on_disk: int) -> None:
    if text > _MOST_TEXT or (text > _FREE and text > _MOST_RATIO * on_disk):
        hint = "unpack it where there is room, and name the folder"
        raise InputError(f"{archive.name} grows out of all proportion when it is decompressed: it is not read", hint)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
