"""Implements the operator-level model, of all that a profiler recorded.

Says of the parts of steps which they are, so that the same ones of another recording can be found.

Checks that a recording has what a fix asks for; says what it has instead.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from kair_engine.arrays import NONE, Ints
from kair_engine.causes import FixKind
from kair_engine.errors import InputError, UsageError
from kair_engine.localize.unnamed_collectives import unnamed_collective_warnings
from kair_engine.results.fixes import fix_text
from kair_engine.results.whatif import ASKED_KINDS, STOPS, Fix, HostStops
from kair_engine.timeline.clocks import Synchronisation
from kair_engine.timeline.self_time import INPUT_PHASE
from kair_engine.trace.batches import operations_of_steps
from kair_engine.trace.large_steps import texts_counted
from kair_engine.trace.model import KairWarning, Trace, short_warning
from kair_engine.trace.operations import STEP_SCOPE, Operations
from kair_engine.whatif.model import (
    Attribution,
    Baseline,
    Counterfactual,
    DrawnStep,
    Foreseen,
    Model,
    MovedStep,
    Parts,
    Removed,
    ReplayedSteps,
)
from kair_engine.whatif.operators.attribution import attribute, removed_parts
from kair_engine.whatif.operators.batches import (
    Batch,
    batches,
    fit_together,
    replayed_steps,
    steady_step,
    step_batches,
)
from kair_engine.whatif.operators.dependencies import OperatorDependencies
from kair_engine.whatif.operators.stops import StopTally
from kair_engine.whatif.prices import (
    STEADY_ERROR_GATE,
    inexact_replay,
    nothing_fits,
)

if TYPE_CHECKING:
    from kair_engine.whatif.operators.steady_state import SteadyBatch


def parts_of_steps(of: OperatorDependencies, steps: Sequence[Operations]) -> Parts:
    """Return the parts of some steps that were joined in one graph; what runs within an input fetch is the fetch's."""
    parts = of.parts
    count = len(parts.node)
    at, rank, number = (np.zeros(count, dtype=np.int64) for _ in range(3))
    for place, ops in enumerate(steps):
        mine = np.flatnonzero(parts.step == place)
        at[mine], number[mine], rank[mine] = np.arange(len(mine)), ops.step, ops.ranks[parts.rank[mine]]
    operator = parts.of_operations(steps, lambda ops: ops.name[_fetch(ops)], otherwise=NONE)
    phase = parts.of_operations(steps, lambda ops: ops.phase[_fetch(ops)], otherwise=NONE)
    call = parts.of_operations(steps, lambda ops: ops.occurrence[_fetch(ops)], otherwise=NONE)
    group = of.group[parts.node].astype(np.int64)
    return Parts(
        step=number,
        at=at,
        rank=rank,
        operator=operator,
        kind=parts.kind.astype(np.int64),
        which=np.stack((phase, call)),
        delay=parts.delay,
        transfer=np.where(parts.own, group, NONE),
        value_ns=parts.value_ns,
        operators=steps[0].name_text,
    )


def _fetch(ops: Operations) -> Ints:
    """Per operation the outermost one of the input phase around it; of all others themselves."""
    owner, parent = np.arange(len(ops)), ops.nesting.parent
    in_phase = ops.phase == INPUT_PHASE
    while (inside := in_phase[owner] & (parent[owner] != NONE) & in_phase[parent[owner]]).any():
        owner = np.where(inside, parent[owner], owner)
    return owner


_SHOWN = 8
_KINDS: dict[FixKind, tuple[str, ...]] = {
    "compute": ("compute", "memory"),
    "input": ("input",),
    "communication": ("collective", "send", "recv"),
    "gc": ("gc",),
}
"""A fix's kind → the operations' kinds; delays of the host are of every operation."""


Present = Mapping[tuple[str, str, str], int]
"""(name, kind, phase) of operations → how many there are, the most frequent first."""


