"""Writes to stdout and stderr: the answer to one, everything else to the other; only this module does.

Long work shows its progress on stderr: as a bar for a person who watches, and as occasional lines for a log.
"""

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Final, TextIO

from kair_engine.errors import UnwritableError, UsageError
from kair_tui.render.text import clean, speaks_unicode, to_ascii

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from kair_engine.trace.model import ImportOutcome


MOST_SIGNS: Final = 1 << 20
"""Limit of a text of commands: a device file must not fill the memory."""


def write_answer(text: str) -> None:
    """Write `text` to stdout, whole. Raises BrokenPipeError if its reader closed it."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.write(text if speaks_unicode(sys.stdout) else to_ascii(text))
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard output") from error


def write_bytes(write: "Callable[[IO[bytes]], None]") -> None:
    """Let `write` write to stdout, whole. Raises BrokenPipeError if its reader closed it."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
        write(sys.stdout.buffer)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard output") from error


def say(text: str, *, ascii_only: bool = False) -> None:
    """Write one line of notes, warnings or errors to stderr, safe for a terminal."""
    line = clean(text, ascii_only=ascii_only or not speaks_unicode(sys.stderr))
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def say_lines(text: str) -> None:
    """Write several lines (a traceback) to stderr, line breaks kept."""
    for line in text.splitlines():
        say(line)


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a person reads `stream` directly."""
    with suppress(ValueError, AttributeError):
        return bool(stream and stream.isatty())
    return False


def wants_color(stream: TextIO | None, *, no_color: bool) -> bool:
    """Return whether to use colour: only on a terminal that supports it, and unless it was declined."""
    declined = no_color or bool(os.environ.get("NO_COLOR"))
    return is_terminal(stream) and not declined and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


def abandon_stdout() -> None:
    """Redirect stdout to nothing, so that the interpreter's flush at exit does not meet the closed pipe."""
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def stdin_text(hint: str) -> str:
    """Read all of stdin; `hint` states the alternative. Raises UsageError if it is closed or no text."""
    if sys.stdin is None or sys.stdin.closed:
        raise UsageError("there is no terminal, and stdin is closed", hint)
    try:
        text = sys.stdin.read(MOST_SIGNS + 1)
    except UnicodeDecodeError as error:
        raise UsageError(f"stdin is no text: byte {error.start} is not UTF-8") from None
    if len(text) > MOST_SIGNS:
        raise UsageError(f"stdin is larger than {MOST_SIGNS >> 20} MiB", hint)
    return text


def stdin_as_file(hint: str) -> Path:
    """Copy stdin into a temporary file, kept until the program ends. Raises UsageError if it is closed."""
    import atexit
    import shutil
    import tempfile

    if sys.stdin is None or sys.stdin.closed:
        raise UsageError("stdin is closed", hint)
    file = tempfile.NamedTemporaryFile(prefix="kair-stdin-", suffix=".log", delete=False)  # noqa: SIM115 - see above
    atexit.register(Path(file.name).unlink, missing_ok=True)
    try:
        with file:
            shutil.copyfileobj(sys.stdin.buffer, file, 1 << 20)
    except OSError as error:
        raise UnwritableError(Path(file.name), error, "TMPDIR") from error
    return Path(file.name)


_PATIENCE_S = 1.0
_BETWEEN_LINES_S = 5.0
_HUNDREDTHS = 100


class ProgressBar:
    """Receives the engine's progress. Shows nothing until a piece of work proves long, and no bar once that is done."""

    def __init__(self, *, quiet: bool, ascii_only: bool, no_color: bool = False) -> None:
        self._quiet = quiet
        self._is_watched = is_terminal(sys.stderr) or _is_a_notebook()
        self._ascii_only = ascii_only
        self._no_color = no_color
        self._began: float | None = None
        self._said = 0.0
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def __call__(self, done: int, total: int, what: str, outcome: "ImportOutcome | None" = None) -> None:  # noqa: ARG002
        """Show the engine's progress."""
        if self._began is None:
            self._began = self._said = time.monotonic()
        if not self._quiet and time.monotonic() - self._began >= _PATIENCE_S:
            self._show(done, total, what)
        if done >= total:
            self.end()

    def _show(self, done: int, total: int, what: str) -> None:
        if not self._is_watched:
            self._say(f"kair: {_far(done, total)}: {what}")
            return
        if self._bar is None:
            self._start()
        if self._bar is not None and self._task is not None:
            label = clean(what, ascii_only=self._ascii_only)
            self._bar.update(self._task, completed=done, total=total, description=label, far=_far(done, total))

    def end(self) -> None:
        """Remove the bar; the next long piece of work gets its own."""
        if self._bar is not None:
            self._bar.stop()
        self._bar = self._began = None

    def _say(self, line: str) -> None:
        if time.monotonic() - self._said >= _BETWEEN_LINES_S:
            say(line, ascii_only=self._ascii_only)
            self._said = time.monotonic()

    def _start(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        label = TextColumn("{task.description}", markup=False)
        console = Console(stderr=True, no_color=True if self._no_color else None)
        far = TextColumn("{task.fields[far]}", markup=False)
        columns = (label, far) if self._ascii_only else (label, BarColumn(), far)
        self._bar = Progress(*columns, console=console, transient=True)
        self._task = self._bar.add_task("", total=None, far="")
        self._bar.start()


def _is_a_notebook() -> bool:
    """Return whether this process is a notebook's kernel, which draws the bar; others import its package, too."""
    kernel = sys.modules.get("ipykernel.kernelapp")
    return kernel is not None and bool(kernel.IPKernelApp.initialized())


def _far(done: int, total: int) -> str:
    """Return `3 of 8` for files, or `34 %` for computations, which count in hundredths."""
    return f"{done} %" if total == _HUNDREDTHS else f"{done} of {total}"
