"""The job that a command line asks for, before it is opened."""

from collections.abc import Sequence
from pathlib import Path

from kair_engine.frozen import dataclass


@dataclass(frozen=True)
class JobWanted:
    """The job and the steps that were asked for, and in which store; None where nothing was said."""

    job: str | None = None
    step: str = "all"
    files: Sequence[Path] = ()
    """More files of the job, where several make it up."""
    store: Path | None = None
    debug: bool = False
    """Whether defects are told with their traceback."""
