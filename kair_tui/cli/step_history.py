"""The history of steps that capture keeps of a job, and a job of which nothing was sampled yet."""

from pathlib import Path

import numpy as np

from kair_engine.errors import InputError
from kair_engine.ranks import Rank
from kair_engine.results.triage import TriageResult
from kair_engine.results.watch import WatchResult
from kair_engine.trace.model import Job, StepTimes, Trace
from kair_engine.triage.history.rows import COLUMNS, MOST_CELLS, StepHistory, step_history

UNSAMPLED = "steps"
"""The format of a job of which only the history of steps is known."""
_FRAMEWORKS = {"kineto": "torch", "xplane": "xla"}
_COMPILED = frozenset({"step function", "compile"})
"""Scopes that capture's hooks of JAX and TensorFlow record."""


def unsampled(folder: Path) -> Trace | None:
    """A job of the store that is watched, and of which nothing was sampled: no operation and no step is known.

    None where nothing is known of its steps, either.
    """
    from kair_capture.places import JobPlaces

    places = JobPlaces(folder.parent, folder.name)
    status = _status(places.status)
    ranks = () if status is None else tuple(Rank(one.rank) for one in status.ranks)
    if status is None or not ranks or not (places.steps.is_dir() or status.hang is not None):
        return None
    job = Job(
        name=folder.name,
        source=str(folder),
        format=UNSAMPLED,
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
    return Trace(job, (), ())


def history_of(job: Job) -> StepHistory | None:
    """What the coordinator keeps beside the recording; None of a job that was not captured.

    Raises InputError where it is damaged.
    """
    if job.stored_in is None:
        return None
    import pyarrow as pa

    from kair_capture.agent.ring_reader import UNFIT
    from kair_capture.coordinator.step_log import last_attempt, read_all, script_scopes
    from kair_capture.places import JobPlaces

    folder = Path(job.stored_in).parent
    places = JobPlaces(folder.parent, folder.name)
    if not places.steps.is_dir():
        return None
    try:
        rows = last_attempt(read_all(places.steps, MOST_CELLS))
        rows = rows[(rows["flags"] & UNFIT) == 0]
        scopes = script_scopes(places.scopes, rows) if len(rows) else []
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"cannot read the steps of job {job.name}: {error}") from error
    status = _status(places.status)
    of_ranks = () if status is None else status.ranks
    noticed = [one for one in (() if status is None else status.alerts) if one.kind == "slow_rank" and not one.over]
    flat = {}
    for one in scopes:
        at, column = np.nonzero(~np.isnan(one.time_us))
        flat[one.scope] = one.ranks[at], one.steps[column], one.time_us[at, column]
    return step_history(
        rows["rank"].astype(np.int64),
        rows["step"].astype(np.int64),
        {name: rows[name if name == "samples" else f"{name}_us"].astype(np.float64) for name in COLUMNS},
        role_of={one.rank: one.role for one in of_ranks},
        host_of={one.rank: one.host for one in of_ranks if one.host is not None} or job.hosts,
        scopes=flat,
        alerts={rank: one.step for one in reversed(noticed) for rank in one.ranks},
        framework="xla" if _COMPILED & flat.keys() else _FRAMEWORKS.get(job.format),
    )


def hang_of(job: Job) -> TriageResult | None:
    """The verdict on a job that is captured and stands still, or lost a rank and has not gone on; else None."""
    if job.stored_in is None:
        return None
    from kair_capture.coordinator.hangs import verdict_of
    from kair_capture.places import JobPlaces

    folder = Path(job.stored_in).parent
    places = JobPlaces(folder.parent, folder.name)
    status = _status(places.status)
    if status is None or status.hang is None or status.hang.over:
        return None
    return verdict_of(places, status.hang)


def _status(path: Path) -> WatchResult | None:
    """What the coordinator told last; None where it is missing or damaged."""
    import msgspec

    from kair_engine.trace.files import read_kept

    try:
        return msgspec.json.decode(read_kept(path), type=WatchResult)
    except (OSError, ValueError, RecursionError):
        return None
