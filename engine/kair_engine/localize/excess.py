"""Excess time: how much longer each rank's own work took than its role's, per step.

One (class × rank) matrix per step; steps can be reduced anywhere and put together afterwards.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from functools import cached_property, partial
from itertools import chain
from typing import Final, get_args

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints, is_one_of, zero_for_nan
from kair_engine.frozen import dataclass
from kair_engine.localize.by_rank import StepByRank, summed_steps
from kair_engine.localize.input_growth import Dimension, Growth, growths
from kair_engine.localize.links import Link, LinkTime, OwnTime, calls_of, link_times, own_times
from kair_engine.localize.rank_times import RankTimes
from kair_engine.results.localize import OwnKind
from kair_engine.stats import known_median, median, role_medians
from kair_engine.timeline.clocks import Synchronisation
from kair_engine.timeline.coverage import recorded
from kair_engine.timeline.exposed_waiting import Computing, exposed_waiting_ns
from kair_engine.timeline.host_activity import HOST_KINDS
from kair_engine.timeline.host_time import pauses
from kair_engine.timeline.kernel_families import by_family
from kair_engine.timeline.roles import Role, replicas, role_codes, roles, tensor_groups
from kair_engine.trace.batches import derived_once, over_parts
from kair_engine.trace.model import Trace, host_numbers
from kair_engine.trace.operations import COLLECTIVE, PHASE_NAMES, RECV, SEND, Operations

CLASSES: Final[tuple[str, ...]] = get_args(OwnKind)
PASSES = ("forward", "backward")
KEPT_SHARE = 0.002
MOST_UNMATCHED = 0.25
"""If more than this share of the communication names no members, who waits for whom is unknown."""


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


@dataclass(frozen=True)
class OperatorExcess:
    """One operator's calls of a step together: what each rank spent beyond its role's medians, and those medians."""

    fetches: bool
    """Whether it fetches input; else it computes."""

    excess_ns: Floats
    typical_ns: Floats
    """Per rank of the job, like the excess."""
    calls: Floats
    usual_calls: Floats
    """Per rank, how often it was called, and what is usual: the role's median, with calls in place of others."""
    larger: Floats
    """Per rank, by what share of the role's median a call's inputs are larger; NaN where no shapes are recorded."""
    in_all: Floats
    """The same of all calls of the operators that record these inputs."""
    dimensions: Mapping[Dimension, Floats] = field(default_factory=dict)
    """Per rank, the dimensions that differ between ranks, averaged over calls."""


@dataclass(frozen=True)
class StepExcess:
    """One step's excesses: `by_class_ns` is (classes × ranks of the job), NaN where a rank has no such step."""

    step: int
    by_class_ns: Floats
    step_time_ns: float
    late: LateArrivals
    rejected_collectives: int
    collectives: int
    work_ns: Floats
    """(classes × ranks): what each rank spent on its own work."""
    exposed_waiting_ns: Floats | None
    """Per rank, how long it waited for late ranks and did nothing else; None where that does not show who was late."""
    passes_ns: Floats
    """(PASSES × ranks): its own compute in the forward and in the backward pass."""
    optimizer_ns: Floats
    """Per rank, its own compute in the optimizer: the same whatever the batch."""
    idle_ns: Floats
    """(PASSES × ranks): what its host kept it idle in each."""
    fetching_ns: Floats
    """Per rank, what its host kept it idle where a batch is fetched without a mark of it."""
    garbage_ns: Floats
    """Per rank, collecting garbage as far as the trace shows it."""
    profiling_ns: Floats
    """Per rank, what the profiler held its threads up for."""
    activity_ns: Floats
    """(HOST_KINDS × ranks): what its host does while its device idles, where that allocates or compiles; else 0."""
    families_ns: Floats
    """(FAMILIES × ranks): its own compute in each family of operations (kernel_families.py)."""
    pauses: Ints
    """Per rank, stretches between two collectives in which its host alone kept it idle (host_time.py)."""
    paused_ns: Floats
    """Per rank, how long they were."""
    tells_inputs: Floats
    """Per rank, whether shapes of its operators' inputs are recorded, 0 or 1."""
    transfers_ns: Floats
    """Per rank, its collectives, sends and receives without waiting, each for as long as on whom it was shortest."""
    operators: Mapping[str, OperatorExcess] = field(default_factory=dict)
    """Of compute and input, the operators in which a rank differs by KEPT_SHARE of the step."""
    groups: frozenset[str] = frozenset()
    """The process groups of its communication, as the recording writes them."""
    links: Mapping[Link, OwnTime] = field(default_factory=dict)
    """What process groups and pipeline edges with siblings spent in transfers themselves."""
    transfers: Mapping[Link, LinkTime] = field(default_factory=dict)
    """What every process group and pipeline edge spent in transfers, siblings or not."""
    recorded: Floats | None = None
    """(coverage.COUNTED × ranks): how many of each were recorded, NaN where a rank has no such step."""


