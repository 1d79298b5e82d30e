"""Writes files that appear whole or not at all, readable by their owner alone.

Traces name models, hosts and people's paths, so files and folders belong to their owner alone. Files that a person
named appear whole or not at all, too, wherever their writer is stopped.
"""

import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

from kair_engine.errors import unwritable
from kair_engine.frozen import dataclass

_LARGEST: Final = 1 << 30
"""Bytes; the data kept for a job of ten thousand ranks takes a tenth."""
_UNWRITTEN: Final = re.compile(r"\..+\.\d+\.[0-9a-f]{8}")


@dataclass(frozen=True)
class Modes:
    """The permissions of new folders and files, before the umask."""

    folder: int
    file: int


OWN: Final = Modes(0o700, 0o600)
SHARED: Final = Modes(0o777, 0o666)
"""The folder's group and the umask decide."""


def modes_below(folder: Path) -> Modes:
    """Return OWN, unless `folder` is set-group-ID (`chmod g+s`), the usual mark of a group's shared folder."""
    try:
        return SHARED if folder.stat().st_mode & stat.S_ISGID else OWN
    except OSError:
        return OWN


def make_folder(folder: Path, modes: Modes = OWN) -> None:
    """Create a folder with its missing parents. Raises OSError."""
    for missing in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
        missing.mkdir(modes.folder, exist_ok=True)
    folder.mkdir(modes.folder, exist_ok=True)


def create_file(path: Path, modes: Modes = OWN) -> int:
    """Return a descriptor to write a new file. Raises OSError, also if it exists."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, modes.file)


def write_whole(path: Path, content: bytes, modes: Modes = OWN) -> None:
    """Write a file that appears complete or not at all. Raises OSError if the disk is full."""
    with whole_file(path, modes) as file:
        file.write(content)


@contextmanager
def whole_file(path: Path, modes: Modes = OWN) -> Iterator[IO[bytes]]:
    """Open a file to write, which becomes `path` once it is complete, or never.

    Raises OSError if the disk is full.
    """
    temporary, descriptor = begin_file(path, modes)
    # A second descriptor keeps the lock when the written data is flushed.
    held = os.dup(descriptor)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
        os.close(held)


def remove_unwritten(folder: Path, of: str = "") -> None:
    """Remove unfinished files of killed processes: all, or those that were to become `of`."""
    with suppress(OSError), os.scandir(folder) as entries:
        for name in [entry.name for entry in entries if _UNWRITTEN.fullmatch(entry.name)]:
            if name.startswith(f".{of}." if of else "."):
                with suppress(OSError):  # one that is being written, or another user's
                    _remove_unlocked(folder / name)


def unwritten_name(path: Path) -> Path:
    """Return a name for the unfinished file that is to become `path`."""
    return path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")


def begin_file(path: Path, modes: Modes) -> tuple[Path, int]:
    """Return a new file that is to become `path`, locked while its process lives. Raises OSError."""
    while True:
        temporary = unwritten_name(path)
        descriptor = create_file(temporary, modes)
        with suppress(OSError):  # without locks nobody removes it either
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return temporary, descriptor
        os.close(descriptor)  # mistaken for the rest of a killed process before it was locked


def _remove_unlocked(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        path.unlink()
    finally:
        os.close(descriptor)


def open_kept(path: Path, flags: int = os.O_RDONLY) -> int:
    """Return a descriptor of a file that Kair keeps. Raises OSError, also if it is no regular file.

    Stores are shared, and jobs come from others: opening a pipe would wait for its other end, perhaps for ever.
    """
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, OWN.file)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is no file")


def read_kept(path: Path, first: int = -1) -> bytes:
    """Return the content of such a file, or its `first` bytes. Raises OSError, also if it is too large."""
    with os.fdopen(open_kept(path), "rb") as file:
        if os.fstat(file.fileno()).st_size > _LARGEST:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        return file.read(first)


def append_kept(path: Path) -> int:
    """Return a descriptor to append to such a file, which is created if missing. Raises OSError.

    Links are not followed: they could lead to any file of the user's.
    """
    return open_kept(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW)


def why_distrusted(folder: Path) -> str | None:
    """Return why others may have written to `folder`; None if only its owner, the user or root, can.

    A folder that does not exist yet is trusted, as is one in which nobody can change another's files (`/tmp`).
    """
    try:
        status = folder.stat()
    except OSError:
        return None
    if status.st_mode & stat.S_ISVTX:
        return None
    if status.st_uid not in (os.geteuid(), 0):
        return "belongs to another user"
    return "can be written by others" if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else None


_UNFINISHED: Final = "kair-unfinished"
"""Part of the name of an unfinished file: nothing else distinguishes it in a user's folder."""
_BUFFER: Final = 1 << 20
_WITHOUT_NAME: Final = getattr(os, "O_TMPFILE", 0)
"""0 if the system has no nameless files."""


@contextmanager
def atomic_write(path: Path, *, replace: bool = True) -> Iterator[IO[bytes]]:
    """Open a file to write, which gets its name once it is complete, or never.

    An existing file is replaced in one step; FileExistsError is raised if it must not be. A pipe or device is written
    directly. Raises OSError.
    """
    if path.exists() and not path.is_file():
        with path.open("wb" if replace else "xb", buffering=_BUFFER) as there:
            yield there
        return
    final = Path(os.path.realpath(path))
    remove_unwritten(final.parent, _UNFINISHED)
    interim, descriptor = _begun(final.parent)
    try:
        with os.fdopen(os.dup(descriptor), "wb", buffering=_BUFFER) as file:
            yield file
        _put(descriptor, interim, final, replace=replace)
    finally:
        with suppress(OSError):
            interim.unlink()
        os.close(descriptor)


@contextmanager
def named_file(path: Path, *, replace: bool = True) -> Iterator[IO[bytes]]:
    """Open a file that a person named, to write it whole. Raises UnwritableError or UsageError if it cannot be."""
    try:
        with atomic_write(path, replace=replace) as file:
            yield file
    except OSError as error:
        raise unwritable(path, error) from error


def _begun(folder: Path) -> tuple[Path, int]:
    """Return a locked file in `folder`, and its name, which exists only if the file system has no nameless files.

    A killed process then leaves nothing behind.
    """
    if _WITHOUT_NAME and Path("/proc/self/fd").exists():
        with suppress(OSError):  # a file system without nameless files: a network one, an old one
            descriptor = os.open(folder, _WITHOUT_NAME | os.O_WRONLY | os.O_CLOEXEC, SHARED.file)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            return unwritten_name(folder / _UNFINISHED), descriptor
    return begin_file(folder / _UNFINISHED, SHARED)


def _put(descriptor: int, interim: Path, final: Path, *, replace: bool) -> None:
    """Give the file its name."""
    if not os.fstat(descriptor).st_nlink:
        with suppress(FileExistsError):
            _link(descriptor, final)
            return
        if replace:
            _link(descriptor, interim)  # briefly: no file can be linked over another
    if not replace and final.exists():
        raise FileExistsError(final)
    with suppress(OSError):  # the readers have been decided
        os.fchmod(descriptor, stat.S_IMODE(final.stat().st_mode))
    interim.replace(final)


def _link(descriptor: int, path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # With a folder given, the link leads to the target of /proc's entry instead of that entry.
        os.link(f"/proc/self/fd/{descriptor}", path.name, dst_dir_fd=folder)
    finally:
        os.close(folder)
