"""The ways a question can be turned down, each with the exit code a command gives it."""

import errno
import os
import re
from pathlib import Path
from typing import ClassVar


class KairError(Exception):
    """An error whose text is meant for the user: one line that names the thing and the place.

    `hint` says the way out, where there is one.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class InputError(KairError):
    """The input is missing, unreadable, or not a trace."""

    exit_code = 3


class UsageError(KairError):
    """The question itself is wrong: an unknown rank, a step that was not recorded, a bad option."""

    exit_code = 2


class DamagedJobError(InputError):
    """What is kept of a job cannot be read: importing it again in its place mends it."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "import the job again in its place")


class NameTakenError(UsageError):
    """A job (or a baseline) of that name is kept already, and was not to be replaced."""

    def __init__(self, name: str, what: str = "job") -> None:
        way_out = "import it in its place" if what == "job" else "save it with --replace"
        super().__init__(f"there is a {what} {name} already", f"choose another name, or {way_out}")


class BusyError(KairError):
    """Someone else is at work on the same thing just now."""

    exit_code = 3


class UnwritableError(KairError):
    """What is to be kept cannot be written: a full disk, a place that is read-only or not the user's."""

    exit_code = 3

    def __init__(self, place: Path, error: OSError, choose: str = "") -> None:
        """`choose` is what another place is named with."""
        another = f"choose another place{choose and f' with {choose}'}"
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        hint = f"free some space there, or {another}" if is_full else another
        super().__init__(f"cannot write {place}: {error.strerror or error}", hint)


def unwritable(path: Path, error: OSError) -> KairError:
    """Return the error for a file that was to be written: no room for it is no wrong usage, a name that cannot be one
    is.
    """
    # Libraries tell the system's errors in sentences of their own.
    told = re.search(r"(?:os error|errno) (\d+)", str(error), re.IGNORECASE)
    number = error.errno or (int(told[1]) if told else 0)
    plain = OSError(number, os.strerror(number)) if number else error
    no_room = number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
    return UnwritableError(path, plain) if no_room else UsageError(f"cannot write {path}: {plain.strerror or plain}")


class UnwritableStoreError(UnwritableError):
    """The same of the store."""
