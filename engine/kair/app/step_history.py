"""Reads the history of steps that capture keeps, also of jobs and steps that were not sampled."""

from collections.abc import Hashable
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kair.app.inspector import history_of_collectives
from kair.app.places import capture_places
from kair_engine.arrays import Ints
from kair_engine.errors import InputError
from kair_engine.ranks import Rank
from kair_engine.results.stuck import silence
from kair_engine.results.triage import TriageResult
from kair_engine.results.views import StepsResult
from kair_engine.results.watch import FRESH_S, WatchResult
from kair_engine.trace.model import Job, KairWarning, StepTimes, Trace, listed, short_warning
from kair_engine.triage.history.rows import COLUMNS, MOST_CELLS, StepHistory, step_history

if TYPE_CHECKING:
    from kair_capture.coordinator.step_columns import StepColumns
    from kair_capture.places import JobPlaces
    from kair_engine.evidence.course import Course
    from kair_engine.trace.evidence_time import JobTime

_FRAMEWORKS = {"kineto": "torch", "xplane": "xla"}
_STEP_FUNCTION = "step function"
"""A scope that capture's hooks of JAX and TensorFlow record."""


def unsampled(folder: Path) -> Trace | None:
    """Return a watched job of the store with its recorded steps, without operations.

    Return None if no step is known, either. Raises InputError if they are damaged.
    """
    from kair_capture.places import JobPlaces

    places = JobPlaces(folder.parent, folder.name)
    status = status_in(places)
    ranks = () if status is None else tuple(Rank(one.rank) for one in status.ranks)
    if status is None or not ranks or not (status.step < 0 or places.steps.is_dir() or status.hang is not None):
        return None
    job = Job(
        name=folder.name,
        source=str(folder),
        format="steps",
        world_size=max(status.world_size, len(ranks)),
        ranks=ranks,
        hosts={one.rank: one.host for one in status.ranks if one.host is not None},
        layout=None,
        device=None,
        has_device=False,
        absolute_time=True,
        steps=(),
        step_times=StepTimes((), (), (), (), ()),
        operations=0,
        warnings=(),
        stored_in=str(places.capture),
    )
    return recorded_only(job)


def recorded_only(job: Job) -> Trace:
    """Return a captured job's recorded steps that were not sampled, without operations."""
    rows = _rows_of(job)
    steps = () if rows is None else tuple(np.unique(rows["step"]).tolist())
    known = replace(job, format="steps", steps=steps, step_times=StepTimes((), (), (), (), ()), operations=0)
    return Trace(known, (), steps)


def require_sampled(trace: Trace, what: str) -> None:
    """Raise InputError if no step was sampled, because the command needs operations."""
    job = trace.job
    if job.is_log:
        hint = f"kair triage {job.source} says what to record"
        raise InputError(f"{job.name} is a log, which says how long steps took: {what} needs a recording", hint)
    if not job.is_recorded_only:
        return
    if job.is_of_collectives:
        hint = f"kair triage {job.source} and kair steps {job.source} answer by its collectives"
        raise InputError(f"of {job.name} NCCL's Inspector recorded collectives alone: {what} needs operators", hint)
    of = "nothing of it" if trace.steps == job.steps else "none of these steps"
    hint = f"kair triage {job.name} and kair steps {job.name} answer by the history of its steps"
    if trains(job):
        hint += f"; kair capture now --job {job.name} samples some"
    raise InputError(f"job {job.name} is watched, and {of} was sampled: {what} needs sampled steps", hint)


def trains(job: Job) -> bool:
    """Return whether steps of a captured job can be sampled now, by its coordinator's last status."""
    status = None if job.stored_in is None else status_in(capture_places(job.stored_in))
    return status is not None and status.state == "training"


