"""What the process's exit status says; part of the command-line contract."""

from enum import IntEnum


class ExitCode(IntEnum):
    """The statuses of every command."""

    ANSWERED = 0
    """Answered, whether or not a straggler was found."""
    FAILED = 1
    """The analysis failed: a defect of Kair."""
    USAGE = 2
    """Wrong usage or configuration."""
    INPUT = 3
    """The input is missing, unreadable or not a trace; or what was to be written has no place."""
    FOUND = 10
    """Only with `--fail-on`: what it names was found."""
    INTERRUPTED = 130
    """Ctrl-C."""
    PIPE_CLOSED = 141
    """The reader of stdout went away."""
