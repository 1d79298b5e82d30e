"""How much longer each rank's own work took than its role's, per step: the small table stage 1 works on.

One (class × rank) matrix per step; steps can be reduced anywhere and put together afterwards.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypedDict

import numpy as np

from kair_engine.arrays import Floats, Ints
from kair_engine.collectives import Collectives
from kair_engine.communicators import Communicator, OwnTime, own_times
from kair_engine.loading import each_step
from kair_engine.model import Trace
from kair_engine.operations import COMPUTE, GC, INPUT, MEMORY, RECV, SEND, Operations
from kair_engine.peers import PeerGroups, logical_keys
from kair_engine.roles import role_codes, roles
from kair_engine.selftime import INPUT_STAGE, host_gap_ns, own_ns, tail_gap_ns
from kair_engine.synchronisation import Synchronisation, synchronise

CLASSES = ("compute", "input", "host", "communication")
_COMPUTE, _INPUT, _HOST, _COMMUNICATION = range(len(CLASSES))


@dataclass(frozen=True)
class LateArrivals:
    """Synchronisations one rank reached last: equally long columns, one entry per collective that waited.

    `lateness_ns` is counted from the collective's median arrival, `lead_ns` from the last but one.
    """

    rank: Ints
    lateness_ns: Ints
    lead_ns: Ints
    wait_ns: Ints
    """Summed over the members."""
    community: Ints | None = None
    """Which entry of `communities` the collective's members are; None: all ranks in every one."""
    communities: tuple[tuple[int, ...], ...] = ()


class _Communities(TypedDict):
    community: Ints
    communities: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class StepExcess:
    """One step's excesses: `by_class_ns` is (classes × ranks of the job), NaN where a rank has no such step."""

    step: int
    by_class_ns: Floats
    step_time_ns: float
    late: LateArrivals
    rejected_collectives: int
    collectives: int
    groups: Mapping[Communicator, OwnTime] = field(default_factory=dict)
    """What process groups with siblings spent in collectives themselves."""


@dataclass(frozen=True)
class JobExcess:
    """All chosen steps' excesses, and the roles the ranks were compared in."""

    ranks: Ints
    role: Ints
    role_of: Mapping[int, str]
    steps: tuple[StepExcess, ...]

    @property
    def by_step_ns(self) -> Floats:
        """(steps × classes × ranks)."""
        return np.stack([step.by_class_ns for step in self.steps])

    @property
    def step_time_ns(self) -> float:
        """The median over steps."""
        return float(np.median([step.step_time_ns for step in self.steps]))


def job_excess(trace: Trace) -> JobExcess:
    """Reduces every chosen step to its excesses, one step in memory at a time."""
    return reduce_steps(trace, step_excess)


def reduce_steps(trace: Trace, reduce: Callable[[Operations, Synchronisation, Ints, Ints], StepExcess]) -> JobExcess:
    """The excesses of the job from a function of one step, the job's ranks, and their role codes."""
    role_of = roles(trace)
    ranks = np.array(trace.job.ranks, dtype=np.int64)
    role = role_codes(ranks, role_of)

    def of_step(ops: Operations) -> StepExcess:
        return reduce(ops, synchronise(ops), ranks, role)

    # map, not a comprehension: that would hold one step while the next is read.
    return JobExcess(ranks, role, role_of, tuple(map(of_step, each_step(trace))))


def step_excess(ops: Operations, sync: Synchronisation, job_ranks: Ints, job_role: Ints) -> StepExcess:
    """Sums, per class and rank, how far each logical operator lies above its role's median."""
    place = np.searchsorted(job_ranks, ops.ranks)
    role = job_role[place]
    keys = logical_keys(ops, role)
    by_class = np.full((len(CLASSES), len(job_ranks)), np.nan)
    by_class[:, place] = _sums(ops, sync, keys, role)
    tail = tail_gap_ns(ops).astype(float)
    by_class[_HOST, place] += tail - _role_median(tail, role)
    return StepExcess(
        step=ops.step,
        by_class_ns=by_class,
        step_time_ns=ops.step_time_ns,
        late=_late_arrivals(sync, job_ranks),
        rejected_collectives=sync.collectives.rejected,
        collectives=len(sync.collectives),
        groups=own_times(sync, role),
    )


def _sums(ops: Operations, sync: Synchronisation, keys: Ints, role: Ints) -> Floats:
    """What each rank spent, less the medians of all its role's logical operators.

    Of all, those it does not run too: a checkpoint that one rank alone writes is excess, and a rank whose kernel
    has another name than its peers' (autotuning) is neither slow in the one nor fast in the other.
    """
    own = own_ns(ops, sync.collectives).astype(float)
    fetched = ops.stage == INPUT_STAGE
    members = (
        (_COMPUTE, np.isin(ops.kind, (COMPUTE, MEMORY)) & ~fetched, own),
        (_INPUT, ops.kind == INPUT, own),
        (_HOST, ops.kind == GC, own),
        (_HOST, np.ones(len(ops), dtype=bool), host_gap_ns(ops).astype(float)),
        (_COMMUNICATION, np.isin(ops.kind, (SEND, RECV)), own),
    )
    result = np.zeros((len(CLASSES), len(ops.ranks)))
    codes, size = int(role.max(initial=0)) + 1, np.bincount(role)[role][ops.rank]
    for row, selected, values in members:
        chosen = np.flatnonzero(selected)
        groups = PeerGroups.of(keys, chosen)
        of_group = role[ops.rank[groups.rows[groups.starts]]]
        typical = np.bincount(of_group, weights=groups.medians(values, size), minlength=codes)
        spent = np.bincount(ops.rank[chosen], weights=values[chosen], minlength=len(ops.ranks))
        result[row] += spent - typical[role]
    return result


def _role_median(values: Floats, role: Ints) -> Floats:
    result = np.zeros(len(values))
    for code in np.unique(role):
        result[role == code] = np.median(values[role == code])
    return result


def _late_arrivals(sync: Synchronisation, job_ranks: Ints) -> LateArrivals:
    collectives = sync.collectives
    last = collectives.last
    rank = np.searchsorted(job_ranks, collectives.ops.ranks)[collectives.ops.rank[collectives.row[last]]]
    return LateArrivals(
        rank=rank,
        lateness_ns=sync.lateness_of_last_ns,
        lead_ns=collectives.lead_ns,
        wait_ns=collectives.total_wait_ns,
        **_communities(collectives, np.searchsorted(job_ranks, collectives.ops.ranks)),
    )


def _communities(collectives: Collectives, place: Ints) -> _Communities:
    """Who takes part in each collective: most of a step's are among a few sets of ranks."""
    members = place[collectives.ops.rank[collectives.row]]
    number: dict[tuple[int, ...], int] = {}
    of_instance = [
        number.setdefault(tuple(sorted(part.tolist())), len(number))
        for part in np.split(members, collectives.starts[1:])
        if len(part)
    ]
    return {"community": np.array(of_instance, dtype=np.int64), "communities": tuple(number)}
