"""Estimates what an action would save by replaying recorded steps with scaled computing, never from medians.

The maximum over many equal units exceeds each one's median: by 7 % at 64 units with 3 % noise.
"""

from dataclasses import dataclass

import numpy as np

from kair_engine.arrays import Floats, Ints
from kair_mitigate.policy.rates import Fit, Recorded

SKI_RENTAL = 1 / 3
"""A restart is due once waiting has cost this share of it. In the worst case that costs 4 times the optimum in
hindsight, and a share of 1 twice; but faults that have lasted so long mostly persist, and jobs with a mix of faults end
sooner with this share than with 1.
"""
MICRO_BATCHES = 4
"""Parts of a unit's batch after each of which it can stop."""


@dataclass(frozen=True, slots=True)
class StepPrice:
    """Seconds of a global batch before and after the action, as fitted, and at the pessimistic end.

    As fitted, only the measured part of computing is independent of the batch; at the pessimistic end, units that were
    seen with one size only have the given or assumed share.
    """

    now_s: float
    after_s: float
    worst_after_s: float

    @property
    def saving(self) -> float:
        """Return the share of the present time that is saved, as fitted."""
        return 1 - self.after_s / self.now_s if self.now_s else 0.0


@dataclass(frozen=True, slots=True)
class RestartPrice:
    """Seconds that a restart costs and saves; step times are those at the best sizes, before and after it."""

    now_s: float
    after_s: float
    gain_s: float
    """Saved in the remaining steps."""
    cost_s: float
    """Cost of the restart and of the repeated steps."""
    restart_s: float
    already_lost_s: float
    """Cost of the units concerned since they became slow, beyond what other sizes could recover."""

    @property
    def holds(self) -> bool:
        """Return whether the restart pays in the remaining steps, and waiting has cost enough of it (ski rental)."""
        return self.gain_s > self.cost_s and self.already_lost_s >= SKI_RENTAL * self.restart_s


def replayed_s(
    recorded: Recorded,
    sizes: Ints | Floats,
    fixed_samples: Floats,
    *,
    factor: Floats | float = 1.0,
    rest_factor: float = 1.0,
) -> float:
    """Return the mean seconds of the recorded steps with these sizes and `factor` times the computing.

    `T'(b') = mean over steps of max_i (a_i + c_i b'_i) f_i + rest`, with each step's `f_i` from its own computing: so
    only `fixed_samples = a_i / c_i` is needed. Raises ValueError if there is no step.
    """
    if not len(recorded.rest_s):
        raise ValueError("no step has been recorded that could be replayed")
    times = recorded.samples + fixed_samples
    np.divide(factor * (sizes + fixed_samples), times, out=times)
    times = times * recorded.compute_s
    return float(times.max(axis=1).mean() + rest_factor * recorded.rest_s.mean())


def resizing(recorded: Recorded, now: Ints, wanted: Ints | Floats, fit: Fit, fixed_share: float) -> StepPrice:
    """Return the price of other sizes; units seen with one size only may have `fixed_share` independent of it."""
    fixed, assumed = fit.fixed_samples, fixed_share / (1 - fixed_share) * now
    worst = np.where(fit.two_sizes, fixed, np.maximum(fixed, assumed))
    before = replayed_s(recorded, now, fixed)
    # Both ends are relative to the present steps.
    after = replayed_s(recorded, wanted, fixed)
    worst_after = before * replayed_s(recorded, wanted, worst) / replayed_s(recorded, now, worst)
    return StepPrice(before, after, max(after, worst_after))


def restarting(
    now_s: float, after_s: float, steps_left: int, *, restart_s: float, lost_steps: float, already_lost_s: float
) -> RestartPrice:
    """Return the price of a restart, given the seconds of a step at the best sizes without it and with it.

    `lost_steps` are repeated; 0 if the job checkpoints before it ends.
    """
    gain, cost = steps_left * (now_s - after_s), restart_s + lost_steps * now_s
    return RestartPrice(now_s, after_s, gain, cost, restart_s, already_lost_s)


def deadline(recorded: Recorded, sizes: Ints, fixed_samples: Floats, times_median: float) -> StepPrice:
    """Return the price of stopping after so many times the median unit's computing time; undone samples come again."""
    times = recorded.compute_s * ((sizes + fixed_samples) / (recorded.samples + fixed_samples))
    part = parts_done(times, times_median * np.median(times, axis=1, keepdims=True))
    batches = (part * sizes).sum(axis=1).mean() / sizes.sum()
    now = times.max(axis=1).mean() + recorded.rest_s.mean()
    after = float(((part * times).max(axis=1).mean() + recorded.rest_s.mean()) / batches)
    return StepPrice(float(now), after, after)


def parts_done(times_s: Floats, deadline_s: Floats | float) -> Floats:
    """Return the share of its batch that each unit completes if no micro-batch may end after the deadline.

    `times_s` are of the whole batches. Every unit does its first micro-batch.
    """
    fit_in = np.floor(deadline_s * MICRO_BATCHES / np.maximum(times_s, np.finfo(np.float64).tiny))
    result: Floats = np.clip(fit_in, 1, MICRO_BATCHES) / MICRO_BATCHES
    return result
