"""Finds roles and whole steps that take longer since some step than before, where no peer can tell.

A rank that is alone in its role, or has one or two peers, and all ranks of a role together cannot be told by peers;
their own compute is compared with what it was. What other roles' compute does at the same time is no change of one
role: all devices of a job warm up together, and ranks that wait for a slow one compute faster. So a rank, or a role,
has to be slower than before, and to have become slower than the others did.
"""

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

import numpy as np

from kair_engine.arrays import Floats, Ints, present, zero_for_nan
from kair_engine.frozen import dataclass
from kair_engine.localize.anomalies import FALSE_ALARM_RATE, PAST_SHARE, SMALLEST_SHARE
from kair_engine.localize.change_points import Change, change_points, same_time
from kair_engine.localize.excess import CLASSES, JobExcess
from kair_engine.localize.peers import Spread
from kair_engine.localize.signals import USUAL_OF_STEP, USUAL_OF_WORK, WIDE_OF_STEP, WIDE_OF_WORK
from kair_engine.ranks import Position, as_positions
from kair_engine.stats import median

OWN_CLASSES = ("compute", "input")
"""The classes of time that are a rank's own whatever other roles do: its host's idle time may be waiting for them."""
FEWEST_PEERS = 4
"""Ranks of a smaller role are compared one by one: of three, one that is slow is hardly told by the other two."""
FEWEST_THINGS = 2
"""Of one rank, or one role, nobody knows what is its own and what the whole job's."""
MOST_OF_ROLE = 0.75
"""A role became slower if more than this share of its ranks did: peers tell fewer than a quarter apart."""
STRAGGLING = 1.1
"""Times longer: what a job with stragglers is at least, as published [W §4]. Whole steps that change by less vary with
their batches."""


@dataclass(frozen=True)
class SlowerRole:
    """A rank with too few peers, or a whole role, that became slower by its own work; times are ns of a rank's step."""

    positions: tuple[Position, ...]
    class_index: int
    change: Change
    p_value: float
    """Family-wise."""


@dataclass(frozen=True)
class SlowerSteps:
    """All steps of a run take longer than the others; times are per step, ns."""

    change: Change
    p_value: float
    kind: str
    """The part of the step that grew most on the median rank: a class of time, or `waiting`."""
    grew_ns: float
    """By how much that part grew."""


def slower_roles(job: JobExcess, accused: AbstractSet[int]) -> tuple[SlowerRole, ...]:
    """Ranks with too few peers, and whole roles, that became slower, the costliest first; none of the `accused`.

    None where all are one role that has peers enough: what happens to all of them is the whole step's change.
    """
    work = zero_for_nan(np.stack([step.work_ns for step in job.steps]))
    things = list(_things(job, accused))
    if len(things) < FEWEST_THINGS:
        return ()
    rows = [row for row in map(CLASSES.index, OWN_CLASSES) if work[:, row].any()]
    tests = len(things) * len(rows) / PAST_SHARE
    found = [replace(one, p_value=one.p_value * tests) for row in rows for one in _slower(work[:, row], things, row)]
    beyond = [one for one in found if one.p_value < FALSE_ALARM_RATE]
    costly = [one for one in _together(beyond, job.role) if _is_costly(one.change, job)]
    return tuple(sorted(costly, key=lambda one: one.change.before - one.change.since))


def _together(found: Sequence[SlowerRole], role: Ints) -> list[SlowerRole]:
    """Those of one role that became slower at one time as one: without one of them, others would be as late."""
    result: list[SlowerRole] = []
    for one in found:
        for at, other in enumerate(result):
            alike = one.class_index == other.class_index and role[one.positions[0]] == role[other.positions[0]]
            if alike and same_time(one.change, other.change):
                positions = tuple(sorted({*one.positions, *other.positions}))
                result[at] = replace(other, positions=positions, p_value=max(one.p_value, other.p_value))
                break
        else:
            result.append(one)
    return result


def _things(job: JobExcess, accused: AbstractSet[int]) -> Iterator[Ints]:
    """What is compared with its past: each rank of a role without peers enough, and all ranks of any other role."""
    for code in present(job.role):
        members = np.array(
            [at for at in np.flatnonzero(job.role == code).tolist() if at not in accused], dtype=np.int64
        )
        if len(members) >= FEWEST_PEERS:
            yield members
        else:
            yield from members[:, None]


def _slower(work: Floats, things: Sequence[Ints], row: int) -> Iterator[SlowerRole]:
    """Those that became slower in one class of time (steps × ranks); of a role nearly all ranks have to."""
    of_thing = np.stack([median(work[:, members], axis=1) for members in things], axis=1)
    told = np.flatnonzero((of_thing > 0).all(axis=0))
    changes = change_points(of_thing[:, told], Spread(USUAL_OF_WORK, WIDE_OF_WORK), relative=True)
    for at, change in zip(told.tolist(), changes, strict=True):
        if change is not None:
            within = np.zeros(len(work), dtype=bool)
            within[change.begin : change.end] = True
            of_ranks = work[:, things[at]]
            rise = median(of_ranks[within], axis=0) - median(of_ranks[~within], axis=0)
            if (rise > (change.since - change.before) / 2).mean() > MOST_OF_ROLE:
                yield SlowerRole(as_positions(things[at]), row, change, change.p_value)


def slower_steps(job: JobExcess) -> SlowerSteps | None:
    """How the whole job's steps became longer; None where they did not by STRAGGLING, or by chance."""
    spread = Spread(USUAL_OF_STEP, WIDE_OF_STEP)
    (change,) = change_points(job.step_times_ns[:, None], spread)
    if change is None or change.p_value / PAST_SHARE >= FALSE_ALARM_RATE or change.factor < STRAGGLING:
        return None
    parts = _parts(job)
    grew = {name: _grown(values, change) for name, values in parts.items()}
    kind = max(grew, key=lambda name: grew[name])
    return SlowerSteps(change, change.p_value / PAST_SHARE, kind, grew[kind])


def _parts(job: JobExcess) -> dict[str, Floats]:
    """(steps): what the median rank spends in each class of time, and waits for others."""
    work = zero_for_nan(np.stack([step.work_ns for step in job.steps]))
    parts = {name: median(work[:, row], axis=1) for row, name in enumerate(CLASSES)}
    transfers = np.stack([zero_for_nan(step.transfers_ns) for step in job.steps])
    parts["communication"] = median(transfers, axis=1)
    if (waited := job.exposed_waiting_ns) is not None:
        parts["waiting"] = median(waited, axis=1)
    return parts


def _grown(values: Floats, change: Change) -> float:
    within = np.zeros(len(values), dtype=bool)
    within[change.begin : change.end] = True
    return float(np.median(values[within]) - np.median(values[~within]))


def _is_costly(change: Change, job: JobExcess) -> bool:
    share = (change.end - change.begin) / len(job.steps)
    return (change.since - change.before) * share > SMALLEST_SHARE * job.step_time_ns


def numbers_of(change: Change, steps: Sequence[int]) -> tuple[int, ...]:
    """The numbers of the steps of a change."""
    return tuple(steps[change.begin : change.end])