def validate_fix(trace: Trace, fix: Fix, of_all: Callable[[], Present]) -> None:
    """Raise UsageError, with what there is instead, where no operation of the chosen steps fits the fix.

    `of_all` holds what is present on all ranks, if that is asked for.
    """
    job, layout = trace.job, trace.job.layout
    stage_of = layout.pipeline_stage if layout is not None else {}
    if fix.stages and not stage_of:
        raise UsageError(
            f"{fix_text(fix)}: the recording does not say which ranks make up a pipeline stage",
            "name the stage's ranks instead: rank=0-7 (stages are known where the profiler notes pipeline groups)",
        )
    known: tuple[tuple[str, Collection[int | str], Iterable[int | str]], ...] = (
        ("ranks", fix.ranks, job.ranks),
        ("hosts", fix.hosts, job.hosts.values()),
        ("stages", fix.stages, stage_of.values()),
    )
    for what, asked, there in known:
        if asked and not set(asked) & set(there):
            raise nothing_fits(fix, f"the {what} are {_listed(there)}" if set(there) else f"the {what} are not known")
    chosen = [
        rank
        for rank in job.ranks
        if (not fix.ranks or rank in fix.ranks)
        and (not fix.hosts or job.hosts.get(rank) in fix.hosts)
        and (not fix.stages or stage_of.get(rank) in fix.stages)
    ]
    if fix.scopes:
        names = [name for (name,) in texts_counted(trace, ("name",), scopes=True) if name != STEP_SCOPE]
        if not any(map(fix.within, names)):
            raise nothing_fits(fix, f"there are the scopes {_listed(names)}" if names else "no scopes are recorded")
    counts = of_all() if len(chosen) == len(job.ranks) else _counted(trace, chosen)
    kinds, names = _fitting(counts, fix)
    if not kinds:
        raise nothing_fits(fix, f"there are {_listed(names)}" if fix.operators and names else None)


def _counted(trace: Trace, ranks: Sequence[int]) -> Present:
    of_these = trace if len(ranks) == len(trace.job.ranks) else trace.of_ranks(ranks)
    counts = texts_counted(of_these, ("name", "kind", "phase"))
    return {(name, kind, phase): number for (name, kind, phase), number in counts.items()}


def _fitting(there: Present, fix: Fix) -> tuple[set[str], list[str]]:
    """Return (the kinds of the operations that fit, the names of the most frequent operators of the fix's kinds)."""
    of_kinds = {kind for one in fix.kinds for kind in _KINDS.get(one, ())}
    counts: Counter[tuple[str, str]] = Counter()
    for (name, kind, phase), number in there.items():
        any_kind = not fix.kinds or {"host", STOPS} & set(fix.kinds)
        if any_kind or kind in of_kinds or ("input" in fix.kinds and phase == "input"):
            counts[name, kind] += number
    order = sorted(counts, key=lambda texts: (-counts[texts], texts))
    return {kind for name, kind in order if fix.named(name)}, list(dict.fromkeys(name for name, _ in order))


def _listed(values: Iterable[int | str]) -> str:
    """Return the first few, numbers as spans."""
    ordered = list(dict.fromkeys(values))
    numbers = [value for value in ordered if isinstance(value, int)]
    if numbers and len(numbers) == len(ordered):
        low, high = min(numbers), max(numbers)
        if len(numbers) == high - low + 1 > 1:
            return f"{low}-{high}"
        ordered = sorted(numbers)
    shown = ", ".join(str(value) for value in ordered[:_SHOWN])
    return f"{shown} …" if len(ordered) > _SHOWN else shown


MOST_KEPT = 1_500_000
"""Operations whose graphs stay in memory, 400 bytes each. Those of more are made again for every question."""
MOST_OPERATIONS = 4_000_000
"""In one step: a replay takes 500 bytes for each, twice as much as all else."""


