"""Fixes priced without what else costs. The job's model is kept, so that the next question is answered at once."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from threading import Lock

import numpy as np

from kair_engine.arrays import Bools, Floats
from kair_engine.errors import UsageError
from kair_engine.results.whatif import StepPrice, WhatifResult
from kair_engine.trace.model import Notice, Trace
from kair_engine.whatif.analysis import replay_notices
from kair_engine.whatif.attribution import ratio
from kair_engine.whatif.fitting import must_fit
from kair_engine.whatif.fixes import Fix
from kair_engine.whatif.operators.analysis import no_step_replayed
from kair_engine.whatif.operators.analysis import replay_notices as execution_notices
from kair_engine.whatif.operators.batches import Scenario, batches
from kair_engine.whatif.operators.prices import StepPrices
from kair_engine.whatif.pipeline.launches import replayed_with_delays
from kair_engine.whatif.pipeline.replayable import ranks_at, replayable
from kair_engine.whatif.pipeline.rows import is_pipeline
from kair_engine.whatif.pipeline.times import recorded_steps
from kair_engine.whatif.prices import fixed_durations, price, priced, require_cost, scenarios_of, steps_with
from kair_engine.whatif.verdict import SLOW, verdict_of

MOST_KEPT = 1_500_000
"""Operations whose model stays in memory, 400 bytes each. That of more is made again for every question."""
_AT_ONCE = 4
"""Scenarios that a question is about, more or less: the steps that are kept together do not depend on the question."""
_RECORDED: Scenario = ()
_IDEAL: Scenario = (Fix(),)


def whatif_of_fixes(trace: Trace, fixes: Sequence[Fix], *, gpu_cost: float | None = None) -> WhatifResult:
    """As `whatif`, without attributions, causes and remedies: S, the prices of the fixes, and the steps.

    The model of the last trace that was asked about is kept, and every scenario's step times: one more fix of a job
    costs one replay. Raises UsageError and InputError as `whatif` does, and UsageError without any fix.
    """
    if not fixes:
        raise UsageError("there is no fix to price", "name one: --fix rank=3, or --scale op='flash*':0.5")
    if not trace.steps:
        raise UsageError("no complete step to analyse")
    require_cost(gpu_cost)
    return _last.of(trace).answer(fixes, gpu_cost)


class _Model(ABC):
    """A job made ready for replay. Questions may come from several threads."""

    steps: tuple[int, ...]
    measured: Floats
    """Each step's time as recorded, ns."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._lock = Lock()
        self._fitting: set[Fix] = set()
        self._known: dict[tuple[Fix, ...] | None, Floats] = {}

    def answer(self, fixes: Sequence[Fix], gpu_cost: float | None) -> WhatifResult:
        with self._lock:
            for fix in fixes:
                if fix not in self._fitting:
                    self.require(fix)
                    self._fitting.add(fix)
            asked = scenarios_of(fixes)
            wanted = [None if one is None else tuple(one) for one in (_RECORDED, None, _IDEAL, *asked)]
            missing = [one for one in dict.fromkeys(wanted) if one not in self._known]
            if missing:
                self._known.update(zip(missing, self.replayed(missing), strict=True))
            return self._result(fixes, [self._known[one] for one in wanted], gpu_cost)

    def _result(self, fixes: Sequence[Fix], steps_ns: Sequence[Floats], gpu_cost: float | None) -> WhatifResult:
        recorded, undelayed, ideal, *fixed = steps_ns
        known = ~np.isnan(recorded)
        if not known.any():
            raise no_step_replayed()
        numbers = tuple(step for step, is_known in zip(self.steps, known, strict=True) if is_known)
        measured, delayed, recorded = self.measured[known], self.delayed(recorded)[known], recorded[known]
        undelayed, ideal = undelayed[known], ideal[known]
        before, best, taken = float(recorded.mean()), float(ideal.mean()), float(measured.mean())
        slowdown = ratio(before, best)
        lost = price("", before, best, devices=self._trace.job.world_size, gpu_cost=gpu_cost)
        error = abs(ratio(float(delayed.mean()), taken) - 1)
        return WhatifResult(
            slowdown=slowdown,
            waste=1 - 1 / slowdown,
            step_time_us=before / 1e3,
            measured_step_time_us=taken / 1e3,
            ideal_step_time_us=best / 1e3,
            simulation_error=error,
            delay_share=1 - ratio(float(undelayed.mean()), taken),
            launch_slowdown=ratio(taken, before),
            pattern="none" if slowdown < SLOW else "unknown",
            verdict=_verdict(slowdown),
            fixes=priced(
                fixes,
                before,
                [steps[known] for steps in fixed],
                devices=self._trace.job.world_size,
                gpu_cost=gpu_cost,
            ),
            per_step=_steps(numbers, measured, recorded, ideal),
            steps=self._trace.steps,
            warnings=self.notices(known, error),
            gpu_hours_per_day=lost.gpu_hours_per_day,
            cost_per_day=lost.cost_per_day,
        )

    @abstractmethod
    def require(self, fix: Fix) -> None:
        """Raises UsageError where the fix fits nothing."""

    @abstractmethod
    def replayed(self, scenarios: Sequence[Scenario]) -> Sequence[Floats]:
        """Per scenario each step's time, ns; NaN where it cannot be replayed."""

    @abstractmethod
    def delayed(self, recorded: Floats) -> Floats:
        """Each step's time, replayed as recorded with all delays."""

    @abstractmethod
    def notices(self, known: Bools, error: float) -> tuple[Notice, ...]:
        """What the reader of the figures should know."""


