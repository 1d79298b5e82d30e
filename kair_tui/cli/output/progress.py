"""Progress on stderr: a bar for a person who watches, for a log a line every now and then."""

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from kair_tui.cli.output.streams import is_terminal, say
from kair_tui.render.text import clean

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from kair_engine.recording.importing import ImportOutcome

_PATIENCE_S = 1.0
_BETWEEN_LINES_S = 5.0

Report = Callable[[int, int, str], None]
"""Told that so much of so much is done, the last of it that."""


class Watcher(Protocol):
    """Whom work about the store reports to, the reading of files and all else."""

    def __call__(self, done: int, total: int, what: str, outcome: "ImportOutcome | None" = None) -> None:
        """So much of so much is done, the last of it that; of a file with what came of it."""


def unwatched(done: int, total: int, what: str, outcome: "ImportOutcome | None" = None) -> None:
    """Nobody watches this work."""


class ProgressBar:
    """What the engine reports to. Shows nothing until the work proves long."""

    def __init__(self, *, quiet: bool, ascii_only: bool, no_color: bool = False) -> None:
        self._quiet = quiet
        self._is_watched = is_terminal(sys.stderr)
        self._ascii_only = ascii_only
        self._no_color = no_color
        self._began = self._said = time.monotonic()
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, done: int, total: int, what: str, outcome: "ImportOutcome | None" = None) -> None:  # noqa: ARG002
        """Called by the engine as it goes."""
        if self._quiet or time.monotonic() - self._began < _PATIENCE_S:
            return
        if not self._is_watched:
            self._say(f"kair: {done} of {total}: {what}")
            return
        if self._bar is None:
            self._start()
        if self._bar is not None and self._task is not None:
            label = clean(what, ascii_only=self._ascii_only)
            self._bar.update(self._task, completed=done, total=total, description=label)

    def _say(self, line: str) -> None:
        if time.monotonic() - self._said >= _BETWEEN_LINES_S:
            say(line, ascii_only=self._ascii_only)
            self._said = time.monotonic()

    def _start(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        label = TextColumn("{task.description}", markup=False)
        console = Console(stderr=True, no_color=True if self._no_color else None)
        columns = (label, MofNCompleteColumn()) if self._ascii_only else (label, BarColumn(), MofNCompleteColumn())
        self._bar = Progress(*columns, console=console, transient=True)
        self._task = self._bar.add_task("", total=None)
        self._bar.start()
