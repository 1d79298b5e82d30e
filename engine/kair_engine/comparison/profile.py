"""Makes a run's profile: what every operator takes on every rank, and how sure that is."""

from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kair_engine.arrays import Bools, Floats, Ints, is_one_of
from kair_engine.localize.noise import inflation
from kair_engine.localize.unnamed_collectives import with_collectives_marked
from kair_engine.results.compare import Amount, OperatorProfile, RunProfile, SubgraphProfile
from kair_engine.results.localize import ChangeKind
from kair_engine.stats import TRIM, trimmed_mean
from kair_engine.timeline.clocks import synchronise
from kair_engine.timeline.self_time import INPUT_PHASE, host_gap_ns, step_times_ns, tail_gap_ns, unshared_ns
from kair_engine.trace.large_steps import LargeStep, of_steps
from kair_engine.trace.model import Trace, require_steps
from kair_engine.trace.operations import COLLECTIVE, COMPUTE, INPUT, MEMORY, PHASE_NAMES, RECV, SEND, Operations

MOST_OPERATORS: Final = 4000
"""That are kept of a run, those that take longest: names can hold addresses or counters."""


def profile_of(trace: Trace) -> RunProfile:
    """The profile of the chosen steps, a few of which are in memory at a time. Raises UsageError without a step."""
    require_steps(trace)
    trace = with_collectives_marked(trace)
    sums = _Sums(np.array(trace.job.ranks, dtype=np.int64))
    deque(of_steps(trace, sums.add, sums.add_by_themselves, sums.add_large), maxlen=0)
    job, layout = trace.job, trace.job.layout
    return RunProfile(
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
        phases=tuple(SubgraphProfile(phase, sums.amount(of)) for phase, of in sums.phases.items()),
    )


@dataclass
class _Sum:
    """Of one operator, step by step: one array per step that ran it, an entry per rank."""

    own_ns: dict[int, Floats] = field(default_factory=dict)
    calls: float = 0.0
    callers: float = 0.0
    """Over steps, the ranks that called it."""
    begins: float = 0.0