class _Execution(_Model):
    """Of a profiler's recording."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        self.steps = trace.steps
        chosen, times = set(trace.steps), trace.job.step_times
        operations = sum(many for step, many in zip(times.step, times.operations, strict=True) if step in chosen)
        self._batches = list(batches(trace, _AT_ONCE)) if operations <= MOST_KEPT else None

    def require(self, fix: Fix) -> None:
        must_fit(self._trace, fix)

    def replayed(self, scenarios: Sequence[Scenario]) -> Sequence[Floats]:
        results, carried = [], None
        for batch in batches(self._trace, _AT_ONCE) if self._batches is None else self._batches:
            carried, times = batch.times(scenarios, carried)
            results.append(times)
            del batch  # or it is still there while the next one is made
        measured, replayed = (np.concatenate(of) for of in zip(*results, strict=True))
        self.measured = measured
        return list(replayed.T)

    def delayed(self, recorded: Floats) -> Floats:
        return recorded

    def notices(self, known: Bools, error: float) -> tuple[Notice, ...]:
        recorded, undelayed = self._known[()], self._known[None]
        prices = StepPrices(self.steps, self.measured, recorded, undelayed, np.zeros((0, len(recorded))), {})
        return execution_notices(prices, known, error)


class _Pipeline(_Model):
    """Of a recording with operation types and pipeline stages."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        self._times, self._left_out = replayable(trace)
        self._rank_of = ranks_at(trace, self._times.rows)
        self.steps = self._times.rows.steps
        self.measured = recorded_steps(self._times.rows)
        self._delayed = replayed_with_delays(self._times)

    def require(self, fix: Fix) -> None:
        fixed_durations(self._trace.job, self._times, self._rank_of, fix, self._times.own_ns)

    def replayed(self, scenarios: Sequence[Scenario]) -> Sequence[Floats]:
        return [self._steps(scenario) for scenario in scenarios]

    def _steps(self, scenario: Scenario) -> Floats:
        times = self._times
        if scenario == _IDEAL:
            return times.steps_with(times.ideal_ns)
        # Its replays have no delays but those that are asked for.
        return steps_with(self._trace.job, times, self._rank_of, scenario or ())

    def delayed(self, recorded: Floats) -> Floats:  # noqa: ARG002
        return self._delayed

    def notices(self, known: Bools, error: float) -> tuple[Notice, ...]:  # noqa: ARG002
        return (*self._left_out, *replay_notices(self._times, self._delayed, self.measured))


class _Last:
    """The model of the trace that was asked about last."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._trace: Trace | None = None
        self._model: _Model | None = None

    def of(self, trace: Trace) -> _Model:
        with self._lock:
            kept = self._trace
            same = kept is not None and kept.job is trace.job and kept.steps == trace.steps
            if self._model is None or not same:
                self._trace, self._model = None, None  # or both are in memory for a while
                model = _Pipeline(trace) if is_pipeline(trace) else _Execution(trace)
                self._trace, self._model = trace, model
            return self._model


_last = _Last()


def _verdict(slowdown: float) -> str:
    if slowdown < SLOW:
        return verdict_of(slowdown, "none", (), by_rank={}, by_stage={})
    return f"{slowdown:.2f} times slower than without stragglers; only fixes were priced"


def _steps(numbers: Sequence[int], measured: Floats, recorded: Floats, ideal: Floats) -> tuple[StepPrice, ...]:
    columns = zip(numbers, measured.tolist(), recorded.tolist(), ideal.tolist(), strict=True)
    return tuple(
        StepPrice(
            step=step,
            measured_us=taken / 1e3,
            replayed_us=now / 1e3,
            ideal_us=best / 1e3,
            slowdown=ratio(now, best),
        )
        for step, taken, now, best in columns
    )
