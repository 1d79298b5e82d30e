"""`kair steps`: the time of every step on every rank."""

from dataclasses import replace
from typing import Annotated

from kair_engine.errors import InputError, UsageError
from kair_engine.results.views import StepsResult
from kair_engine.trace.model import Job, Trace, require_rank
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
    attempt: Annotated[
        int | None,
        Option(
            "--attempt", "With --scopes: which start of the job's processes. Default: the last.", metavar="N", minimum=1
        ),
    ] = None,
    only_rank: Annotated[int | None, Option("-r, --rank", "Only this rank's steps.", metavar="R", minimum=0)] = None,
) -> StepsResult:
    """Asks the engine. Raises UsageError, InputError for the scopes of a job, or an attempt, that was not captured."""
    from kair_engine.views.overview import steps

    if attempt is not None and not scopes:
        raise UsageError("--attempt chooses whose scopes are told", f"kair steps --scopes --attempt {attempt}")
    if only_rank is not None:
        require_rank(trace, only_rank)
    result = steps(trace, only_rank)
    return _with_scopes(result, trace.job, attempt) if scopes else result


def _with_scopes(result: StepsResult, job: Job, wanted: int | None) -> StepsResult:
    """From what the coordinator keeps beside the recording."""
    import pyarrow as pa

    from kair_capture.coordinator.step_log import attempts_in, scope_series
    from kair_engine.views.scope_changes import scope_times
    from kair_tui.cli.attempts import places_of, rows_of

    places = places_of(job)
    if places is None:
        raise InputError(
            f"{job.name} was not captured: nothing is known of its other steps", "kair steps without --scopes"
        )
    attempts = attempts_in(rows := rows_of(places))
    if wanted is not None and wanted not in {one.number for one in attempts}:
        numbers = ", ".join(str(one.number) for one in attempts) or "none is known"
        raise InputError(f"job {job.name} has no attempt {wanted}: {numbers}", "kair info lists them")
    number = wanted if wanted is not None or not attempts else attempts[-1].number
    try:
        scopes = scope_times(*scope_series(rows, places.scopes, number))
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"cannot read the steps of job {job.name}: {error}") from error
    return replace(result, scopes=scopes, attempts=attempts, attempt=number)