def steps_of_history(trace: Trace, only_rank: Rank | None = None) -> StepsResult:
    """Return the recorded time of every step on every rank. Raises InputError if the rows are damaged."""
    from kair_capture.agent.step_rows import parts_every
    from kair_engine.views.overview import MOST_ROWS, steps_of_rows

    if (history := history_of_collectives(trace)) is not None:
        return _steps_of_collectives(history, only_rank)
    rows = _rows_of(trace.job)
    if rows is None:
        return StepsResult((), (), 0.0, ())
    chosen = rows[np.isin(rows["step"], trace.steps)]
    every = parts_every(chosen["flags"])
    chosen = chosen if only_rank is None else chosen[chosen["rank"] == only_rank]
    chosen = chosen[np.lexsort((chosen["rank"], chosen["step"]))]
    last = np.unique(chosen["step"])[-max(MOST_ROWS // max(len(trace.job.ranks), 1), 1) :]
    chosen = chosen[np.isin(chosen["step"], last)]
    columns = {name: chosen[f"{name}_us"].astype(np.float64) for name in ("begin", "step", "self")}
    ranks, steps = (chosen[name].astype(np.int64) for name in ("rank", "step"))
    earlier = len(last) > 0 and trace.steps[0] < last[0]
    text = f"the last {len(last)} of {len(trace.steps)} recorded steps are listed: --step chooses others"
    found = steps_of_rows(ranks, steps, columns, (short_warning("last_steps", text),) if earlier else ())
    return replace(found, parts_every=every)


def _steps_of_collectives(history: StepHistory, only_rank: Rank | None) -> StepsResult:
    from kair_engine.views.overview import MOST_ROWS, steps_of_rows

    chosen = np.arange(len(history.ranks)) if only_rank is None else np.flatnonzero(history.ranks == only_rank)
    last = history.steps[-max(MOST_ROWS // max(len(history.ranks), 1), 1) :]
    some = history.of_steps(last.tolist())
    us = {name: some.us[name][:, chosen] for name in ("step", "self")}
    us["begin"] = np.cumsum(us["step"], axis=0) - us["step"]
    rank, step = np.tile(history.ranks[chosen], len(last)), np.repeat(some.steps, len(chosen))
    return steps_of_rows(rank, step, {name: one.reshape(-1) for name, one in us.items()})


def step_times_of(job: Job) -> StepTimes:
    """Return a captured job's recorded steps in the form of a recording, which identifies the job."""
    rows = _rows_of(job)
    if rows is None:
        return StepTimes()
    rows = rows[np.lexsort((rows["step"], rows["rank"]))]
    begin, took = (rows[f"{name}_us"].astype(np.int64) * 1000 for name in ("begin", "step"))
    columns = (rows["rank"], rows["step"], begin, took, np.zeros(len(rows), np.int64))
    return StepTimes(*(tuple(one.tolist()) for one in columns))


def history_of_steps(trace: Trace) -> StepHistory | None:
    """Return the history of a captured job, or of chosen steps that were not sampled.

    Return None for chosen sampled steps, and for a job that was not captured. Raises InputError if it is damaged.
    """
    if (of_collectives := history_of_collectives(trace)) is not None:
        return of_collectives
    is_whole = trace.steps == trace.job.steps
    if not is_whole and not trace.job.is_recorded_only:
        return None
    history = history_of(trace.job)
    return history if is_whole or history is None else history.of_steps(trace.steps)


def history_of(job: Job, attempt: int | None = None) -> StepHistory | None:
    """Return the coordinator's history of the last or the given attempt; None for a job that was not captured.

    Raises InputError if it is damaged.
    """
    rows = _rows_of(job, attempt)
    if rows is None or job.stored_in is None:
        return None
    import pyarrow as pa

    from kair_capture.coordinator.step_log import script_scopes
    from kair_capture.ring import StepFlag

    places = capture_places(job.stored_in)
    try:
        scopes = script_scopes(places.scopes, rows) if len(rows) else []
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"cannot read the steps of job {job.name}: {error}") from error
    status = status_in(places)
    of_ranks = () if status is None else status.ranks
    noticed = [one for one in (() if status is None else status.alerts) if one.kind == "slow_rank" and not one.over]
    flat = {}
    for one in scopes:
        at, column = np.nonzero(~np.isnan(one.time_us))
        flat[one.scope] = one.ranks[at], one.steps[column], one.time_us[at, column]
    return step_history(
        rows["rank"],
        rows["step"],
        {name: rows[name if name == "samples" else f"{name}_us"] for name in COLUMNS},
        role_of={one.rank: one.role for one in of_ranks},
        host_of={one.rank: one.host for one in of_ranks if one.host is not None} or job.hosts,
        scopes=flat,
        alerts={rank: one.step for one in reversed(noticed) for rank in one.ranks},
        framework="xla" if _STEP_FUNCTION in flat else _FRAMEWORKS.get(job.format),
        thinned=np.unique(rows["step"][rows["flags"] & StepFlag.THINNED > 0]).astype(np.int64),
    )


def course_of_job(job: Job, *, hides_waiting: bool = False) -> "Course | None":
    """Return the job's steps over time, sampled or not, with each rank's records; None if no step's time is known.

    Raises InputError if the records are damaged.
    """
    from kair_engine.evidence.course import course_of, course_of_times

    rows = _rows_of(job)
    if rows is None or not len(rows):
        return course_of_times(job.step_times) if job.absolute_time else None
    us = {name: rows[f"{name}_us"].astype(np.float64) for name in ("begin", "step", "self", "cpu", "delay", "gc")}
    told = us["cpu"] > 0
    spent = {
        "process_gc_time": us["gc"],
        "process_run_delay": np.where(told, us["delay"], np.nan),
    }
    if not (job.has_device or hides_waiting):
        # With a device a thread also sleeps for it, and in a compiled program for other ranks.
        asleep = np.maximum(us["self"] - us["cpu"] - us["delay"], 0.0)
        spent["process_blocked_time"] = np.where(told, asleep, np.nan)
    begin, length = (np.asarray(rows[f"{name}_us"], np.int64) * 1000 for name in ("begin", "step"))
    rank, step = (np.asarray(rows[name], np.int64) for name in ("rank", "step"))
    return course_of(rank, step, begin, length, own_us=us["self"], spent_us=spent)


def time_of_job(job: Job) -> "JobTime | None":
    """Return when the job's steps ran, sampled or not, widened by the longest step on both sides.

    Return None if that is unknown. Raises InputError if the records are damaged.
    """
    from kair_engine.trace.evidence_time import JobTime

    found, rows = list[tuple[Ints, Ints]](), _rows_of(job)
    if rows is not None and len(rows):
        found.append((rows["begin_us"].astype(np.int64) * 1000, rows["step_us"].astype(np.int64) * 1000))
    if job.absolute_time and job.step_times.begin_ns:
        found.append((np.array(job.step_times.begin_ns, np.int64), np.array(job.step_times.duration_ns, np.int64)))
    if not found:
        return None
    first, last = min(int(begin.min()) for begin, _ in found), max(int((begin + took).max()) for begin, took in found)
    return JobTime(first, last).widened(max(int(took.max()) for _, took in found))


def without_steps(job: Job) -> TriageResult:
    """Return the verdict on a job without any step's times: where its ranks are before the first step."""
    from kair_capture.places import JobPlaces
    from kair_engine.triage.hangs.analysis import nothing_known

    folder = Path(job.source)
    status = status_in(JobPlaces(folder.parent, folder.name))
    if status is None or status.step >= 0:
        return nothing_known(job)
    there: dict[tuple[str, int], list[int]] = {}
    for one in status.ranks:
        there.setdefault((f" on {one.host}" if one.host else "", one.step + 1), []).append(one.rank)
    places = [
        f"rank{'s' if len(ranks) > 1 else ''} {listed(ranks)}{host} {'are' if len(ranks) > 1 else 'is'} in step {step}"
        for (host, step), ranks in sorted(there.items())
    ]
    if (absent := status.world_size - len(status.ranks)) > 0:
        places.append(f"{absent} of {status.world_size} ranks did not begin one")
    return nothing_known(job, (short_warning("no_step_yet", f"no step has ended yet: {'; '.join(places)}"),))


def hang_of(job: Job) -> TriageResult | None:
    """Return the verdict on a captured job that hangs, or lost a rank and has not gone on; else None."""
    if job.stored_in is None:
        return None
    from kair_capture.coordinator.hangs import verdict_of

    places = capture_places(job.stored_in)
    status = status_in(places)
    if status is None or status.hang is None or status.hang.over:
        return None
    return verdict_of(places, status.hang)


def silence_of(job: Job) -> KairWarning | None:
    """Return a warning where a captured job trains, and no step of it has ended for long; else None."""
    status = None if job.stored_in is None else status_in(capture_places(job.stored_in))
    if status is None:
        return None
    try:
        age_s = (datetime.now(UTC) - datetime.fromisoformat(status.updated_at)).total_seconds()
    except (ValueError, TypeError):
        return None
    said = silence(replace(status, age_s=max(age_s, 0.0)))
    # What is old says nothing of now: its coordinator may be gone.
    return short_warning("no_step_ends", said) if said and age_s <= FRESH_S else None


def _rows_of(job: Job, attempt: int | None = None) -> "StepColumns | None":
    """Of the last attempt or that one, without sampled steps, which the profiler makes longer.

    None of a job without any. The rows that were read last stay in memory: a triage asks for them several times.
    """
    if job.stored_in is None or not (places := capture_places(job.stored_in)).steps.is_dir():
        return None
    import pyarrow as pa

    try:
        files = [(one.name, (state := one.stat()).st_size, state.st_mtime_ns) for one in places.steps.iterdir()]
        return _rows_in(places.steps, tuple(sorted(files)), attempt)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"cannot read the steps of job {job.name}: {error}") from error


@lru_cache(maxsize=1)
def _rows_in(folder: Path, _state: Hashable, attempt: int | None) -> "StepColumns":
    from kair_capture.coordinator.step_log import last_attempt, read_columns
    from kair_capture.ring import UNFIT

    told = ("rank", "step", "begin_us", "flags", "attempt")
    columns = [name if name == "samples" else f"{name}_us" for name in COLUMNS]
    rows = last_attempt(read_columns(folder, MOST_CELLS, (*told, *columns)), attempt)
    fit = (rows["flags"] & UNFIT) == 0
    return (rows if fit.all() else rows[fit]).without("attempt")


def status_in(places: "JobPlaces") -> WatchResult | None:
    """Return the coordinator's last status; None if it is missing or damaged."""
    import msgspec

    from kair_engine.trace.files import read_kept

    try:
        return msgspec.json.decode(read_kept(places.status), type=WatchResult)
    except (OSError, ValueError, RecursionError):
        return None
