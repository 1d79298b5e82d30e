"""Makes a run's profile: what every operator takes on every rank, and how sure that is."""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints, is_one_of, present
from kair_engine.localize.noise import inflation
from kair_engine.localize.unnamed_collectives import with_collectives_marked
from kair_engine.results.compare import Amount, OperatorProfile, RunProfile, SubgraphProfile
from kair_engine.results.localize import ChangeKind
from kair_engine.stats import TRIM, trimmed_mean
from kair_engine.timeline.clocks import Synchronisation
from kair_engine.timeline.host_activity import HOST_KINDS, idle_for_calls_ns
from kair_engine.timeline.self_time import (
    INPUT_PHASE,
    by_operator,
    host_gap_ns,
    step_times_ns,
    tail_gap_ns,
    unshared_ns,
)
from kair_engine.timeline.some_ranks import SomeRanks, some_ranks_each
from kair_engine.trace.model import Trace, require_steps
from kair_engine.trace.operations import COLLECTIVE, COMPUTE, GC, INPUT, MEMORY, PHASE_NAMES, RECV, SEND

COMPILATION: Final[tuple[None, ChangeKind]] = (None, "compilation")
"""The operator of all that hosts compile."""
MOST_OPERATORS: Final = 4000
"""That are kept of a run, those that take longest: names can hold addresses or counters."""


def profile_of(trace: Trace) -> RunProfile:
    """Return the profile of the chosen steps, a few of which are in memory at a time.

    Raises UsageError without a step.
    """
    return profile_and_steps(trace)[0]


def profile_and_steps(trace: Trace) -> tuple[RunProfile, "PerStep"]:
    """Return the same, and what every operator takes in each step."""
    require_steps(trace)
    trace = with_collectives_marked(trace)
    sums = _Sums(np.array(trace.job.ranks, dtype=np.int64), np.array(trace.steps))
    deque(map(sums.add, some_ranks_each(trace, sums.meet)), maxlen=0)
    job, layout = trace.job, trace.job.layout
    profile = RunProfile(
        name=job.name,
        source=job.source,
        format=job.format,
        has_device=job.has_device,
        world_size=job.world_size,
        ranks=job.ranks,
        hosts=job.hosts,
        stages={} if layout is None else layout.pipeline_stage,
        sizes=(None, None) if layout is None else (layout.pp, layout.tp),
        step_times_us=tuple((step_times_ns(trace, synchronised=sums.synchronised) / 1e3).tolist()),
        operators=tuple(sums.operators()),
        phases=tuple(sums.phases()),
    )
    return profile, sums.per_step()


class PerStep(NamedTuple):
    """What every operator takes in each step on each rank: an entry per step and rank that ran it."""

    steps: Ints
    ranks: Ints
    seen: Bools
    """(steps × ranks): whether the rank recorded the step."""
    cell: Mapping[tuple[str | None, ChangeKind], Ints]
    """Step × ranks + rank, both as places in `seen`."""
    us: Mapping[tuple[str | None, ChangeKind], Floats]

    def together(self, operators: Iterable[OperatorProfile]) -> Floats:
        """Return what some operators take together (steps × ranks), of the steps that all ranks recorded."""
        result = np.zeros(self.seen.shape)
        for one in operators:
            result += self.of(one.operator, one.kind)
        return result[self.seen.all(axis=1)]

    def of(self, operator: str | None, kind: ChangeKind) -> Floats:
        """Return what one operator takes (steps × ranks), 0 where it did not run."""
        result = np.zeros(self.seen.shape)
        if (operator, kind) in self.cell:
            result.flat[self.cell[operator, kind]] = self.us[operator, kind]
        return result


class _Sum(NamedTuple):
    """Of one operator: an entry per step and rank that ran it."""

    step: Ints
    """A place among the steps."""
    rank: Ints
    """A place among the ranks."""
    own_ns: Floats
    calls: Floats
    begun_ns: Floats
    """When its calls began, after their step's begin, added up."""

    @classmethod
    def joined(cls, parts: "list[_Sum]") -> "_Sum":
        """Return the entries of all."""
        return cls(*map(np.concatenate, zip(*parts, strict=True)))


