"""The job that a command line names, before it is opened."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from kair.app.jobs import JobSource, locate
from kair_engine.frozen import dataclass

STDIN: Final = "-"
"""Names a log on stdin."""


@dataclass(frozen=True)
class JobWanted:
    """The named job and steps, and the store; None where not stated."""

    job: str | None = None
    step: str = "all"
    files: Sequence[Path] = ()
    """More files of the job, if it has several."""
    store: Path | None = None
    debug: bool = False
    """Whether defects are shown with their traceback."""
    log_pattern: str | None = None
    """The expression for a log's step lines; None for the known formats."""

    def locate(self) -> JobSource:
        """Return where the job is. Raises InputError if it does not exist, UsageError for an empty name."""
        return located(self.job, self.store, self.files, self.log_pattern)


def located(job: str | None, store: Path | None, files: Sequence[Path], log_pattern: str | None) -> JobSource:
    """Return where the named job is, or the one in use; `-` is a log on stdin.

    Raises InputError if it does not exist, UsageError for an empty name, or if stdin is closed.
    """
    if job == STDIN and not files:
        from kair_tui.cli.output import stdin_as_file

        source = JobSource("stdin", stdin_as_file("kair triage train.log"), stored=False)
    else:
        source = locate(job, store, files)
    return source if log_pattern is None else replace(source, log_pattern=log_pattern)
