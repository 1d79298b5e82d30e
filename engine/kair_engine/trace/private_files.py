"""Files and folders of their owner alone: traces name models, hosts and people's paths."""

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final


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
    """Creates a folder, and what is missing above it. Raises OSError."""
    for missing in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
        missing.mkdir(modes.folder, exist_ok=True)
    folder.mkdir(modes.folder, exist_ok=True)


def create_file(path: Path, modes: Modes = OWN) -> int:
    """A descriptor to write a new file. Raises OSError, where it exists too."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, modes.file)


def write_whole(path: Path, content: bytes, modes: Modes = OWN) -> None:
    """Writes a file that appears complete or not at all. Raises OSError when the disk is full."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        with os.fdopen(create_file(temporary, modes), "wb") as file:
            file.write(content)
        temporary.replace(path)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


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