class _Sums:
    """Adds up steps as they pass."""

    def __init__(self, ranks: Ints, steps: Ints) -> None:
        self._ranks, self._steps = ranks, steps
        self._seen = np.zeros((len(steps), len(ranks)), dtype=bool)
        self._step_time_ns = np.ones(len(steps))
        self._of: dict[tuple[str | None, ChangeKind], list[_Sum]] = defaultdict(list)
        self._phases: dict[str, list[_Sum]] = defaultdict(list)
        self.synchronised = False

    def meet(self, sync: Synchronisation) -> None:
        """Take in how the ranks of a step met."""
        ops = sync.collectives.ops
        self.synchronised |= len(sync.collectives) > 0
        self._step_time_ns[np.searchsorted(self._steps, ops.step)] = max(ops.step_time_ns, 1.0)

    def add(self, seen: SomeRanks) -> None:
        """Take in what some ranks did."""
        ops, own = seen.ops, unshared_ns(seen.ops)
        step, rank = np.searchsorted(self._steps, seen.step), np.searchsorted(self._ranks, seen.rank)
        self._seen[step, rank] = True
        computing = is_one_of(ops.kind, (COMPUTE, MEMORY)) & (ops.phase != INPUT_PHASE)
        # If the members of communication are unknown, so is how much of it is waiting.
        met = (seen.own_ns != NONE) & is_one_of(ops.kind, (COLLECTIVE, SEND, RECV))
        of_kinds: tuple[tuple[ChangeKind, Bools, Ints], ...] = (
            ("compute", computing, own),
            ("input", ops.kind == INPUT, own),
            ("communication", met, seen.own_ns),
        )
        since = ops.start_ns - ops.begin_ns[ops.rank]
        for kind, chosen, spent_ns in of_kinds:
            rows = np.flatnonzero(chosen)
            sums = [by_operator(ops, rows, values) for values in (spent_ns, None, since)]
            for at, name in enumerate(sums[0].names):
                ran = np.flatnonzero(sums[1].values[at])
                self._of[name, kind].append(_Sum(step[ran], rank[ran], *(of.values[at][ran] for of in sums)))
        nothing = np.zeros(len(seen.rank))
        for code, phase in enumerate(PHASE_NAMES):
            rows = np.flatnonzero(computing & (ops.phase == code))
            if len(rows):
                spent = np.bincount(ops.rank[rows], own[rows], len(nothing)).astype(float)
                self._phases[phase].append(_Sum(step, rank, spent, nothing, nothing))
        idle = np.bincount(ops.rank, host_gap_ns(ops) + np.where(ops.kind == GC, own, 0), len(nothing)) + tail_gap_ns(
            ops
        )
        compiles = np.minimum(idle_for_calls_ns(ops)[HOST_KINDS.index("compilation")], idle)
        self._of[None, "host"].append(_Sum(step, rank, (idle - compiles).astype(float), nothing, nothing))
        if (ran := np.flatnonzero(compiles)).size:
            self._of[COMPILATION].append(_Sum(step[ran], rank[ran], compiles[ran], nothing[ran], nothing[ran]))

    def per_step(self) -> PerStep:
        """Return what all operators take, in little memory: that of two runs is held at once."""
        sums = {key: _Sum.joined(parts) for key, parts in self._of.items()}
        ranks = len(self._ranks)
        return PerStep(
            self._steps,
            self._ranks,
            self._seen,
            {key: (of.step * ranks + of.rank).astype(np.uint32) for key, of in sums.items()},
            {key: (of.own_ns / 1e3).astype(np.float32) for key, of in sums.items()},
        )

    def operators(self) -> Iterator[OperatorProfile]:
        """All of them, those that take longest first."""
        sums = {key: _Sum.joined(parts) for key, parts in self._of.items()}
        for name, kind in sorted(sums, key=lambda key: -float(sums[key].own_ns.sum()))[:MOST_OPERATORS]:
            of = sums[name, kind]
            calls = float(of.calls.sum())
            begins = np.bincount(of.step, of.begun_ns, len(self._steps)) / self._step_time_ns
            yield OperatorProfile(
                operator=name,
                kind=kind,
                place=sum(begins.tolist()) / max(calls, 1.0),
                calls=calls / max(int(np.count_nonzero(of.calls)), 1),
                amount=self._amount(of),
            )

    def phases(self) -> Iterator[SubgraphProfile]:
        """Those in which anything was computed, in the order of a step."""
        for phase in PHASE_NAMES:
            if phase in self._phases:
                yield SubgraphProfile(phase, self._amount(_Sum.joined(self._phases[phase])))

    def _amount(self, of: _Sum) -> Amount:
        """Per rank, the trimmed mean over the steps that it recorded, and its error."""
        recorded = self._seen.any(axis=1)
        spent, seen = np.zeros(self._seen.shape), self._seen[recorded]
        spent[of.step, of.rank] = of.own_ns
        spent = spent[recorded] / 1e3
        inflated = inflation(spent[seen.all(axis=1)])
        means, errors, df = np.zeros(len(self._ranks)), np.zeros(len(self._ranks)), np.inf
        recorded_by = np.count_nonzero(seen, axis=0)
        for steps in present(recorded_by).tolist():
            ranks = np.flatnonzero(recorded_by == steps)
            of_ranks = spent.T[ranks][seen.T[ranks]].reshape(len(ranks), steps)
            means[ranks], errors[ranks], of_these = _trimmed(of_ranks, inflated)
            df = min(df, of_these)
        return Amount(tuple(means.tolist()), tuple(errors.tolist()), df)


def trimmed(values: Floats, inflated: float) -> tuple[float, float, float]:
    """Return (20 %-trimmed mean, its standard error, degrees of freedom) over steps; a single step has no error."""
    means, errors, df = _trimmed(values[None], inflated)
    return float(means[0]), float(errors[0]), df


def _trimmed(values: Floats, inflated: float) -> tuple[Floats, Floats, float]:
    """Return the same of each of some ranks, from (ranks × steps)."""
    steps = values.shape[1]
    if steps < 2:
        return values.sum(axis=1), np.full(len(values), np.inf), 1.0
    cut = int(steps * TRIM)
    kept, ordered = steps - 2 * cut, np.sort(values)
    winsorised = np.clip(values, ordered[:, cut, None], ordered[:, steps - cut - 1, None])
    errors = np.sqrt(winsorised.var(axis=1, ddof=1) * inflated / steps) * steps / kept
    return trimmed_mean(values, TRIM, axis=1), errors, max(kept / inflated - 1, 1.0)
