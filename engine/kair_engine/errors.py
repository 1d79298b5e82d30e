"""The two ways a question can be turned down, each with the exit code a command gives it."""

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
