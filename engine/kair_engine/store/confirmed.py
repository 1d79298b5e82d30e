"""What `kair confirm` found in a job, as its coordinator left it in the job's folder."""

from pathlib import Path

from kair_engine.results.confirm import ConfirmRun
from kair_engine.trace.json_text import kept_json


def read_confirmed(file: Path) -> ConfirmRun | None:
    """The answer in a file; None where there is none, or it is damaged."""
    return kept_json(file, ConfirmRun)


def latest_confirmed(folder: Path, rank: int | None = None) -> ConfirmRun | None:
    """The last whole answer of a job, whose folder `confirm` is given; of a rank, the last that accused it alone."""
    for file in sorted(folder.glob("[!.]*.json"), reverse=True):
        found = read_confirmed(file)
        if found is not None and found.state == "over" and (rank is None or found.accused == (rank,)):
            return found
    return None
