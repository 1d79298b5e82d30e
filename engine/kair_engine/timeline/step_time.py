"""The step time that all commands print: what a step takes, and the mean over steps."""

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from kair_engine.arrays import Floats
from kair_engine.trace.model import Trace


def step_times_ns(trace: Trace, *, synchronised: bool) -> Floats:
    """Of every chosen step that somebody recorded whole, in ns.

    The median rank's, since collectives make all wait for the slowest; where no collective does (`synchronised` is
    false) the longest rank's. Ranks that did not record the step whole are left out.
    """
    of_step: dict[int, list[int]] = defaultdict(list)
    times, chosen = trace.job.step_times, set(trace.steps)
    for rank, step, length in zip(times.rank, times.step, times.duration_ns, strict=True):
        if step in chosen and rank not in trace.job.cut_off.get(step, ()):
            of_step[step].append(length)
    middle: Callable[[Sequence[int]], float] = (lambda values: float(np.median(values))) if synchronised else max
    return np.array([middle(of_step[step]) for step in trace.steps if step in of_step], dtype=float)


def step_time_ns(trace: Trace, *, synchronised: bool) -> float:
    """The mean of these over the steps; at least a nanosecond, since shares of it are printed."""
    times = step_times_ns(trace, synchronised=synchronised)
    return max(float(times.mean()), 1.0) if len(times) else 1.0
