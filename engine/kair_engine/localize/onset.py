"""Finds the step in which ranks began to differ: the change point of their distances from their peers."""

import math
from dataclasses import dataclass

import numpy as np

from kair_engine.arrays import Floats
from kair_engine.localize.noise import inflation
from kair_engine.stats import MAD_TO_SIGMA

FEWEST_BEFORE, FEWEST_AFTER = 4, 8
"""Steps on either side: a few at the end of a recording are a spell as soon as an onset."""
LEAST_CHANGE = 0.05
"""Of the step, by which a rank must have become slower against its peers."""
BEYOND_NOISE = 6.0
"""Standard errors of that change; so many since every step and rank is tried, and spells change things, too."""


@dataclass(frozen=True)
class Onset:
    """Between two steps (`at` is the place of the first that is different) one rank changed most."""

    at: int
    place: int
    before_ns: float
    after_ns: float


def onset(per_step: Floats, step_time_ns: float) -> Onset | None:
    """The change point of excesses (steps × ranks), where some rank surely became slower than before."""
    steps = len(per_step)
    best, found = BEYOND_NOISE, None
    for at in range(FEWEST_BEFORE, steps - FEWEST_AFTER + 1):
        before, after = per_step[:at], per_step[at:]
        change = np.median(after, axis=0) - np.median(before, axis=0)
        # Who was faster before and is like the others now has no fault that began.
        change = np.minimum(change, np.median(after, axis=0))
        place = int(np.argmax(change))
        if change[place] <= LEAST_CHANGE * step_time_ns:
            continue
        apart = np.concatenate([before - np.median(before, axis=0), after - np.median(after, axis=0)])
        # Of medians: one that grows, or pauses as well, is no less slow.
        spread = MAD_TO_SIGMA * np.median(np.abs(apart), axis=0)
        variance = max(float(spread[place]), float(np.median(spread)), 1e-6) ** 2
        error = math.sqrt(variance * inflation(apart) * (1 / at + 1 / (steps - at)))
        if change[place] / error > best:
            best = float(change[place] / error)
            found = Onset(at, place, float(np.median(before[:, place])), float(np.median(after[:, place])))
    return found
