"""What no policy can beat: a job that divides every step by the speeds of that same step, and restarts in time."""

from itertools import combinations

import numpy as np

from kair_engine.arrays import Floats
from kair_mitigate.policy.job_patterns import Conditions

_HALVINGS = 50
"""Bisections of a step's time: beyond the digits of a float."""


def bound_speed_up(job: Conditions, restart_s: float | None) -> float:
    """Return the speed-up over even batches for whoever knows all speeds and faults in advance.

    Samples are divided at will, a rank without any costs nothing, and memory holds as many as it gets. A restart, where
    one is made, comes as a fault begins, and cures all faults that have begun.
    """
    onsets = sorted({int(step) for step in (*job.slow_from, job.network_from) if step < len(job.rest_s)})
    begins = (0, *onsets)
    # Seconds of the part of the job from `begin` to the next onset, where the last restart was at step `restarted`.
    parts = {
        (restarted, begin): _seconds(job, restarted, begin, end)
        for begin, end in zip(begins, [*onsets, len(job.rest_s)], strict=True)
        for restarted in (-1, *onsets)
        if restarted <= begin
    }
    most = len(onsets) if restart_s is not None else 0
    plans = (restarts for count in range(most + 1) for restarts in combinations(onsets, count))
    return job.static_s() / min(
        len(restarts) * (restart_s or 0.0)
        + sum(parts[max((-1, *(step for step in restarts if step <= begin))), begin] for begin in begins)
        for restarts in plans
    )


def _seconds(job: Conditions, restarted: int, begin: int, end: int) -> float:
    """Return the seconds of steps [begin, end) with the faults that began after `restarted`, and not after `begin`."""
    factor = np.where((job.slow_from > restarted) & (job.slow_from <= begin), job.factor, 1.0)
    sample_s = job.compute_s[begin:end] * factor / (job.fixed_samples + job.sizes)
    rest_s = job.rest_s[begin:end].sum() * (job.network_factor if restarted < job.network_from <= begin else 1.0)
    return float(_shortest(sample_s, sample_s * job.fixed_samples, float(job.sizes.sum())).sum() + rest_s)


def _shortest(sample_s: Floats, fixed_s: Floats, batch: float) -> Floats:
    """Return, per step, the time in which all ranks together have done the batch, by bisection."""
    too_short = np.zeros((len(sample_s), 1))
    enough = (fixed_s + batch * sample_s).min(axis=1, keepdims=True, initial=np.inf)
    for _ in range(_HALVINGS):
        middle = (too_short + enough) / 2
        holds = (np.maximum(middle - fixed_s, 0) / sample_s).sum(axis=1, keepdims=True) >= batch
        too_short, enough = np.where(holds, too_short, middle), np.where(holds, middle, enough)
    result: Floats = enough[:, 0]
    return result