@dataclass(frozen=True)
class JobExcess:
    """All chosen steps' excesses, and the roles the ranks were compared in."""

    ranks: Ints
    role: Ints
    role_of: Mapping[int, Role]
    steps: tuple[StepExcess, ...]
    unit: Ints | None = None
    """Per rank a number, equal for those that share one batch and stage (a tensor-parallel group); None: unknown."""
    on_device: bool = True
    """Whether the recording has device operations: without, a host's idle time in the backward pass is not seen."""
    host: Ints | None = None
    """Per rank a number, equal for those of one host; None: unknown."""
    replica: Ints | None = None
    """Per rank a number, equal for those that run one batch through all stages; None: unknown."""

    @cached_property
    def work_ns(self) -> Floats:
        """(classes × ranks): the median over steps of what each rank spent on its own work."""
        return median(zero_for_nan(np.stack([step.work_ns for step in self.steps])), axis=0)

    @cached_property
    def operators(self) -> dict[str, bool]:
        """Every operator in which ranks differ notably in some step, and whether it fetches input."""
        return {name: one.fetches for step in self.steps for name, one in step.operators.items()}

    def operator_ns(self, name: str) -> tuple[Floats, Floats]:
        """(excess per step and rank, what is typical per rank) of one operator; 0 where no rank differs notably."""
        known = [step.operators.get(name) for step in self.steps]
        typical = median(np.stack([zero_for_nan(one.typical_ns) for one in known if one is not None]), axis=0)
        nothing = np.zeros(len(self.ranks))
        excess = [nothing if one is None else zero_for_nan(one.excess_ns) for one in known]
        return np.stack(excess), np.asarray(typical)

    def calls(self, name: str, later: Bools) -> tuple[Floats, Floats]:
        """(ranks) each: how often an operator is called, and the role's median, in the median of these steps."""
        of_steps = [(of.calls, of.usual_calls) for of in self._known(name, later)] or [(np.zeros(len(self.ranks)),) * 2]
        calls, usual = (np.stack(of) for of in zip(*of_steps, strict=True))
        return median(np.nan_to_num(calls), axis=0), median(np.nan_to_num(usual), axis=0)

    def larger_inputs(self, name: str, later: Bools) -> tuple[Floats, Floats]:
        """Return by what share an operator's inputs are larger than usual, by the steps' median: of a call, and of all
        calls of the operators that record inputs. Each is (ranks), NaN where nothing is recorded.
        """
        nothing = (np.full(len(self.ranks), np.nan),) * 2
        of_steps = [(of.larger, of.in_all) for of in self._known(name, later)] or [nothing]
        larger, in_all = (known_median(np.stack(of)) for of in zip(*of_steps, strict=True))
        return larger, in_all

    def dimensions(self, name: str, later: Bools) -> dict[Dimension, Floats]:
        """Return the dimensions of an operator's inputs that differ, averaged over these steps' calls, (ranks) each."""
        known: dict[Dimension, list[tuple[Floats, Floats]]] = {}
        for of in self._known(name, later):
            for one, per_rank in of.dimensions.items():
                known.setdefault(one, []).append((of.calls * per_rank, of.calls))
        sums = {one: np.nan_to_num(np.array(of)).sum(axis=0) for one, of in known.items()}
        return {one: np.where(calls > 0, of / np.maximum(calls, 1.0), np.nan) for one, (of, calls) in sums.items()}

    def of_unit_ns(self, name: str, dimension: Dimension, later: Bools) -> Floats:
        """(ranks): what an operator takes for a unit of a dimension in these steps, where that differs."""
        known = [of for of in self._known(name, later) if dimension in of.dimensions]
        spent = zero_for_nan(np.array([of.typical_ns + of.excess_ns for of in known])).sum(axis=0)
        units = zero_for_nan(np.array([of.calls * of.dimensions[dimension] for of in known])).sum(axis=0)
        return np.asarray(spent / np.maximum(units, 1.0))

    def _known(self, name: str, later: Bools) -> list[OperatorExcess]:
        known = [step.operators.get(name) for step, is_later in zip(self.steps, later, strict=True) if is_later]
        return [of for of in known if of is not None]

    @cached_property
    def recorded(self) -> Floats | None:
        """(coverage.COUNTED × steps × ranks); None for excesses that are of no recording."""
        known = [step.recorded for step in self.steps if step.recorded is not None]
        return np.stack(known, axis=1) if known else None

    @cached_property
    def passes_ns(self) -> Floats:
        """(steps × PASSES × ranks): 0 where a rank has no such step."""
        return zero_for_nan(np.stack([step.passes_ns for step in self.steps]))

    @cached_property
    def fetching_ns(self) -> Floats:
        """(steps × ranks): 0 where a rank has no such step."""
        return zero_for_nan(np.stack([step.fetching_ns for step in self.steps]))

    @cached_property
    def every_work_ns(self) -> Floats:
        """(steps × classes × ranks): what each rank spent on its own work; 0 where it has no such step."""
        return zero_for_nan(np.stack([step.work_ns for step in self.steps]))

    @cached_property
    def profiling_ns(self) -> Floats:
        """(steps × ranks): 0 where a rank has no such step."""
        return zero_for_nan(np.stack([step.profiling_ns for step in self.steps]))

    @cached_property
    def activity_ns(self) -> Floats:
        """(steps × HOST_KINDS × ranks): 0 where a rank has no such step, and where no host allocates or compiles."""
        return zero_for_nan(np.stack([step.activity_ns for step in self.steps]))

    @property
    def compiling_ns(self) -> Floats:
        """(steps × ranks): how long each rank's device, or its thread, waited for a compiler."""
        return self.activity_ns[:, HOST_KINDS.index("compilation")]

    @cached_property
    def tells_inputs(self) -> Bools:
        """(steps × ranks): whether shapes of inputs are recorded."""
        return np.stack([step.tells_inputs for step in self.steps]) > 0

    @cached_property
    def transfers_ns(self) -> Floats:
        """(ranks): the median over steps."""
        return median(zero_for_nan(np.stack([step.transfers_ns for step in self.steps])), axis=0)

    @cached_property
    def optimizer_ns(self) -> Floats:
        """(steps × ranks): 0 where a rank has no such step."""
        return zero_for_nan(np.stack([step.optimizer_ns for step in self.steps]))

    @cached_property
    def by_step_ns(self) -> Floats:
        """(steps × classes × ranks)."""
        return np.stack([step.by_class_ns for step in self.steps])

    @cached_property
    def exposed_waiting_ns(self) -> Floats | None:
        """Return how long each waited for late ranks (steps × ranks); None if any step lacks it."""
        known = [step.exposed_waiting_ns for step in self.steps if step.exposed_waiting_ns is not None]
        return zero_for_nan(np.stack(known)) if len(known) == len(self.steps) else None

    @cached_property
    def shows_waiting(self) -> bool:
        """Return whether all communication but a small part could be matched: without that, waiting is unknown."""
        rejected = sum(step.rejected_collectives for step in self.steps)
        matched = sum(step.collectives for step in self.steps)
        return rejected <= MOST_UNMATCHED * (matched + rejected)

    @cached_property
    def step_times_ns(self) -> Floats:
        """Of every step."""
        return np.array([step.step_time_ns for step in self.steps])

    @cached_property
    def step_time_ns(self) -> float:
        """The median over steps, at least a nanosecond: what limits of tests are shares of, since one stall moves no
        limit. What is printed is the mean (timeline/self_time.py)."""
        return max(float(np.median(self.step_times_ns)), 1.0)


