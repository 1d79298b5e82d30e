"""When a step began, on each rank's own clock: with the rank itself, or at one moment for the whole job."""

import numpy as np

from kair_engine.arrays import Ints
from kair_engine.results.common import StepClock
from kair_engine.timeline.clocks import align
from kair_engine.timeline.collectives import match
from kair_engine.trace.model import Trace
from kair_engine.trace.operations import Operations
from kair_engine.trace.steps.large_steps import LargeStep, large_steps
from kair_engine.trace.steps.loading import each_step


def offsets_ns(trace: Trace, ranks: Ints) -> Ints:
    """What to subtract from each rank's times, as the first chosen step tells: it hardly moves within a recording."""
    step = trace.select(trace.steps[:1])
    large = bool(large_steps(step))
    ops = LargeStep.read(trace, trace.steps[0], len)[0].operations() if large else next(each_step(step))
    offset = np.zeros(len(ranks), dtype=np.int64)
    aligned = align(match(ops), len(ops.ranks)).offset_ns
    offset[np.searchsorted(ranks, ops.ranks)] = aligned.round().astype(np.int64)
    return offset


def begin_ns(ops: Operations, clock: StepClock) -> Ints:
    """Per rank of the step its begin; of the clock `job` that of the rank that began first, on each one's own clock."""
    if clock == "rank" or not len(ops.ranks):
        return ops.begin_ns
    offset = align(match(ops), len(ops.ranks)).offset_ns.round().astype(np.int64)
    return np.asarray((ops.begin_ns - offset).min() + offset)
