"""What the kernel measured of ranks' training threads: how long they computed, and were ready without a core."""

from dataclasses import replace
from typing import Final

import numpy as np

from kair_engine.arrays import Floats, Ints
from kair_engine.frozen import dataclass
from kair_engine.trace.model import NOT_TOLD, Trace

UNTOLD_SHARE = 0.5
"""A rank is not compared if more than this share of its steps were not measured."""

MEASURED: Final = ("cpu_ns", "delay_ns", "throttled", "communication_delay_ns", "halted", "helpers_cpu_ns")
"""Matrices of `ProcessorTimes`, and columns of `StepTimes`."""


@dataclass(frozen=True)
class ProcessorTimes:
    """Matrices (ranks × steps) in the order of `ranks` and `steps`; NaN where nothing was measured."""

    ranks: Ints
    steps: Ints
    cpu_ns: Floats
    delay_ns: Floats
    """Ready, and without a core."""
    throttled: Floats
    """How often a quota stopped the rank's process."""
    communication_delay_ns: Floats
    """The same as `delay_ns` of the thread that communicates and lacked a core longest."""
    halted: Floats
    """How often a signal stopped the rank's process."""
    helpers_cpu_ns: Floats
    """What its other threads computed, without those that communicate."""

    def of_step(self, step: int, ranks: Ints) -> "ProcessorTimes":
        """Of one of the steps and these of the ranks: vectors (ranks)."""
        row, column = np.searchsorted(self.ranks, ranks), int(np.searchsorted(self.steps, step))
        matrices = (getattr(self, name) for name in MEASURED)
        return ProcessorTimes(ranks, np.array([step]), *(matrix[row, column] for matrix in matrices))

    @property
    def tells_all(self) -> bool:
        """Whether of every rank at least half of the steps are measured: else they cannot be compared."""
        return bool((np.mean(np.isnan(self.delay_ns), axis=1) <= UNTOLD_SHARE).all())

    @property
    def ready_ns(self) -> Floats:
        """Per rank for how long in the mean step its training thread was ready without a core."""
        return np.asarray(np.nan_to_num(self.delay_ns).mean(axis=1))

    @property
    def lacked_ns(self) -> Floats:
        """The same of it or the thread that communicates, whichever lacked a core for longer."""
        of_steps = np.maximum(np.nan_to_num(self.delay_ns), np.nan_to_num(self.communication_delay_ns))
        return np.asarray(of_steps.mean(axis=1))

    @property
    def throttled_per_step(self) -> float:
        """How often a quota stopped the mean rank in a step."""
        return float(np.nan_to_num(self.throttled).mean())

    @property
    def halted_per_step(self) -> float:
        """The same of signals."""
        return float(np.nan_to_num(self.halted).mean())


def processor_times(trace: Trace) -> ProcessorTimes | None:
    """Of the chosen steps; None where nothing measured any of them, as beside a device, where threads wait busily."""
    return told_wholly(counted_times(trace))


def told_wholly(counted: ProcessorTimes | None) -> ProcessorTimes | None:
    """Of what was counted the steps of which it is told what was computed and what was waited; None where none is."""
    if counted is None:
        return None
    # One without the other says nothing: what was not computed may have been waiting.
    half_told = np.isnan(counted.cpu_ns) | np.isnan(counted.delay_ns)
    if half_told.all():
        return None
    cpu_ns, delay_ns = (np.where(half_told, np.nan, of) for of in (counted.cpu_ns, counted.delay_ns))
    return replace(counted, cpu_ns=cpu_ns, delay_ns=delay_ns)


def counted_times(trace: Trace) -> ProcessorTimes | None:
    """The same of whatever was measured: what threads lacked, and what stopped them, is known beside a device, too."""
    times = trace.job.step_times
    if not any(getattr(times, name) for name in MEASURED):
        return None
    ranks, steps = np.array(sorted(trace.job.ranks), np.int64), np.array(sorted(trace.steps), np.int64)
    rank, step = np.array(times.rank, np.int64), np.array(times.step, np.int64)
    chosen = np.flatnonzero(np.isin(step, steps) & np.isin(rank, ranks))
    at = np.searchsorted(ranks, rank[chosen]), np.searchsorted(steps, step[chosen])
    matrices = {name: np.full((len(ranks), len(steps)), np.nan) for name in MEASURED}
    for name, matrix in matrices.items():
        if column := getattr(times, name):
            values = np.array(column, float)[chosen]
            matrix[at] = np.where(values == NOT_TOLD, np.nan, values)
    return ProcessorTimes(ranks, steps, **matrices)