def job_excess(trace: Trace) -> JobExcess:
    """Reduces every chosen step to its excesses, one step in memory at a time."""

    def reduced() -> JobExcess:
        if trace.workers is not None:
            of = JobRoles.of(trace)
            return of_job(trace, of, chain.from_iterable(over_parts(trace, partial(_excesses, of=of))))
        known = list[JobRoles]()

        def excess(step: StepByRank) -> StepExcess:
            if not known:
                known.append(JobRoles.of(trace, step.sync.collectives.ops))
            return _excess(step, of=known[0])

        # map, not a comprehension: that would hold one step while the next is read.
        steps = tuple(map(excess, summed_steps(trace)))
        return of_job(trace, known[0] if known else JobRoles.of(trace), steps)

    return derived_once(trace, "excess", reduced)


@dataclass(frozen=True)
class JobRoles:
    """Who is compared with whom."""

    ranks: Ints
    """The job's."""
    role: Ints
    """A code per rank."""
    role_of: Mapping[int, Role]

    @classmethod
    def of(cls, trace: Trace, first: Operations | None = None) -> "JobRoles":
        """Return the job's excess from its chosen steps; the `first` of them is not read again if it is given."""
        role_of, ranks = roles(trace, first), np.array(trace.job.ranks, dtype=np.int64)
        return cls(ranks, role_codes(ranks, role_of), role_of)

    def role_in(self, ops: Operations) -> Ints:
        """Return a code per rank of a step."""
        return self.role[np.searchsorted(self.ranks, ops.ranks)]


