"""Handles ordered restarts within the training process: its attempt, its mark on leaving, the checkpoint's fence.

The run's folder belongs to the wrapper (`kair mitigate run`). A process may outlive its attempt for a while, but not
its torchrun, and it cannot replace a checkpoint of a later attempt.
"""

import contextlib
import os
import socket
from pathlib import Path

RUN_FOLDER, ATTEMPT = "KAIR_MITIGATE_RUN", "KAIR_MITIGATE_ATTEMPT"
"""Environment variables that the wrapper sets."""
_RESTARTS_IN_PLACE = 10_000
"""An attempt has fewer restarts by torchrun than this."""


def run_folder() -> Path | None:
    """Return the folder of this process's run; None if no wrapper started it."""
    folder = os.environ.get(RUN_FOLDER)
    return Path(folder) if folder else None


def attempt_file(folder: Path, host: str) -> Path:
    """Return the file in which the wrapper on a host writes its current attempt."""
    return folder / f"attempt-{host}"


def attempt() -> int:
    """Return which start by the wrapper this process belongs to, from 0."""
    return _number(ATTEMPT)


def generation() -> int:
    """Return a number that grows with every start of the job, also with torchrun's restarts in place."""
    return generation_of(attempt()) + _number("TORCHELASTIC_RESTART_COUNT")


def generation_of(attempt: int) -> int:
    """Return the first number of an attempt."""
    return attempt * _RESTARTS_IN_PLACE


def _number(variable: str) -> int:
    with contextlib.suppress(ValueError):
        return int(os.environ.get(variable, "0"))
    return 0


def say_left(step: int) -> None:
    """Mark that this attempt ended as ordered after that step, so that the wrapper starts the next one."""
    if (folder := run_folder()) is not None:
        write_whole(folder / f"left-{attempt()}", str(step).encode())


def commit_checkpoint(temporary: str | os.PathLike[str], final: str | os.PathLike[str]) -> bool:
    """Rename a temporary checkpoint to its name, durably; return False, without renaming, if the attempt is over."""
    source, target = Path(temporary), Path(final)
    with source.open("rb") if source.is_file() else contextlib.nullcontext() as file:
        if file is not None:
            os.fsync(file.fileno())
    if (folder := run_folder()) is not None:
        with contextlib.suppress(OSError, ValueError):
            if int(attempt_file(folder, socket.gethostname()).read_text(encoding="ascii")) > attempt():
                return False
    source.replace(target)
    entry = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(entry)
    finally:
        os.close(entry)
    return True


def write_whole(path: Path, text: bytes) -> None:
    """Replace a file by one readable by its owner only, atomically. Raises OSError."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with open(beside, "wb", opener=own) as file:  # Path.open takes no opener
        file.write(text)
    beside.replace(path)


def own(path: str, flags: int) -> int:
    """Open a file readable by its owner only, whatever the umask: `open(…, opener=own)`. Raises OSError."""
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
