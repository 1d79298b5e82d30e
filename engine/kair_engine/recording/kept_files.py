"""Tracks whether kept files are in use, and whether they are intact.

Folders in use have locks that the system releases when a process ends, in whatever way. Checksums find damage before it
becomes an answer.
"""

import errno
import fcntl
import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from kair_engine.errors import KairError
from kair_engine.trace.files import open_kept

_TAKEN = (errno.EWOULDBLOCK, errno.EACCES)


class Hold:
    """A folder in use, until this is closed, collected, or its process ends."""

    def __init__(self, descriptor: int | None, *, locked: bool) -> None:
        self._descriptor = descriptor
        self.locked = locked
        """False if the file system has no locks: then it is unknown what is in use."""

    def close(self) -> None:
        """Release the folder."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def is_of(self, folder: Path) -> bool:
        """Return whether `folder` is still the one that is held, and no other of its name."""
        if self._descriptor is None:
            return not self.locked
        try:
            there, mine = folder.stat(), os.fstat(self._descriptor)
        except FileNotFoundError:
            return False
        return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)

    def __enter__(self) -> "Hold":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def hold(folder: Path) -> Hold:
    """Mark `folder` as in use, shared with others. Raises FileNotFoundError if it is gone."""
    while (held := _locked(folder, fcntl.LOCK_SH)) is None:
        pass
    return held


def claim(folder: Path) -> Hold | None:
    """Claim `folder` exclusively; None if someone else uses it. Raises FileNotFoundError if it is gone."""
    try:
        return _locked(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None


def remove_unused(
    folders: Iterable[Path], is_left: Callable[[Path], bool] = lambda _: True, without_locks: bool = False
) -> None:
    """Remove those of `folders` that nobody uses; `is_left` decides for each once nobody can begin to use it.

    One that cannot be removed stays; without locks in the file system all do, unless `without_locks`.
    """
    for folder in folders:
        with suppress(OSError, KairError):
            claimed = claim(folder)
            if claimed is None:
                continue
            with claimed:
                if (claimed.locked or without_locks) and is_left(folder):
                    shutil.rmtree(folder, ignore_errors=True)


def _locked(folder: Path, how: int) -> Hold | None:
    """Return the locked folder; None if it was replaced in the meantime."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, how)
    except OSError as error:
        os.close(descriptor)
        if error.errno in _TAKEN:
            raise BlockingIOError(*error.args) from error
        return Hold(None, locked=False)
    held = Hold(descriptor, locked=True)
    if held.is_of(folder):
        return held
    held.close()
    return None


_DIGEST = 16


class FileChecksum(msgspec.Struct, frozen=True):
    """The state of a file when it was kept."""

    bytes: int
    checksum: str
    """BLAKE2b, 128 bits."""
    changed_ns: int
    """Time of its last change, which no program can set: while it is the same, so is the content."""


class _Envelope(msgspec.Struct):
    checksum: str
    body: msgspec.Raw


def checksum_of(path: Path) -> FileChecksum:
    """Return the current checksum of a file. Raises OSError."""
    with os.fdopen(open_kept(path), "rb") as file:
        checksum = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=_DIGEST)).hexdigest()
    status = path.stat()
    return FileChecksum(status.st_size, checksum, status.st_ctime_ns)


def is_intact(path: Path, seal: FileChecksum) -> bool:
    """Return whether a file is unchanged; it is read only if it was changed or copied since. Raises OSError."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) or status.st_size != seal.bytes:
        return False
    return status.st_ctime_ns == seal.changed_ns or checksum_of(path).checksum == seal.checksum


def with_checksum(body: bytes, **head: str | int) -> bytes:
    """Return a JSON value in an envelope with its checksum, after the fields of `head`."""
    return msgspec.json.encode({**head, "checksum": _checksum(body), "body": msgspec.Raw(body)})


def checked_body(document: bytes) -> bytes:
    """Return the value of such an envelope. Raises ValueError if it is damaged."""
    found = msgspec.json.decode(document, type=_Envelope)
    if _checksum(bytes(found.body)) != found.checksum:
        raise ValueError("its content has changed since it was written")
    return bytes(found.body)


def _checksum(body: bytes) -> str:
    return hashlib.blake2b(body, digest_size=_DIGEST).hexdigest()