class OperatorModel(Model):
    """See `Model`. Its replays have all delays, which stay as recorded."""

    kinds = ASKED_KINDS
    same = Baseline.DELAYED, Baseline.RECORDED

    def __init__(
        self, trace: Trace, *, keep: bool, synchronised: Sequence[Synchronisation] = (), ranks: int | None = None
    ) -> None:
        """`ranks`: how many the job has, where those of the trace may stand for more."""
        super().__init__(trace.job, trace.steps)
        self._stand_for = len(trace.job.ranks) if ranks is None else ranks
        self._trace = trace
        self._operations = operations_of_steps(trace)
        self._rows = sum(self._operations.values())
        # What is held together for one question anyway stays for the next.
        self._keep = fit_together(self._rows) or (keep and self._rows <= MOST_KEPT)
        self._kept: list[Batch | SteadyBatch] = []
        self._synchronised = synchronised
        self._fitting: set[Fix] = set()
        self._stops, self._measured_ns = StopTally(), 1.0
        self._excess_ns: dict[int, float] = {}

    @property
    def last_stage(self) -> tuple[int, ...]:
        """The ranks of the last of several pipeline stages."""
        stages = self.job.layout.pipeline_stage if self.job.layout is not None else {}
        return tuple(rank for rank, stage in stages.items() if stage == max(stages.values()))

    def fits_memory(self) -> bool:
        """Whether every step is small enough to be replayed in addition to all else."""
        return max(self._operations.values()) <= MOST_OPERATIONS

    def require(self, fix: Fix) -> None:
        """Raise UsageError where no operation of the chosen steps fits the fix."""
        if fix not in self._fitting:
            validate_fix(self._trace, fix, lambda: self._present)
            self._fitting.add(fix)

    @cached_property
    def _present(self) -> Present:
        return _counted(self._trace, self.job.ranks)

    def parts(self) -> Iterator[Parts]:
        """Yield what all steps are made of, some steps at a time."""
        self._keep_batches()
        for batch in self._kept or self._batches():
            yield parts_of_steps(batch.dependencies, batch.steps)

    def attribute(self, fixes: Sequence[tuple[Fix, ...]]) -> Attribution:
        """Who costs what, and the step times with fixes made."""
        return attribute(self._trace, fixes, self.replay, lambda: self._excess_ns)

    def removed(self, found: Attribution, next_asked: Sequence[Counterfactual] = ()) -> Removed:
        """Return what the fix of each part saves: as `kair whatif --fix` prices it, and remembered for it."""
        fixes, at_most = removed_parts(self._trace, found)
        # All parts together are the peers' ideal, which is asked for as well: steps are made ready once for both.
        asked = [(one,) for one in fixes.all()]
        replayed = self.replay([(Fix(),), *asked, *next_asked])
        return Removed(fixes.mapped(replayed.times[1 : 1 + len(asked)]), at_most)

    def waits_if_ideal(self) -> Mapping[int, float]:
        """Per rank, ns; by a replay of the first steps, each by itself."""
        from kair_engine.whatif.operators.ideal_waiting import SAMPLE, waits_in_ideal  # of all questions few need it

        kept = [batch for batch in self._kept if isinstance(batch, Batch)]
        if kept:
            return waits_in_ideal(kept)
        steps = self.steps[: max(SAMPLE // max(*self._operations.values(), 1), 1)]
        return waits_in_ideal(step_batches(self._trace.select(steps)))

    def host_stops(self) -> HostStops | None:
        """Moments at which threads stood still."""
        if not self._stops.steps:
            self.replay([Baseline.RECORDED])
        return self._stops.result(self._measured_ns)

    def without_gc(self, worth_ns: float) -> tuple[float, float]:
        """Return (the mean step without garbage collections, the longest of them), ns.

        Infinite where they take less.
        """
        from kair_engine.trace.queries import gc_times  # not worked out where nothing is asked

        total_ns, longest_ns = gc_times(self._trace)
        if total_ns / len(self.steps) <= worth_ns:
            return math.inf, math.inf
        return float(self.replay([(Fix(kinds=("gc",), scale=0.0),)]).times.mean()), longest_ns

    def warnings_of(self, replayed: ReplayedSteps) -> tuple[KairWarning, ...]:
        """Return warnings: steps left out, a replay that is off by more than a little, and what no name explains."""
        left_out = len(self.steps) - len(replayed.steps)
        text = f"{left_out} steps are left out: their operations wait for one another in a circle"
        (delayed, _, undelayed), measured = replayed.times[:3], replayed.measured
        # Where hosts run ahead prices rest on a replay that keeps no delay only because it was recorded.
        off = tuple(inexact_replay(replayed.steps, undelayed, measured))
        if self.job.host_times is not None:
            off = tuple(inexact_replay(replayed.steps, delayed, measured, STEADY_ERROR_GATE)) or off
        circles = [KairWarning("circular_dependencies", text)] if left_out else []
        some = f"{len(self.job.ranks)} of {self._stand_for:,} ranks are replayed in place of all"
        some = f"steps are too large to be held whole: {some}, those that were waited for longest among them"
        in_place = [short_warning("some_replayed", some)] if len(self.job.ranks) < self._stand_for else []
        return (*circles, *off, *in_place, *unnamed_collective_warnings(self._trace))

    def timelines(self) -> Iterator[DrawnStep]:
        """Lay out every step as recorded, and ideal."""
        from kair_engine.whatif.operators.timeline import drawn_steps  # few ask for it

        return drawn_steps(self._trace)

    def moved(self, fixes: Sequence[Fix]) -> MovedStep:
        """Where the operations of the first step would lie with all of `fixes` made."""
        from kair_engine.whatif.operators.timeline import moved_steady_step, moved_step  # few ask for it

        step = self._trace.select(self.steps[:1])
        if self.job.host_times is not None:
            return moved_steady_step(steady_step(step), fixes)
        return moved_step(next(step_batches(step)), fixes)

    def _replayed(self, missing: list[Counterfactual], foreseen: Foreseen | None) -> ReplayedSteps:
        self._keep_batches()
        look, more, stops, excess = None, None, self._stops, self._excess_ns
        if not stops.steps:
            # Kept once they have all steps: a replay can be cancelled.
            stops, excess = StopTally(), dict.fromkeys(self.job.ranks, 0.0)

            def look(batch: "Batch | SteadyBatch") -> None:
                _tally_stops(stops, self.job.hosts, batch)
                for rank, nanoseconds in batch.excess_ns():
                    excess[rank] += nanoseconds / len(self.steps)

            if foreseen is not None and not self._kept:
                more = lambda measured: foreseen(stops.result(float(measured.mean())))  # noqa: E731
        measured, times = replayed_steps(self._kept or self._batches(), missing, look, more)
        self._stops, self._excess_ns, self._measured_ns = stops, excess, float(measured.mean())
        # Who waits in a circle does so whatever else is supposed.
        known = ~np.isnan(times[0])
        if not known.any():
            raise InputError(
                "no step of the recording can be replayed: its operations wait for one another in a circle"
            )
        steps = tuple(step for step, is_known in zip(self.steps, known, strict=True) if is_known)
        return ReplayedSteps(steps, np.asarray(measured[known]), np.asarray(times[:, known]))

    def _keep_batches(self) -> None:
        if self._keep and not self._kept:
            self._kept, self._synchronised = list(self._batches()), ()

    def _batches(self) -> Iterator["Batch | SteadyBatch"]:
        return batches(self._trace, self._synchronised)


def _tally_stops(tally: StopTally, hosts: Mapping[int, str], batch: "Batch | SteadyBatch") -> None:
    stopped = batch.stopped
    tally.add(batch.dependencies.parts, stopped.found_ns, batch.steps, hosts)
    tally.add_ticked(stopped.ticked)
    if stopped.measured is not None:
        lost = stopped.measured.lost_ns(stopped.of_threads_ns)
        tally.cores.add(stopped.measured, lost, [of.ranks for of in batch.steps])
