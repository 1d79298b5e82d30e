"""Files that a person named: each appears whole or not at all, wherever its writer is stopped."""

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

from kair_engine.trace.permissions import SHARED, begin_file, remove_unwritten, unwritten_name

_UNFINISHED: Final = "kair-unfinished"
"""In the name of a file that has none of its own yet. By nothing else of such a folder could one be told."""
_BUFFER: Final = 1 << 20
_WITHOUT_NAME: Final = getattr(os, "O_TMPFILE", 0)
"""0 where the system knows no such files."""


@contextmanager
def atomic_write(path: Path, *, replace: bool = True) -> Iterator[IO[bytes]]:
    """A file to write to, which has its name once all is written, and never else.

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


def _begun(folder: Path) -> tuple[Path, int]:
    """A locked file of `folder`, and its name; it has that name only where the file system has no files without one.

    Whoever is killed leaves nothing then.
    """
    if _WITHOUT_NAME and Path("/proc/self/fd").exists():
        with suppress(OSError):  # a file system that has none: one in the network, an old one
            descriptor = os.open(folder, _WITHOUT_NAME | os.O_WRONLY | os.O_CLOEXEC, SHARED.file)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            return unwritten_name(folder / _UNFINISHED), descriptor
    return begin_file(folder / _UNFINISHED, SHARED)


def _put(descriptor: int, beside: Path, final: Path, *, replace: bool) -> None:
    """Gives the file its name."""
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
