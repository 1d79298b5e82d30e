"""Writes to stdout and stderr: the answer to one, all else to the other; nothing but this module does."""

import os
import sys
from contextlib import suppress
from typing import Final, TextIO

from kair_engine.errors import UsageError
from kair_tui.render.text import clean, speaks_unicode, to_ascii

MOST_SIGNS: Final = 1 << 20
"""Of a text of commands: whoever names a device is not to fill the memory."""


def write_answer(text: str) -> None:
    """Writes `text` to stdout, whole. Raises BrokenPipeError when its reader went away."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.write(text if speaks_unicode(sys.stdout) else to_ascii(text))
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard output") from error


def say(text: str, *, ascii_only: bool = False) -> None:
    """Writes one line of notes, warnings or errors to stderr, safe for a terminal."""
    line = clean(text, ascii_only=ascii_only or not speaks_unicode(sys.stderr))
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def say_lines(text: str) -> None:
    """Writes several lines (a traceback) to stderr, line breaks kept."""
    for line in text.splitlines():
        say(line)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a person reads `stream` directly."""
    with suppress(ValueError, AttributeError):
        return bool(stream and stream.isatty())
    return False


def wants_color(stream: TextIO | None, *, no_color: bool) -> bool:
    """Colour only on a terminal that has it, and unless it was declined."""
    declined = no_color or bool(os.environ.get("NO_COLOR"))
    return is_terminal(stream) and not declined and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


def abandon_stdout() -> None:
    """Points stdout at nothing, so that the interpreter's flush at exit does not meet the closed pipe."""
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def stdin_text(hint: str) -> str:
    """All of stdin; `hint` tells how to do without. Raises UsageError where it is closed or no text."""
    if sys.stdin is None or sys.stdin.closed:
        raise UsageError("there is no terminal, and stdin is closed", hint)
    try:
        text = sys.stdin.read(MOST_SIGNS + 1)
    except UnicodeDecodeError as error:
        raise UsageError(f"stdin is no text: byte {error.start} is not UTF-8") from None
    if len(text) > MOST_SIGNS:
        raise UsageError(f"stdin is larger than {MOST_SIGNS >> 20} MiB", hint)
    return text
