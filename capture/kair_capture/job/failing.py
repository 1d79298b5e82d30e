"""What happens when capture fails: one warning, and it is off. Training never hears of it otherwise.

What one process of a host has to itself for as long as it lives: a rank, or to tell of what all of them meet.
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
    """Another process that lives has it; the text says what, and which."""


class RankLock:
    """A record lock of the system's on a file.

    The system takes it back however the process ends; and a forked child, as the workers of data loaders are, which may
    outlive it, never has it. `flock` would be the child's as well.
    """

    def __init__(self, path: Path, what: str) -> None:
        """Raise TakenError, OSError where the file cannot be made."""
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
        """Give it back; the file stays."""
        os.close(self._handle)

    def _owner(self) -> int:
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        return int(struct.unpack(_FLOCK, fcntl.fcntl(self._handle, fcntl.F_GETLK, asked))[4])


NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
_TOLD: Final[list[RankLock]] = []
"""What this process has told for all of its host: the others see it for as long as it lives."""


def warn(text: str) -> None:
    """Write one line to stderr. `warnings` could be turned into errors by a filter, and logging is the job's."""
    tell(f"warning: {text}")


def tell(text: str) -> None:
    """Write one line to stderr that is no warning."""
    # A closed or full stderr is the job's business.
    with suppress(Exception):
        sys.stderr.write(f"kair: {text}\n")


def warn_of(error: BaseException, what: str, run_dir: Path | None) -> None:
    """Warns that `what` is so because of an error. What all ranks of a host meet, the first of them tells.

    `run_dir`: the folder that they share.
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
    """Whether no process of this host that lives has told it. Where nothing can be written, each tells."""
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
    """Return the error on one line, with the place in capture where it came up."""
    trace, place = error.__traceback__, ""
    while trace is not None:
        place = f" ({os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno})"  # noqa: PTH119  # no Path objects on this way
        trace = trace.tb_next
    # What an error says of itself can fail, too.
    try:
        text = " ".join(str(error).split())[:200]
    except Exception:
        text = "?"
    return f"{type(error).__name__}: {text}{place}"
