"""`kair steps`: the time of every step on every rank."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from kair_engine.errors import InputError
from kair_engine.results.views import ScopeTime, StepsResult
from kair_engine.trace.model import Job, Trace
from kair_tui.cli.options import Option

RENDERER = "kair_tui.render.steps"


def run(
    trace: Trace,
    *,
    scopes: Annotated[
        bool,
        Option(
            "--scopes",
            "Of a captured job also what parts of the step take on each rank, in all its steps, and since when longer.",
        ),
    ] = False,
) -> StepsResult:
    """Asks the engine. Raises InputError for the scopes of a job that was not captured."""
    from kair_engine.views.overview import steps

    result = steps(trace)
    return replace(result, scopes=_scopes_of(trace.job)) if scopes else result


def _scopes_of(job: Job) -> tuple[ScopeTime, ...]:
    """From what the coordinator keeps beside the recording."""
    import pyarrow as pa

    from kair_capture.coordinator.step_log import scope_series
    from kair_capture.places import JobPlaces
    from kair_engine.views.scope_changes import scope_times

    stored_in = None if job.stored_in is None else Path(job.stored_in).parent
    places = None if stored_in is None else JobPlaces(stored_in.parent, stored_in.name)
    if places is None or not places.steps.is_dir():
        raise InputError(
            f"{job.name} was not captured: nothing is known of its other steps", "kair steps without --scopes"
        )
    try:
        return scope_times(*scope_series(places.steps, places.scopes))
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"cannot read the steps of job {job.name}: {error}") from error
