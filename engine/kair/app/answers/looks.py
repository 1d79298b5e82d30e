"""Answers that look at the job: its steps, ranks, operators and collectives, and what its recording can show."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from kair.app.places import capture_places
from kair.app.question import Given
from kair_engine.errors import InputError, UsageError
from kair_engine.ranks import Rank
from kair_engine.results.collectives import CollectiveKind, CollectivesResult
from kair_engine.results.forecast import ForecastResult
from kair_engine.results.rank import RankProfileResult
from kair_engine.results.sensitivity import InjectedFault, SensitivityResult
from kair_engine.results.views import FrequencyResult, InfoResult, OperatorsResult, OperatorType, StepsResult

if TYPE_CHECKING:
    from kair_engine.results.lateness import Lateness
    from kair_engine.trace.model import Job

_MOST_RANKS: Final = 10_000_000
_LONGEST: Final = 8
"""Digits of a number of ranks."""


def info(given: Given, *, operators: bool = False, only_rank: Rank | None = None) -> InfoResult:
    """Return what the recording holds: ranks, steps, hosts, software.

    Raises InputError if the steps of a captured job are unreadable, UsageError for a rank that left no trace.
    """
    from kair.app.attempts import attempts_of
    from kair.app.identities import identities_of
    from kair_engine.views.overview import info as overview

    trace = given.trace
    given.require_rank(only_rank)
    of_ranks = identities_of(trace.job)
    identities = tuple(of_ranks[rank] for rank in sorted(of_ranks) if only_rank in (None, rank))
    found = overview(trace, operators=operators)
    found = replace(found, attempts=attempts_of(trace.job), identities=identities, **_how_it_goes(trace.job))
    if only_rank is None:
        return found
    return replace(found, by_rank=tuple(row for row in found.by_rank if row.rank == only_rank))


def _how_it_goes(job: "Job") -> dict[str, Any]:
    """Return the fields of `InfoResult` that the coordinator of a captured job knows; none of any other job."""
    places = None if job.stored_in is None else capture_places(job.stored_in)
    if places is None or not places.status.exists():
        return {}
    from kair.app.answers.watch import watch

    try:
        status = watch(places.store, places.job, lambda _: None)
    except InputError:
        return {}
    found: dict[str, Any] = {"state": status.state, "parts_every": status.parts_every}
    if status.hang is not None and not status.hang.over:
        found |= {"ending": status.hang.told, "hang": status.hang.kind}
    if job.is_recorded_only:
        roles: dict[str, list[int]] = {}
        for one in status.ranks:
            roles.setdefault(one.role, []).append(one.rank)
        found["roles"] = {role: tuple(ranks) for role, ranks in roles.items()}
    return found


def steps(
    given: Given, *, scopes: bool = False, attempt: int | None = None, only_rank: Rank | None = None
) -> StepsResult:
    """Return the time of every step on every rank.

    Raises UsageError, InputError for the scopes of a job, or an attempt, that was not captured.
    """
    from kair.app.step_history import steps_of_history
    from kair_engine.views.overview import steps as overview

    if attempt is not None and not scopes:
        raise UsageError("--attempt chooses whose scopes are shown", f"kair steps --scopes --attempt {attempt}")
    given.require_rank(only_rank)
    if given.trace.job.is_log:
        from kair.app.logs import steps_of_log

        return steps_of_log(given.trace)
    result = (
        steps_of_history(given.trace, only_rank)
        if given.trace.job.is_recorded_only
        else overview(given.trace, only_rank)
    )
    return _with_scopes(result, given.trace.job, attempt) if scopes else result


def lateness(given: Given) -> "Lateness":
    """Return how late each rank was in each step: by the history of a captured job, else by the recording."""
    from kair.app.step_history import history_of_steps
    from kair_engine.views.lateness import lateness as of_recording
    from kair_engine.views.lateness import lateness_of_history

    trace = given.trace
    history = history_of_steps(trace)
    if history is not None and (history.can_judge or trace.job.is_recorded_only):
        return lateness_of_history(history)
    return of_recording(trace)


def rank(given: Given, *, rank: Rank | None = None) -> RankProfileResult:
    """Return where one rank's step time goes, and how its operations complete compared with its peers'.

    The default is the rank that `localize` puts first. Raises UsageError for a rank that left no trace.
    """
    from kair_engine.localize.analysis import localize
    from kair_engine.views.rank_profile import rank_profile

    return rank_profile(given.trace, rank=localize(given.trace).scores[0].rank if rank is None else rank)


def operators(
    given: Given,
    *,
    operator: str | None = None,
    type: OperatorType | None = None,  # noqa: A002  (the option's name)
    by_rank: bool = False,
    limit: int = 40,
) -> OperatorsResult:
    """Return how long every operator ran, by type, on all ranks."""
    from kair_engine.views.operator_times import operator_times

    return operator_times(given.trace, operator=operator, only=type, by_rank=by_rank, limit=limit)


def frequency(
    given: Given,
    *,
    operator: str | None = None,
    phase: str | None = None,
    scope: str | None = None,
    windows: int = 100,
    only_rank: Rank | None = None,
) -> FrequencyResult:
    """Return how often operations begin in each window of a step. Raises UsageError for a rank that left no trace."""
    from kair_engine.views.frequency import frequency as count

    given.require_rank(only_rank)
    found = count(given.trace, operator=operator, phase=phase, scope=scope, windows=windows)
    if only_rank is None:
        return found
    return replace(
        found,
        counts=tuple(row for row in found.counts if row.rank == only_rank),
        degraded=tuple(row for row in found.degraded if row.rank == only_rank),
        regions=tuple(row for row in found.regions if row.rank == only_rank),
    )


def collectives(
    given: Given,
    *,
    group: str | None = None,
    kind: CollectiveKind | None = None,
    rank: Rank | None = None,
    by_rank: bool = False,
    limit: int = 40,
) -> CollectivesResult:
    """Return the bandwidth of groups and links compared with their siblings, overlap, and TFLOP/s of products."""
    from kair_engine.views.collectives import collectives as compare

    return compare(given.trace, group=group, kind=kind, rank=rank, by_rank=by_rank, limit=limit)


def sensitivity(
    given: Given,
    *,
    draws: int = 100,
    probability: float = 0.95,
    seed: int = 0,
    fault: InjectedFault | None = None,
) -> SensitivityResult:
    """Return the smallest faults that the recording can show, found with `probability` (0 to 1) in `draws` draws."""
    from kair_engine.sensitivity.analysis import FAULTS
    from kair_engine.sensitivity.analysis import sensitivity as measure

    chosen = FAULTS if fault is None else (fault,)
    return measure(given.trace, draws=draws, probability=probability, seed=seed, chosen=chosen)


def forecast(
    given: Given,
    *,
    ranks: str = "8,64,1024",
    per_host: int | None = None,
    leave_out: Sequence[Rank] = (),
    draws: int = 200,
    seed: int = 0,
) -> ForecastResult:
    """Return what ordinary noise would cost on more ranks, by the history of all steps if capture keeps one.

    Raises UsageError for too few ranks or steps, InputError for a damaged history.
    """
    from kair.app.step_history import history_of_steps
    from kair_engine.forecast.analysis import forecast as extrapolate

    numbers, trace = _numbers(ranks), given.trace
    return extrapolate(
        trace, history_of_steps(trace), ranks=numbers, per_host=per_host, left_out=leave_out, draws=draws, seed=seed
    )


def _numbers(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(
        part.isascii() and part.isdigit() and len(part) <= _LONGEST and 1 <= int(part) <= _MOST_RANKS for part in parts
    ):
        raise UsageError(f"--ranks {text!r} is no list of numbers of ranks", "such as --ranks 8,64,1024")
    return tuple(sorted({int(part) for part in parts}))


def _with_scopes(result: StepsResult, job: "Job", wanted: int | None) -> StepsResult:
    """Add the scopes that the coordinator keeps next to the recording."""
    import pyarrow as pa

    from kair.app.attempts import places_of, rows_of
    from kair_capture.coordinator.step_log import attempts_in, scope_series
    from kair_engine.views.scope_changes import scope_times

    places = places_of(job)
    if places is None:
        raise InputError(f"{job.name} was not captured: its other steps are unknown", "kair steps without --scopes")
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
