"""Reads results of `kair confirm`, as a job's coordinator left them in the job's folder."""

from collections.abc import Iterator
from pathlib import Path

from kair_engine.results.confirm import ConfirmRun
from kair_engine.trace.json_text import kept_json


def read_confirmed(file: Path) -> ConfirmRun | None:
    """Return the answer in a file; None if it is missing, or it is damaged."""
    return kept_json(file, ConfirmRun)


def latest_run(folder: Path) -> ConfirmRun | None:
    """Return the last intact record in a job's `confirm` folder, even if its delays are still going on."""
    return next(_newest(folder), None)


def latest_confirmed(folder: Path, rank: int | None = None) -> ConfirmRun | None:
    """Return the last answer with finished delays; for a rank, the last that accused only it."""
    answers = (run for run in _newest(folder) if run.state == "over" and run.effects)
    return next((run for run in answers if rank is None or run.accused == (rank,)), None)


def _newest(folder: Path) -> Iterator[ConfirmRun]:
    """Yield the intact records, the last first."""
    return filter(None, map(read_confirmed, sorted(folder.glob("[!.]*.json"), reverse=True)))
