"""Whether a folder is in use: locks that the system takes back when a process ends, in whatever way."""

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from kair_engine.errors import KairError

_TAKEN = (errno.EWOULDBLOCK, errno.EACCES)


class Hold:
    """A folder in use, until this is closed, collected, or its process ends."""

    def __init__(self, descriptor: int | None, *, locked: bool) -> None:
        self._descriptor = descriptor
        self.locked = locked
        """False where the file system has no locks: nobody can tell then what is in use."""

    def close(self) -> None:
        """Lets others have the folder."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def is_of(self, folder: Path) -> bool:
        """Whether `folder` is still the one that is held, and no other of its name."""
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
    """Says that `folder` is in use, together with others. Raises FileNotFoundError where it is gone."""
    while (held := _locked(folder, fcntl.LOCK_SH)) is None:
        pass
    return held


def claim(folder: Path) -> Hold | None:
    """Has `folder` alone; None where someone else uses it. Raises FileNotFoundError where it is gone."""
    try:
        return _locked(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None


def remove_unused(
    folders: Iterable[Path], is_left: Callable[[Path], bool] = lambda _: True, without_locks: bool = False
) -> None:
    """Removes those of `folders` that nobody uses; `is_left` is asked of each once nobody can begin to.

    One that cannot be removed stays; where the file system has no locks all do, but `without_locks`.
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
    """None where the folder was replaced while this waited for it."""
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
