"""Files that appear whole or not at all, and are of their owner alone.

Files and folders of their owner alone: traces name models, hosts and people's paths.

Files that a person named: each appears whole or not at all, wherever its writer is stopped.
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
"""Bytes; what is kept of a job of ten thousand ranks takes a tenth."""
_UNWRITTEN: Final = re.compile(r"\..+\.\d+\.[0-9a-f]{8}")


@dataclass(frozen=True)
class Modes:
    """The permissions that new folders and files are given, from which the umask still takes."""

    folder: int
    file: int


OWN: Final = Modes(0o700, 0o600)
SHARED: Final = Modes(0o777, 0o666)
"""The group of the folder and the umask decide."""


def modes_below(folder: Path) -> Modes:
    """OWN, unless `folder` is set-group-ID (`chmod g+s`), the usual way of saying that a group shares it."""
    try:
        return SHARED if folder.stat().st_mode & stat.S_ISGID else OWN
    except OSError:
        return OWN


def make_folder(folder: Path, modes: Modes = OWN) -> None:
    """Create a folder, and what is missing above it. Raises OSError."""
    for missing in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
        missing.mkdir(modes.folder, exist_ok=True)
    folder.mkdir(modes.folder, exist_ok=True)


def create_file(path: Path, modes: Modes = OWN) -> int:
    """Return a descriptor to write a new file. Raises OSError, where it exists too."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, modes.file)


def write_whole(path: Path, content: bytes, modes: Modes = OWN) -> None:
    """Write a file that appears complete or not at all. Raises OSError when the disk is full."""
    with whole_file(path, modes) as file:
        file.write(content)


@contextmanager
def whole_file(path: Path, modes: Modes = OWN) -> Iterator[IO[bytes]]:
    """Open a file to write to, which becomes `path` once all is written, or never.

    Raises OSError when the disk is full.
    """
    temporary, descriptor = begin_file(path, modes)
    # Another of the same file, which keeps the lock when what was written is out.
    held = os.dup(descriptor)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
        os.close(held)


def remove_unwritten(folder: Path, of: str = "") -> None:
    """Remove the files that were not finished because their process was killed: all, or those that were to be `of`."""
    with suppress(OSError), os.scandir(folder) as entries:
        for name in [entry.name for entry in entries if _UNWRITTEN.fullmatch(entry.name)]:
            if name.startswith(f".{of}." if of else "."):
                with suppress(OSError):  # one that is being written, or another user's
                    _remove_unlocked(folder / name)


def unwritten_name(path: Path) -> Path:
    """Return what a file is called that is to become `path`."""
    return path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")


def begin_file(path: Path, modes: Modes) -> tuple[Path, int]:
    """Return a new file, locked while its process lives, in which what will be `path` is written. Raises OSError."""
    while True:
        temporary = unwritten_name(path)
        descriptor = create_file(temporary, modes)
        with suppress(OSError):  # where there are no locks nobody removes it either
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return temporary, descriptor
        os.close(descriptor)  # taken for what a killed process left, before it was locked


def _remove_unlocked(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        path.unlink()
    finally:
        os.close(descriptor)


def open_kept(path: Path, flags: int = os.O_RDONLY) -> int:
    """Return a descriptor of a file that Kair keeps. Raises OSError, for what is no file too.

    Stores are shared, and jobs come from others: whoever opens a pipe waits for its other end, perhaps for ever.
    """
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, OWN.file)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is no file")


def read_kept(path: Path, first: int = -1) -> bytes:
    """Return what such a file holds, or its `first` bytes. Raises OSError, for what is too large too."""
    with os.fdopen(open_kept(path), "rb") as file:
        if os.fstat(file.fileno()).st_size > _LARGEST:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        return file.read(first)


def append_kept(path: Path) -> int:
    """Return a descriptor to write to the end of such a file, which is made where it is missing. Raises OSError.

    Not by a link, which could lead to any file of the user's.
    """
    return open_kept(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW)


def why_distrusted(folder: Path) -> str | None:
    """Why what lies in `folder` may be someone else's; None where only its owner, who is the user or root, writes it.

    A folder that is not there yet is trusted, and one in which nobody can touch what another made (`/tmp`).
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
"""In the name of a file that has none of its own yet. By nothing else of such a folder could one be told."""
_BUFFER: Final = 1 << 20
_WITHOUT_NAME: Final = getattr(os, "O_TMPFILE", 0)
"""0 where the system knows no such files."""


@contextmanager
def atomic_write(path: Path, *, replace: bool = True) -> Iterator[IO[bytes]]:
    """Open a file to write to, which has its name once all is written, and never else.

    What is there is replaced in one step; FileExistsError is raised instead where it is not to be. A pipe or device is
    written to directly. Raises OSError.
    """
    if path.exists() and not path.is_file():
        with path.open("wb" if replace else "xb", buffering=_BUFFER) as there:
            yield there
        return
    final = Path(os.path.realpath(path))
    remove_unwritten(final.parent, _UNFINISHED)
    beside, descriptor = _begun(final.parent)
    try:
        with os.fdopen(os.dup(descriptor), "wb", buffering=_BUFFER) as file:
            yield file
        _put(descriptor, beside, final, replace=replace)
    finally:
        with suppress(OSError):
            beside.unlink()
        os.close(descriptor)


@contextmanager
def named_file(path: Path, *, replace: bool = True) -> Iterator[IO[bytes]]:
    """Open a file that a person named, to write it whole. Raises UnwritableError, UsageError where that cannot be."""
    try:
        with atomic_write(path, replace=replace) as file:
            yield file
    except OSError as error:
        raise unwritable(path, error) from error


def _begun(folder: Path) -> tuple[Path, int]:
    """Return a locked file of `folder`, and its name; it has that name only where the file system has no files without
    one.

    Whoever is killed leaves nothing then.
    """
    if _WITHOUT_NAME and Path("/proc/self/fd").exists():
        with suppress(OSError):  # a file system that has none: one in the network, an old one
            descriptor = os.open(folder, _WITHOUT_NAME | os.O_WRONLY | os.O_CLOEXEC, SHARED.file)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            return unwritten_name(folder / _UNFINISHED), descriptor
    return begin_file(folder / _UNFINISHED, SHARED)


def _put(descriptor: int, beside: Path, final: Path, *, replace: bool) -> None:
    """Give the file its name."""
    if not os.fstat(descriptor).st_nlink:
        with suppress(FileExistsError):
            _link(descriptor, final)
            return
        if replace:
            _link(descriptor, beside)  # for a moment: no file can be linked into another's place
    if not replace and final.exists():
        raise FileExistsError(final)
    with suppress(OSError):  # who may read it has been decided
        os.fchmod(descriptor, stat.S_IMODE(final.stat().st_mode))
    beside.replace(final)


def _link(descriptor: int, path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # With a folder given the link is to what /proc's entry stands for, and not to that entry.
        os.link(f"/proc/self/fd/{descriptor}", path.name, dst_dir_fd=folder)
    finally:
        os.close(folder)