def of_job(trace: Trace, of: JobRoles, steps: Iterable[StepExcess]) -> JobExcess:
    """Return the excesses of all chosen steps, in their order, put together."""
    return JobExcess(
        of.ranks,
        of.role,
        of.role_of,
        tuple(steps),
        tensor_groups(trace.job),
        trace.job.has_device,
        host_numbers(trace.job),
        replicas(trace.job),
    )


def _excesses(part: Trace, *, of: JobRoles) -> tuple[StepExcess, ...]:
    return tuple(map(partial(_excess, of=of), summed_steps(part)))


def _excess(step: StepByRank, *, of: JobRoles) -> StepExcess:
    return step_excess(step.times, step.sync, of, step.computing)


def step_excess(
    times: RankTimes, sync: Synchronisation, of: JobRoles, computing: Computing | None = None
) -> StepExcess:
    """Says how far what each rank spent by class lies above its role's median.

    The sums are compared and not their parts: of skewed noise the medians of the parts add up to less than the median
    of the sums, so that every rank would have an excess. `sync` need not be of more than what ranks meet in;
    `computing` then says when devices compute, where that is known.
    """
    ops = sync.collectives.ops
    place, role = np.searchsorted(of.ranks, ops.ranks), of.role_in(ops)

    def per_rank(values: Floats) -> Floats:
        result = np.full((*values.shape[:-1], len(of.ranks)), np.nan)
        result[..., place] = values
        return result

    calls = calls_of(sync, role)
    waited = exposed_waiting_ns(sync, len(of.ranks), computing)
    held_up = pauses(times.stretches, ops.step_time_ns, role)
    spent = np.stack([times.compute_ns, times.input_ns, times.host_ns, _transfers_ns(sync, (SEND, RECV))])
    passes = [PHASE_NAMES.index(name) for name in PASSES]
    return StepExcess(
        step=ops.step,
        by_class_ns=per_rank(spent - role_medians(spent, role)),
        step_time_ns=ops.step_time_ns,
        late=_late_arrivals(sync, of.ranks),
        rejected_collectives=sync.collectives.rejected,
        collectives=len(sync.collectives),
        work_ns=per_rank(spent),
        exposed_waiting_ns=None if waited is None else per_rank(waited),
        passes_ns=per_rank(times.passes_ns[passes]),
        optimizer_ns=per_rank(times.passes_ns[PHASE_NAMES.index("optimizer")]),
        idle_ns=per_rank(times.idle_ns[passes]),
        fetching_ns=per_rank(times.fetching_ns),
        groups=frozenset(ops.group_text.values()),
        garbage_ns=per_rank(times.garbage_ns),
        profiling_ns=per_rank(times.profiling_ns),
        activity_ns=per_rank(times.activity_ns),
        families_ns=per_rank(by_family(times.spent_ns, times.fetching)),
        pauses=np.nan_to_num(per_rank(held_up.count.astype(float))).astype(np.int64),
        paused_ns=np.nan_to_num(per_rank(held_up.lost_ns)),
        tells_inputs=zero_for_nan(per_rank((times.shapes.calls.sum(axis=0) > 0).astype(float))),
        transfers_ns=per_rank(_transfers_ns(sync, (COLLECTIVE, SEND, RECV))),
        operators=_by_operator(times, ops.step_time_ns, role, per_rank),
        links=own_times(sync, calls),
        transfers=link_times(sync, calls),
        recorded=per_rank(recorded(times.counted, sync, role, computed_ns=times.compute_ns, idle_ns=times.host_ns)),
    )


