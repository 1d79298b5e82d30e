"""Holds a lock file, so that of some process there is one: it is free as soon as that ends, however it does."""

import fcntl
import os
from pathlib import Path


class BusyError(Exception):
    """There is one already; the text is the path of its lock."""


def locked(path: Path) -> int:
    """The handle that holds the lock `path`. Raises BusyError where another process does, OSError."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise BusyError(str(path)) from error
    return handle
