"""The job's key: a file of its owner alone, which agents and the coordinator share."""

import hmac
import os
import secrets
import stat
from pathlib import Path
from typing import Final

from kair_engine.trace.permissions import OWN, begin_file, make_folder

LEAST_BYTES: Final = 32
MOST_BYTES: Final = 4096


class KeyFileError(Exception):
    """The key cannot be used; the text says why, and the way out."""


def read_key(path: Path, job: str) -> bytes:
    """The key for the datagrams of `job`, 32 bytes, made of the file's content and the job's name.

    Raises KeyFileError where the file is missing, too short, or not its owner's alone.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            _require_private(os.fstat(handle), path)
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise KeyFileError(f"cannot read the key {path}: {error.strerror or error}") from error
    if not LEAST_BYTES <= len(content) <= MOST_BYTES:
        raise KeyFileError(f"the key {path} has {len(content)} bytes; {LEAST_BYTES} to {MOST_BYTES} are wanted")
    return hmac.digest(content, b"kair capture\0" + job.encode(), "sha256")


def make_key(path: Path) -> bool:
    """Writes a new random key where there is none; says whether it did. Raises OSError."""
    make_folder(path.parent)
    # Beside its place and linked into it: who reads at the same time finds a whole key or none.
    unfinished, handle = begin_file(path, OWN)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_hex(32).encode() + b"\n")
        os.link(unfinished, path)
    except FileExistsError:
        return False
    finally:
        unfinished.unlink()
    return True


def _require_private(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise KeyFileError(f"the key {path} is not a file")
    if status.st_uid not in (os.geteuid(), 0):
        raise KeyFileError(f"the key {path} belongs to another user")
    if status.st_mode & 0o077:
        raise KeyFileError(f"others can read the key {path} (chmod 600 {path})")
