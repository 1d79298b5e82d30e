"""What one process of a host has to itself for as long as it lives: a rank, or to tell of what all of them meet."""

import fcntl
import os
import struct
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
        """Raises TakenError, OSError where the file cannot be made."""
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
        """Gives it back; the file stays."""
        os.close(self._handle)

    def _owner(self) -> int:
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        return int(struct.unpack(_FLOCK, fcntl.fcntl(self._handle, fcntl.F_GETLK, asked))[4])
