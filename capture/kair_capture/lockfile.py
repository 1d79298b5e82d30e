"""Holds a lock file, so that one process of its kind runs: the lock is free as soon as that ends, however it does."""

import fcntl
import os
from pathlib import Path


class BusyError(Exception):
    """Another process holds the lock; the text is its path."""


def locked(path: Path) -> int:
    """The handle that holds the lock `path`. Raises BusyError where another process does, OSError."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise BusyError(str(path)) from error
    return handle
