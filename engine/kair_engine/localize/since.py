"""Finds ranks, roles and whole steps that take longer since some step than before.

A rank that is alone in its role has no peers, nor has a role whose ranks are all slow; their compute is compared with
what it was before. All other ranks are compared with their past too, because peers reveal an onset only if many steps
follow it (localize/shapes.py). A change that all ranks share is nobody's: all devices of a job warm up together, and
ranks that wait for a slow one compute faster. So a rank, or a role, must be slower than before, and must have slowed
down more than the others.
"""

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

import numpy as np

from kair_engine.arrays import Floats, Ints, present, zero_for_nan
from kair_engine.frozen import dataclass
from kair_engine.localize.anomalies import FALSE_ALARM_RATE, PAST_SHARE
from kair_engine.localize.change_points import MOST_CHANGED, Change, change_points, same_time
from kair_engine.localize.excess import CLASSES, JobExcess
from kair_engine.localize.peers import OF_STEP, OF_WORK
from kair_engine.ranks import Position, as_positions
from kair_engine.results import SMALLEST_SHARE
from kair_engine.stats import median

OWN_CLASSES = ("compute", "input")
"""The classes of time that are a rank's own whatever other roles do: its host's idle time may be waiting for them."""
MOST_LOOKED_AT, PARTS = 64, 6
"""Of more ranks only so many are looked at: those that differ most between PARTS of the recording, since nobody changes
that does not, and of the others as many as show what all do."""
FEWEST_THINGS = 2
"""Of one rank, or one role, nobody knows what is its own and what the whole job's."""
MOST_OF_ROLE = 0.75
"""A role became slower if more than this share of its ranks did: peers set apart fewer than a quarter."""
STRAGGLING = 1.1
"""Times longer: what a job with stragglers is at least, as published [W §4]. Whole steps that change by less vary with
their batches."""


@dataclass(frozen=True)
class SlowerRole:
    """A rank, or a whole role, that became slower by its own work; times are ns of a rank's step."""

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
    """The part of the step that grew most on any rank: a class of time, or `waiting` where no such grew."""
    grew_ns: float
    """By how much that part grew on the rank where it grew most."""
    positions: tuple[Position, ...]
    """The ranks on which it grew by half of that, at least."""


def slower_roles(job: JobExcess, accused: AbstractSet[int]) -> tuple[SlowerRole, ...]:
    """Return whole roles and ranks that became slower, the costliest first; none of the `accused`.

    Roles are compared with one another first, then the ranks of the others: half of a job's ranks would hide in a
    spread of all. If there is only one rank, or one role, nothing is returned: what happens to it happens to the step.
    """
    work = job.every_work_ns
    ranks = np.array([at for at in range(len(job.ranks)) if at not in accused], dtype=np.int64)
    roles = [members for code in present(job.role) if len(members := ranks[job.role[ranks] == code]) > 1]
    roles += [ranks[[at]] for at in range(len(ranks)) if np.count_nonzero(job.role == job.role[ranks[at]]) == 1]
    rows = [row for row in map(CLASSES.index, OWN_CLASSES) if work[:, row].any()]
    asked = [len(things) for things in (roles, ranks) if len(things) >= FEWEST_THINGS]
    tests = sum(asked) * len(rows) / PAST_SHARE
    found: list[SlowerRole] = []
    for row in rows:
        of_roles = [one for one in _slower(work[:, row], roles, row) if one.p_value * tests < FALSE_ALARM_RATE]
        slow = {position for one in of_roles for position in one.positions}
        others = [ranks[[at]] for at in range(len(ranks)) if ranks[at] not in slow]
        found += of_roles
        found += (one for one in _slower(work[:, row], others, row) if one.p_value * tests < FALSE_ALARM_RATE)
    together = _together([replace(one, p_value=one.p_value * tests) for one in found], job.role)
    costly = [one for one in together if _is_costly(one.change, job)]
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


def _slower(work: Floats, things: Sequence[Ints], row: int) -> Iterator[SlowerRole]:
    """Those that became slower in one class of time (steps × ranks); of a role nearly all ranks have to."""
    if len(things) < FEWEST_THINGS:
        return
    of_thing = np.stack([median(work[:, members], axis=1) for members in things], axis=1)
    told = _worth_a_look(of_thing, np.flatnonzero((of_thing > 0).all(axis=0)))
    changes = change_points(of_thing[:, told], OF_WORK, relative=True)
    for at, change in zip(told.tolist(), changes, strict=True):
        if change is not None:
            within = np.zeros(len(work), dtype=bool)
            within[change.begin : change.end] = True
            of_ranks = work[:, things[at]]
            rise = median(of_ranks[within], axis=0) - median(of_ranks[~within], axis=0)
            if (rise > (change.since - change.before) / 2).mean() > MOST_OF_ROLE:
                yield SlowerRole(as_positions(things[at]), row, change, change.p_value)


def _worth_a_look(of_thing: Floats, known: Ints) -> Ints:
    """Of many things a quarter of MOST_LOOKED_AT that differ most between parts of the recording, and some others."""
    if len(known) <= MOST_LOOKED_AT:
        return known
    logs = np.log(of_thing[:, known])
    parts = np.stack([median(part, axis=0) for part in np.array_split(logs, PARTS) if len(part)])
    apart = parts.max(axis=0) - parts.min(axis=0)
    order, most = np.argsort(-apart, kind="stable"), int(MOST_LOOKED_AT * MOST_CHANGED)
    others = np.linspace(most, len(order) - 1, MOST_LOOKED_AT - most).round().astype(np.int64)
    return np.sort(known[np.concatenate((order[:most], order[others]))])


def slower_steps(job: JobExcess) -> SlowerSteps | None:
    """How the whole job's steps became longer; None where they did not by STRAGGLING, or by chance."""
    (change,) = change_points(job.step_times_ns[:, None], OF_STEP)
    if change is None or change.p_value / PAST_SHARE >= FALSE_ALARM_RATE or change.factor < STRAGGLING:
        return None
    grew = {name: _grown(values, change) for name, values in _parts(job).items()}
    kind = max(grew, key=lambda name: float(grew[name].max()))
    if float(grew[kind].max()) < (change.since - change.before) / 2 and (waited := job.exposed_waiting_ns) is not None:
        grew, kind = {"waiting": _grown(waited, change)}, "waiting"
    most = float(grew[kind].max())
    positions = as_positions(np.flatnonzero(grew[kind] >= most / 2))
    return SlowerSteps(change, change.p_value / PAST_SHARE, kind, most, positions)


def _parts(job: JobExcess) -> dict[str, Floats]:
    """Return (steps × ranks): what each spends in each class of time, transfers without waiting."""
    work = job.every_work_ns
    parts = {name: work[:, row] for row, name in enumerate(CLASSES)}
    return parts | {"communication": zero_for_nan(np.stack([step.transfers_ns for step in job.steps]))}


def _grown(values: Floats, change: Change) -> Floats:
    """Per rank (steps × ranks) by how much they are longer in the steps of a change."""
    within = change.within(len(values))
    return np.asarray(median(values[within], axis=0) - median(values[~within], axis=0))


def _is_costly(change: Change, job: JobExcess) -> bool:
    share = (change.end - change.begin) / len(job.steps)
    return (change.since - change.before) * share > SMALLEST_SHARE * job.step_time_ns


def numbers_of(change: Change, steps: Sequence[int]) -> tuple[int, ...]:
    """Return the numbers of the steps of a change."""
    return tuple(steps[change.begin : change.end])