class _Sums:
    """Adds up steps as they pass."""

    def __init__(self, ranks: Ints) -> None:
        self._ranks = ranks
        self._seen: list[Bools] = []
        self._of: dict[tuple[str | None, ChangeKind], _Sum] = defaultdict(_Sum)
        self._begun_ns: dict[tuple[str | None, ChangeKind], float] = defaultdict(float)
        """Of the step that is being taken in, since its begin, over the calls."""
        self.phases: dict[str, _Sum] = {}
        self.synchronised = False

    def add(self, ops: Operations) -> None:
        """Takes in one step."""
        self.add_by_themselves(ops)
        self._add_meetings(ops)

    def add_by_themselves(self, ops: Operations) -> None:
        """Takes in what ranks do by themselves in a step, be it of some ranks only."""
        own = unshared_ns(ops).astype(float)
        computing = np.flatnonzero(is_one_of(ops.kind, (COMPUTE, MEMORY)) & (ops.phase != INPUT_PHASE))
        self._count("compute", ops, computing, own)
        self._count("input", ops, np.flatnonzero(ops.kind == INPUT), own)
        for code, phase in enumerate(PHASE_NAMES):
            rows = computing[ops.phase[computing] == code]
            if len(rows):
                of = self.phases.setdefault(phase, _Sum())
                self._add(of, ops, np.bincount(ops.rank[rows], own[rows], len(ops.ranks)))
        garbage = ops.garbage_collections
        idle = np.bincount(ops.rank, host_gap_ns(ops), len(ops.ranks)) + tail_gap_ns(ops)
        idle += np.bincount(ops.rank[garbage], own[garbage], len(ops.ranks))
        self._add(self._of[None, "host"], ops, idle)

    def add_large(self, step: LargeStep, _: object) -> None:
        """Takes in how the ranks of a step met; the rest of it was taken in some ranks at a time."""
        self._add_meetings(step.operations())

    def _add_meetings(self, ops: Operations) -> None:
        """And ends the step."""
        sync = synchronise(ops)
        self.synchronised |= len(sync.collectives) > 0
        # Of communication whose members are not known nobody can tell the transfer from the waiting.
        met = np.sort(sync.collectives.row)
        own = np.zeros(len(ops))
        own[sync.collectives.row] = sync.own_ns[sync.collectives.instance]
        self._count("communication", ops, met[is_one_of(ops.kind[met], (COLLECTIVE, SEND, RECV))], own)
        for key, begun in self._begun_ns.items():
            self._of[key].begins += begun / max(ops.step_time_ns, 1.0)
        self._begun_ns.clear()
        self._seen.append(np.isin(self._ranks, ops.ranks))

    def operators(self) -> list[OperatorProfile]:
        """All of them, those that take longest first."""
        total = {key: sum(float(own.sum()) for own in of.own_ns.values()) for key, of in self._of.items()}
        kept = sorted(self._of, key=lambda key: -total[key])[:MOST_OPERATORS]
        return [
            OperatorProfile(
                operator=name,
                kind=kind,
                place=of.begins / max(of.calls, 1.0),
                calls=of.calls / max(of.callers, 1.0),
                amount=self.amount(of),
            )
            for name, kind in kept
            for of in [self._of[name, kind]]
        ]

    def amount(self, of: _Sum) -> Amount:
        """Per rank, the trimmed mean over the steps that it recorded, and its error."""
        nothing, seen = np.zeros(len(self._ranks)), np.stack(self._seen)
        spent = np.stack([of.own_ns.get(step, nothing) for step in range(len(self._seen))]) / 1e3
        inflated = inflation(spent[seen.all(axis=1)])
        means, errors, df = [], [], np.inf
        for rank in range(len(self._ranks)):
            mean, error, of_rank = trimmed(spent[seen[:, rank], rank], inflated)
            means.append(mean)
            errors.append(error)
            df = min(df, of_rank)
        return Amount(tuple(means), tuple(errors), df)

    def _count(self, kind: ChangeKind, ops: Operations, rows: Ints, own: Floats) -> None:
        names, name = np.unique(ops.name[rows], return_inverse=True)
        ranks, cell = len(ops.ranks), name.reshape(-1) * len(ops.ranks) + ops.rank[rows]
        spent = np.bincount(cell, own[rows], len(names) * ranks).reshape(len(names), ranks)
        calls = np.bincount(cell, minlength=len(names) * ranks).reshape(len(names), ranks)
        begun = np.bincount(name.reshape(-1), ops.start_ns[rows] - ops.begin_ns[ops.rank[rows]], len(names))
        for at, code in enumerate(names.tolist()):
            key = ops.name_text[code], kind
            of = self._of[key]
            self._add(of, ops, spent[at])
            of.calls += float(calls[at].sum())
            of.callers += float(np.count_nonzero(calls[at]))
            self._begun_ns[key] += float(begun[at])

    def _add(self, of: _Sum, ops: Operations, values: npt.NDArray[Any]) -> None:
        """To the step that is being taken in; an entry per rank of `ops`."""
        spent = of.own_ns.setdefault(len(self._seen), np.zeros(len(self._ranks)))
        spent[np.searchsorted(self._ranks, ops.ranks)] += values


def trimmed(values: Floats, inflated: float) -> tuple[float, float, float]:
    """(20 %-trimmed mean, its standard error, degrees of freedom) over steps; no error can be told of a single one."""
    steps = len(values)
    if steps < 2:
        return float(values.mean()) if steps else 0.0, np.inf, 1.0
    cut = int(steps * TRIM)
    kept, ordered = steps - 2 * cut, np.sort(values)
    winsorised = np.clip(values, ordered[cut], ordered[steps - cut - 1])
    error = float(np.sqrt(winsorised.var(ddof=1) * inflated / steps)) * steps / kept
    return float(trimmed_mean(values, TRIM)), error, max(kept / inflated - 1, 1.0)
