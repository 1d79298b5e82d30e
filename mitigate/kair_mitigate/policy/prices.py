"""What an action would save, before it is taken: recorded steps replayed with scaled computing, never medians.

The longest of many equal units is longer than any of their medians: 7 % at 64 units with 3 % noise.
"""

from dataclasses import dataclass

import numpy as np

from kair_engine.arrays import Floats, Ints
from kair_mitigate.policy.rates import Fit, Recorded

SKI_RENTAL = 1 / 3
"""A restart is due once waiting has cost this share of it. At worst that pays 4 times what hindsight would, and at 1
twice; but faults that have lasted so long mostly stay, and jobs with a mix of faults end sooner than at 1."""
MICRO_BATCHES = 4
"""Parts of a unit's batch after each of which it can leave off."""


@dataclass(frozen=True, slots=True)
class StepPrice:
    """Seconds of a global batch now and after the action: as fitted, and the two ends of what is uncertain.

    At the optimistic end no computing is independent of the batch but what has been fitted; at the other one the share
    told or assumed is, in units of which one size alone has been seen.
    """

    now_s: float
    after_s: float
    worst_after_s: float

    @property
    def saving(self) -> float:
        """The share of the time now that is saved, as fitted."""
        return 1 - self.after_s / self.now_s if self.now_s else 0.0


@dataclass(frozen=True, slots=True)
class RestartPrice:
    """Seconds that a restart costs and saves; the steps' times are those after the best sizes, before and after it."""

    now_s: float
    after_s: float
    gain_s: float
    """Saved in the steps that are left."""
    cost_s: float
    """Of the restart, and of the steps that are done again."""
    restart_s: float
    already_lost_s: float
    """What the units concerned have cost since they became slow, beyond what other sizes could get back."""

    @property
    def holds(self) -> bool:
        """Whether the restart pays in the steps left, and waiting has cost enough of it (ski rental)."""
        return self.gain_s > self.cost_s and self.already_lost_s >= SKI_RENTAL * self.restart_s


def replayed_s(
    recorded: Recorded,
    sizes: Ints | Floats,
    fixed_samples: Floats,
    *,
    factor: Floats | float = 1.0,
    rest_factor: float = 1.0,
) -> float:
    """Mean seconds of the recorded steps had the units had these sizes, and computed `factor` times as long.

    `T'(b') = mean over steps of max_i (a_i + c_i b'_i) f_i + rest`, with each step's
    `f_i` taken from its own computing: so only `fixed_samples = a_i / c_i` is needed. ValueError without any step.
    """
    if not len(recorded.rest_s):
        raise ValueError("no step has been recorded that could be replayed")
    times = recorded.samples + fixed_samples
    np.divide(factor * (sizes + fixed_samples), times, out=times)
    times = times * recorded.compute_s
    return float(times.max(axis=1).mean() + rest_factor * recorded.rest_s.mean())


def resizing(recorded: Recorded, now: Ints, wanted: Ints | Floats, fit: Fit, fixed_share: float) -> StepPrice:
    """Return the price of other sizes; of units seen with one size alone, this share of computing may be independent of
    it.
    """
    fixed, told = fit.fixed_samples, fixed_share / (1 - fixed_share) * now
    worst = np.where(fit.two_sizes, fixed, np.maximum(fixed, told))
    before = replayed_s(recorded, now, fixed)
    # Both ends say what the steps would become from what they are now.
    after = replayed_s(recorded, wanted, fixed)
    worst_after = before * replayed_s(recorded, wanted, worst) / replayed_s(recorded, now, worst)
    return StepPrice(before, after, max(after, worst_after))


def restarting(
    now_s: float, after_s: float, steps_left: int, *, restart_s: float, lost_steps: float, already_lost_s: float
) -> RestartPrice:
    """Return the price of a restart: seconds of a step after the best sizes without it and with it, and what it costs.

    `lost_steps` are done again, 0 where the job itself checkpoints before it leaves.
    """
    gain, cost = steps_left * (now_s - after_s), restart_s + lost_steps * now_s
    return RestartPrice(now_s, after_s, gain, cost, restart_s, already_lost_s)


def deadline(recorded: Recorded, sizes: Ints, fixed_samples: Floats, times_median: float) -> StepPrice:
    """Return the price of leaving off after so many times the median unit's computing; samples undone come again."""
    times = recorded.compute_s * ((sizes + fixed_samples) / (recorded.samples + fixed_samples))
    part = parts_done(times, times_median * np.median(times, axis=1, keepdims=True))
    batches = (part * sizes).sum(axis=1).mean() / sizes.sum()
    now = times.max(axis=1).mean() + recorded.rest_s.mean()
    after = float(((part * times).max(axis=1).mean() + recorded.rest_s.mean()) / batches)
    return StepPrice(float(now), after, after)


def parts_done(times_s: Floats, deadline_s: Floats | float) -> Floats:
    """Return the share of its batch that each unit does which begins no micro-batch that would end past the deadline.

    `times_s` are of the whole batches. Every unit does its first micro-batch.
    """
    fit_in = np.floor(deadline_s * MICRO_BATCHES / np.maximum(times_s, np.finfo(np.float64).tiny))
    result: Floats = np.clip(fit_in, 1, MICRO_BATCHES) / MICRO_BATCHES
    return result
