"""Implements the operator-level model, of all that a profiler recorded."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from kair_engine.arrays import Floats
from kair_engine.causes import RemedyName
from kair_engine.localize.unnamed_collectives import unnamed_collective_warnings
from kair_engine.results.fix import ASKED_KINDS, Fix
from kair_engine.results.whatif import HostStops, PartEffect, Remedy
from kair_engine.timeline.synchronisation import Synchronisation
from kair_engine.trace.model import KairWarning, Trace
from kair_engine.trace.steps.step_batches import operations_of_steps
from kair_engine.trace.warning_texts import short_warning
from kair_engine.whatif.inexact_replay import ERROR_GATE, STEADY_ERROR_GATE, inexact_replay, replay_error
from kair_engine.whatif.model import (
    Attribution,
    Baseline,
    Counterfactual,
    Foreseen,
    Parts,
    ReplayedSteps,
    Symptoms,
)
from kair_engine.whatif.operators.attribution import attribute, effects, known_steps
from kair_engine.whatif.operators.batches import Batch, batches
from kair_engine.whatif.operators.prices import replayed_steps
from kair_engine.whatif.operators.stops.found import StopTally
from kair_engine.whatif.operators.told_parts import parts_told
from kair_engine.whatif.operators.validate_fix import Present, present, validate_fix
from kair_engine.whatif.ratios import OfParts
from kair_engine.whatif.replay_cache import ReplayCache

if TYPE_CHECKING:
    from kair_engine.whatif.operators.steady.batch import SteadyBatch
    from kair_engine.whatif.replay.trace_events import Event

MOST_KEPT = 1_500_000
"""Operations whose graphs stay in memory, 400 bytes each. Those of more are made again for every question."""
MOST_OPERATIONS = 4_000_000
"""In one step: a replay takes 500 bytes for each, twice as much as all else."""
_AT_ONCE = 4
"""Scenarios that a question is about, more or less: the steps that are kept together do not depend on the question."""


class OperatorModel:
    """See `Model`. Its replays have all delays, which stay as recorded."""

    kinds = ASKED_KINDS
    remedy_names: tuple[RemedyName, ...] = ()
    ideal_is_published = False

    def __init__(
        self, trace: Trace, *, keep: bool, synchronised: Sequence[Synchronisation] = (), ranks: int | None = None
    ) -> None:
        """`ranks`: how many the job has, where those of the trace may stand for more."""
        self.job, self.steps = trace.job, trace.steps
        self._stand_for = len(trace.job.ranks) if ranks is None else ranks
        self._trace = trace
        self._operations = operations_of_steps(trace)
        self._keep = keep and sum(self._operations.values()) <= MOST_KEPT
        self._kept: list[Batch | SteadyBatch] = []
        self._synchronised = synchronised
        self._fitting: set[Fix] = set()
        self._present: Present | None = None
        self._remembered = ReplayCache()
        self._stops, self._measured_ns = StopTally(), 1.0

    @property
    def last_stage(self) -> tuple[int, ...]:
        """The ranks of the last of several pipeline stages."""
        stages = self.job.layout.pipeline_stage if self.job.layout is not None else {}
        return tuple(rank for rank, stage in stages.items() if stage == max(stages.values()))

    def fits_memory(self) -> bool:
        """Whether no step is larger than what can be replayed beside all else."""
        return max(self._operations.values()) <= MOST_OPERATIONS

    def require(self, fix: Fix) -> None:
        """Raises UsageError where no operation of the chosen steps fits the fix."""
        if fix not in self._fitting:
            validate_fix(self._trace, fix, self._all_present)
            self._fitting.add(fix)

    def _all_present(self) -> Present:
        if self._present is None:
            self._present = present(self._trace)
        return self._present

    def parts(self) -> Iterator[Parts]:
        """What all steps are made of, some steps at a time."""
        self._keep_batches()
        for batch in self._kept or self._batches():
            yield parts_told(batch.dependencies, batch.steps)

    def replay(self, counterfactuals: Sequence[Counterfactual], foreseen: Foreseen | None = None) -> ReplayedSteps:
        """Step times."""
        same = [Baseline.RECORDED if one is Baseline.DELAYED else one for one in counterfactuals]
        return self._remembered.of(same, partial(self._replayed, foreseen=foreseen))

    def attribute(self, fixes: Sequence[tuple[Fix, ...]]) -> Attribution:
        """Who costs what, and the step times with fixes made."""
        return attribute(self._trace, fixes)

    def effects(self, groups: Sequence[Sequence[int]], replayed: ReplayedSteps) -> list[PartEffect | None]:
        """Of groups of ranks what goes away without each, and what each does alone."""
        return effects(self._trace, groups, replayed)

    def symptoms(self, replayed: ReplayedSteps) -> Symptoms:  # noqa: ARG002
        """None: microbatches are not told apart."""
        return Symptoms()

    def host_stops(self) -> HostStops | None:
        """Moments at which threads stood still."""
        if not self._stops.steps:
            self.replay([Baseline.RECORDED])
        return self._stops.result(self._measured_ns)

    def launch_delays(self, replayed: ReplayedSteps) -> OfParts[Floats] | None:  # noqa: ARG002
        """None: delays are parts of the kinds of time."""
        return None

    def remedies(self, recorded: Floats) -> tuple[Remedy, ...]:  # noqa: ARG002
        """None: layers and microbatches are not told apart."""
        return ()

    def warnings_of(self, replayed: ReplayedSteps) -> tuple[KairWarning, ...]:
        """Steps left out, a replay that is off by more than a little, and what no name tells of."""
        left_out = len(self.steps) - len(replayed.steps)
        text = f"{left_out} steps are left out: their operations wait for one another in a circle"
        delayed, measured = replayed.times[0], replayed.measured
        gate = ERROR_GATE if self.job.host_times is None else STEADY_ERROR_GATE
        off = inexact_replay(replayed.steps, delayed, measured, replay_error(delayed, measured), gate)
        circles = [KairWarning("circular_dependencies", text)] if left_out else []
        return (*circles, *off, *self._some_ranks(), *unnamed_collective_warnings(self._trace))

    def _some_ranks(self) -> Iterator[KairWarning]:
        if len(self.job.ranks) < self._stand_for:
            text = f"{len(self.job.ranks)} of {self._stand_for:,} ranks are replayed in place of all"
            text = f"steps are too large to be held whole: {text}, those that were waited for longest among them"
            yield short_warning("some_replayed", text)

    def timeline(self) -> "Iterator[Event]":
        """Trace events of the job as recorded, and of the ideal one."""
        from kair_engine.whatif.operators.timeline import operator_timeline  # few ask for it

        return operator_timeline(self._trace)

    def _replayed(self, counterfactuals: list[Counterfactual], foreseen: Foreseen | None = None) -> ReplayedSteps:
        self._keep_batches()
        look, more = None, None
        if not self._stops.steps:
            look = partial(_tally_stops, self._stops, self.job.hosts)
            more = None if foreseen is None or self._kept else partial(self._foreseen, foreseen)
        measured, times = replayed_steps(self._kept or self._batches(), counterfactuals, look, more)
        self._measured_ns = float(measured.mean())
        # Who waits in a circle does so whatever else is supposed.
        known = known_steps(times[0])
        steps = tuple(step for step, is_known in zip(self.steps, known, strict=True) if is_known)
        return ReplayedSteps(steps, np.asarray(measured[known]), np.asarray(times[:, known]))

    def _keep_batches(self) -> None:
        if self._keep and not self._kept:
            self._kept, self._synchronised = list(self._batches()), ()

    def _foreseen(self, foreseen: Foreseen, measured: Floats) -> Sequence[Counterfactual]:
        return foreseen(self._stops.result(float(measured.mean())))

    def _batches(self) -> Iterator["Batch | SteadyBatch"]:
        return batches(self._trace, _AT_ONCE, self._synchronised)


def _tally_stops(tally: StopTally, hosts: Mapping[int, str], batch: "Batch | SteadyBatch") -> None:
    stopped = batch.stopped
    tally.add(batch.dependencies.parts, stopped.found_ns, batch.steps, hosts)
    tally.add_ticked(stopped.ticked)
    if stopped.measured is not None:
        lost = stopped.measured.lost_ns(stopped.of_threads_ns)
        tally.cores.add(stopped.measured, lost, [of.ranks for of in batch.steps])
