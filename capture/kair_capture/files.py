"""Files and folders that nobody else can write into or replace, whole or not there; and files that are locks.

Nothing of the engine is used: the training process, whose interpreter may lack it, needs them too.

A lock file lets one process of its kind run: the lock is free as soon as that ends, however it does.
"""

import fcntl
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def make_secure_dir(folder: Path) -> None:
    """Makes `folder`, and what is missing above it, of their owner alone. Raises OSError.

    PermissionError where it is somebody else's, or others can write into it; and where others own the one above, or can
    write into that so that they could put another folder in its place (in `/tmp` they cannot).
    """
    for missing in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
        missing.mkdir(0o700, exist_ok=True)
    folder.mkdir(0o700, exist_ok=True)
    own, above = folder.stat(), folder.parent.stat()
    if own.st_uid != os.geteuid() or own.st_mode & 0o022:
        raise PermissionError(f"{folder} is not this user's alone")
    if above.st_uid not in (os.geteuid(), 0) or (above.st_mode & 0o022 and not above.st_mode & stat.S_ISVTX):
        raise PermissionError(f"{folder.parent} lets others replace {folder.name}")


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


def write_atomically(path: Path, content: bytes) -> None:
    """A file of its owner alone that is whole or not there. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def add_to_json(path: Path, key: str, value: Mapping[str, Any]) -> None:
    """Adds a member to the outermost object of a JSON file by its end alone. Raises ValueError where that is none."""
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        start = max(0, size - 4096)
        file.seek(start)
        end = file.read().rstrip()
        if not end.endswith(b"}"):
            raise ValueError(f"{path.name} does not end as a JSON object does")
        file.seek(start + len(end) - 1)
        file.write(b',"%s":%s}' % (key.encode(), json.dumps(value).encode()))
        file.truncate()
