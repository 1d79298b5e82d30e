"""Handles failures of capture: one warning, and it is off, without any other effect on training.

It also provides locks for what only one process of a host may have while it lives: a rank, or a message for all.
"""

import errno
import fcntl
import os
import struct
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

_FLOCK: Final = "hhqqi"
"""The system's struct flock: kind, whence, start, length, process."""


class TakenError(Exception):
    """Raised if another living process has it; the text says what, and which."""


class RankLock:
    """A POSIX record lock on a file.

    The system releases it however the process ends, and a forked child that may outlive it, such as a data loader's
    worker, never has it; a `flock` would be shared with the child.
    """

    def __init__(self, path: Path, what: str) -> None:
        """Raise TakenError, OSError if the file cannot be created."""
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.lockf(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            pid = self._owner()
            os.close(self._handle)
            raise TakenError(f"{what} is process {pid or 'of another container'} already") from error
        except OSError:
            os.close(self._handle)
            raise

    def release(self) -> None:
        """Release the lock; the file stays."""
        os.close(self._handle)

    def _owner(self) -> int:
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        return int(struct.unpack(_FLOCK, fcntl.fcntl(self._handle, fcntl.F_GETLK, asked))[4])


NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
_TOLD: Final[list[RankLock]] = []
"""Messages that this process printed for its whole host, visible to others while it lives."""


def warn(text: str) -> None:
    """Write one line to stderr. `warnings` could be turned into errors by a filter, and logging is the job's."""
    tell(f"warning: {text}")


def tell(text: str) -> None:
    """Write one line to stderr that is no warning."""
    # A closed or full stderr is the job's business.
    with suppress(Exception):
        sys.stderr.write(f"kair: {text}\n")


def warn_of(error: BaseException, what: str, run_dir: Path | None) -> None:
    """Warn about the consequence `what` of an error. If all ranks of a host share it, only the first warns.

    `run_dir` is the folder that they share.
    """
    if isinstance(error, TakenError):
        of_all = (f"{error}, in {run_dir}: two jobs need two names (--job)", "rank-taken")
    elif isinstance(error, OSError) and error.errno in NO_ROOM:
        of_all = (f"{described(error)}: {run_dir} is full", "no-room")
    else:
        warn(f"{what}: {described(error)}")
        return
    if _is_first(run_dir, of_all[1]):
        warn(f"{what}: {of_all[0]}; no other rank of this host says so")


def _is_first(run_dir: Path | None, kind: str) -> bool:
    """Return whether no living process of this host has printed it. If nothing can be written, each does."""
    if run_dir is None:
        return True
    try:
        _TOLD.append(RankLock(run_dir / f"{kind}.told", kind))
    except TakenError:
        return False
    except OSError:
        return True
    return True


def described(error: BaseException) -> str:
    """Return the error on one line, with its origin in capture."""
    trace, place = error.__traceback__, ""
    while trace is not None:
        place = f" ({os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno})"  # noqa: PTH119  # no Path objects on this way
        trace = trace.tb_next
    # An error's text can fail too.
    try:
        text = " ".join(str(error).split())[:200]
    except Exception:
        text = "?"
    return f"{type(error).__name__}: {text}{place}"
