"""Handles files and folders that other users cannot write or replace, atomic writes, and lock files.

It does not use the engine, because the training process, whose interpreter may lack it, needs it too.

A lock file lets one process of its kind run: the lock is free as soon as that ends, in any way.
"""

import errno
import fcntl
import json
import os
import secrets
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any


def make_secure_dir(folder: Path) -> None:
    """Create `folder`, and missing parents, accessible to their owner only. Raises OSError.

    Raises PermissionError if another user owns it or can write into it; if others own the parent, or could replace the
    folder there (in `/tmp` they cannot); and if another user's link leads there.
    """
    _require_no_foreign_link(folder)
    for missing in reversed([path for path in (folder, *folder.parents) if not os.path.lexists(path)]):
        missing.mkdir(0o700, exist_ok=True)
    folder.mkdir(0o700, exist_ok=True)
    # Check again when all exist: other users cannot replace this user's entry in a folder such as `/tmp`.
    _require_no_foreign_link(folder)
    own, above = folder.stat(), folder.parent.stat()
    if own.st_uid != os.geteuid() or own.st_mode & 0o022:
        raise PermissionError(f"{folder} is not this user's alone")
    if above.st_uid not in (os.geteuid(), 0) or (above.st_mode & 0o022 and not above.st_mode & stat.S_ISVTX):
        raise PermissionError(f"{folder.parent} lets others replace {folder.name}")


def _require_no_foreign_link(folder: Path) -> None:
    for path in (folder, *folder.parents):
        with suppress(FileNotFoundError):
            if stat.S_ISLNK((status := path.lstat()).st_mode) and status.st_uid not in (os.geteuid(), 0):
                raise PermissionError(f"{path} is another user's link")


def own_folder_in(shared: Path) -> Path:
    """Return `kair-<uid>` in a folder that all users share, whether it exists or not.

    If another user has taken that name, return an unguessable one, which this user's processes share through a private
    file in $XDG_RUNTIME_DIR or the user's cache.
    """
    usual = shared / f"kair-{os.getuid()}"
    with suppress(FileNotFoundError):
        status = usual.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            with suppress(OSError, ValueError, RuntimeError):  # also without a home
                return shared / f"{usual.name}-{_secret_name()}"
    return usual


def _secret_name() -> str:
    """Return a name that is drawn once. Raises OSError if it cannot be stored, ValueError if it was overwritten."""
    runtime, cache = os.environ.get("XDG_RUNTIME_DIR"), os.environ.get("XDG_CACHE_HOME")
    folder = Path(runtime) if runtime else (Path(cache) if cache else Path.home() / ".cache") / "kair"
    make_secure_dir(folder)
    kept = folder / "kair-run-folder"
    drawn = folder / f".{kept.name}.{os.getpid()}.{secrets.token_hex(4)}"
    if not kept.exists():
        write_atomically(drawn, secrets.token_hex(16).encode())
        with suppress(FileExistsError):
            os.link(drawn, kept)
        drawn.unlink()
    handle = os.open(kept, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    with os.fdopen(handle, "rb") as file:
        return bytes.fromhex(file.read(64).decode()).hex()


class BusyError(Exception):
    """Raised if another process holds the lock; the text is its path."""


def locked(path: Path) -> int:
    """Return the handle that holds the lock `path`. Raises BusyError if another process does, OSError."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise BusyError(str(path)) from error
    return handle


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file readable by its owner only, atomically. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def append_whole(handle: int, content: bytes) -> None:
    """Append to an open file, all or nothing. Raises OSError."""
    size = os.fstat(handle).st_size
    try:
        if os.pwrite(handle, content, size) != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        os.ftruncate(handle, size)
        raise


def remove_beyond(paths: Iterable[Path], most_bytes: int, *, up_to: Path | None = None) -> list[Path]:
    """Remove the first of `paths` until the rest has at most `most_bytes`; stop at `up_to`. Return what was removed.

    A file that cannot be removed still counts as freed.
    """
    sizes: dict[Path, int] = {}
    for path in paths:
        with suppress(OSError):
            sizes[path] = path.stat().st_size
    over, removed = sum(sizes.values()) - most_bytes, []
    for path, size in sizes.items():
        if over <= 0 or path == up_to:
            break
        over -= size
        with suppress(OSError):
            path.unlink()
            removed.append(path)
    return removed


def text_in(path: Path) -> str:
    """Return a small system file's text, stripped; empty if it cannot be read."""
    with suppress(OSError), path.open("rb") as file:
        return file.read(1 << 20).decode("utf-8", "replace").strip()
    return ""


def object_in(text: str | bytes) -> dict[str, Any]:
    """Return the members of a JSON object; empty for any other text."""
    with suppress(ValueError, RecursionError):
        found = json.loads(text)
        return found if isinstance(found, dict) else {}
    return {}


def add_to_json(path: Path, key: str, value: Mapping[str, Any]) -> None:
    """Add a member to the outermost object of a JSON file by changing its end. Raises ValueError if it is not one."""
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
