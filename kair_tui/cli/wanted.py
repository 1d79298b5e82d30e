"""The job that a command line asks for, before it is opened."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from kair.app.jobs import JobSource, locate
from kair_engine.frozen import dataclass

STDIN: Final = "-"
"""Names a log that comes on stdin."""


@dataclass(frozen=True)
class JobWanted:
    """The job and the steps that were asked for, and in which store; None where nothing was said."""

    job: str | None = None
    step: str = "all"
    files: Sequence[Path] = ()
    """More files of the job, where several make it up."""
    store: Path | None = None
    debug: bool = False
    """Whether defects are shown with their traceback."""
    log_pattern: str | None = None
    """The expression of a log's lines of steps; None for those that are known."""

    def locate(self) -> JobSource:
        """Return where the job is. Raises InputError where there is none, UsageError for an empty name."""
        return located(self.job, self.store, self.files, self.log_pattern)


def located(job: str | None, store: Path | None, files: Sequence[Path], log_pattern: str | None) -> JobSource:
    """Return where a job is that was named, or the one in use; `-` is a log on stdin.

    Raises InputError where there is none, UsageError for an empty name, or where stdin is closed.
    """
    if job == STDIN and not files:
        from kair_tui.cli.output import stdin_as_file

        source = JobSource("stdin", stdin_as_file("kair triage train.log"), stored=False)
    else:
        source = locate(job, store, files)
    return source if log_pattern is None else replace(source, log_pattern=log_pattern)
