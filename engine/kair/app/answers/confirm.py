"""The answer of `confirm --last`: what delays of a job showed, or show so far, as its coordinator wrote it."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from kair.app.places import capture_places
from kair.app.question import Given
from kair_engine.errors import InputError
from kair_engine.results.confirm import ConfirmRun
from kair_engine.store.confirmed import latest_run
from kair_engine.store.remote import fetch_confirmed

_UNHEARD_S: Final = 30.0
"""The record is written anew every 2 s; behind a URL that takes some seconds."""


class NobodyDelayedError(InputError):
    """Raised if no rank of the job was ever delayed."""

    def __init__(self, job: str) -> None:
        super().__init__(f"no rank of job {job} was ever delayed", f"kair confirm {job}")


def confirm(given: Given) -> ConfirmRun:
    """Return the last record of delays. Raises NobodyDelayedError without one."""
    job, run = given.trace.job, None
    if job.stored_in is not None:
        places = capture_places(job.stored_in)
        fetch_confirmed(places.store, places.job)
        run = latest_run(places.confirm)
    if run is None:
        raise NobodyDelayedError(job.name)
    return replace(run, state="unheard") if run.state == "running" and _age_s(run) > _UNHEARD_S else run


def _age_s(run: ConfirmRun) -> float:
    """Infinite where it does not say when it was written."""
    try:
        return (datetime.now(UTC) - datetime.fromisoformat(run.at)).total_seconds()
    except (ValueError, TypeError):
        return float("inf")
