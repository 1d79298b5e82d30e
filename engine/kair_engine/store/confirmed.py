"""What `kair confirm` found in a job, as its coordinator left it in the job's folder."""

from collections.abc import Iterator
from pathlib import Path

from kair_engine.results.confirm import ConfirmRun
from kair_engine.trace.json_text import kept_json


def read_confirmed(file: Path) -> ConfirmRun | None:
    """Return the answer in a file; None where there is none, or it is damaged."""
    return kept_json(file, ConfirmRun)


def latest_run(folder: Path) -> ConfirmRun | None:
    """Return the last whole record of a job, whose folder `confirm` is given: also of delays that go on."""
    return next(_newest(folder), None)


def latest_confirmed(folder: Path, rank: int | None = None) -> ConfirmRun | None:
    """Return the last answer of delays that are over; of a rank, the last that accused it alone."""
    answers = (run for run in _newest(folder) if run.state == "over" and run.effects)
    return next((run for run in answers if rank is None or run.accused == (rank,)), None)


def _newest(folder: Path) -> Iterator[ConfirmRun]:
    """Whole records, the last first."""
    return filter(None, map(read_confirmed, sorted(folder.glob("[!.]*.json"), reverse=True)))