def _transfers_ns(sync: Synchronisation, kinds: tuple[int, ...]) -> Floats:
    """(ranks of the step): communication of these kinds, without waiting."""
    ops, rows = sync.collectives.ops, sync.collectives.row
    chosen = np.flatnonzero(is_one_of(ops.kind[rows], kinds))
    chosen = chosen[np.argsort(rows[chosen])]
    own = sync.own_ns[sync.collectives.instance[chosen]]
    return np.bincount(ops.rank[rows[chosen]], weights=own, minlength=len(ops.ranks)).astype(float)


def _by_operator(
    times: RankTimes, step_time_ns: float, role: Ints, per_rank: Callable[[Floats], Floats]
) -> dict[str, OperatorExcess]:
    spent, calls = times.spent_ns.values, times.calls.values
    if not len(spent):
        return {}
    usual = role_medians(calls, role)
    more = calls - usual
    additional = np.where(more > 0, _additional(more), 1.0)
    usual = calls - more * additional
    typical = role_medians(spent, role)
    excess = (spent - typical) * additional
    kept = np.flatnonzero(excess.max(axis=1) > KEPT_SHARE * step_time_ns)
    names = {at: times.spent_ns.names[at] for at in kept.tolist()}
    growth, untold = growths(times.shapes, role, list(names.values())), np.full(calls.shape[1], np.nan)
    nothing = Growth(untold, untold, {})
    return {
        name: OperatorExcess(
            name in times.fetching,
            per_rank(excess[at]),
            per_rank(typical[at]),
            per_rank(calls[at]),
            per_rank(usual[at]),
            per_rank(growth.get(name, nothing).larger),
            per_rank(growth.get(name, nothing).in_all),
            {one: per_rank(of) for one, of in growth.get(name, nothing).dimensions.items()},
        )
        for at, name in names.items()
    }


def _additional(more: Floats) -> Floats:
    """Per rank, which part of its calls beyond the median (operators × ranks) stands for no missing call of another.

    One rank's library may have chosen other kernels than its peers' for the same work: that is not more work, and of
    such kernels no peer shows how long they should take.
    """
    extra, missing = np.maximum(more, 0.0).sum(axis=0), np.maximum(-more, 0.0).sum(axis=0)
    return np.asarray(np.maximum(extra - missing, 0.0) / np.maximum(extra, 1.0))


def _late_arrivals(sync: Synchronisation, job_ranks: Ints) -> LateArrivals:
    collectives = sync.collectives
    last = collectives.last
    rank = np.searchsorted(job_ranks, collectives.ops.ranks)[collectives.ops.rank[collectives.row[last]]]
    return LateArrivals(
        rank=rank,
        lateness_ns=sync.lateness_of_last_ns,
        lead_ns=collectives.lead_ns,
        wait_ns=collectives.total_wait_ns,
    )
