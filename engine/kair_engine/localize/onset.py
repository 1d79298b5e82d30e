"""Finds the step in which ranks began to differ: the change point of their distances from their peers."""

import math

import numpy as np

from kair_engine.arrays import Floats
from kair_engine.frozen import dataclass
from kair_engine.localize.noise import inflation
from kair_engine.stats import median

FEWEST_BEFORE, FEWEST_AFTER = 4, 8
"""An onset needs this many steps before and after: a few at the end of a recording are a spell as soon as an onset."""
LEAST_CHANGE = 0.05
"""A rank must have become slower against its peers by this share of the step."""
CHANGE_ERRORS = 6.0
"""The change must be this many of its standard errors: every step and rank is tried, and spells change things, too."""
STEADY_CHANGE_ERRORS = 3.5
"""This many suffice where nearly every step after it is beyond nearly all before: a fault that grows is noise to
itself."""
NEARLY_ALL, MOST_BEFORE = 0.9, 0.9
"""This share of the steps after the onset must be beyond this share of those before."""


@dataclass(frozen=True)
class Onset:
    """Between two steps (`at` is the place of the first that is different) one rank changed most."""

    at: int
    place: int
    before_ns: float
    after_ns: float
    sure: bool
    """Beyond noise by itself; else only since it lasted, as spells that ranks of one core share do, too."""


def onset(per_step: Floats, step_time_ns: float) -> Onset | None:
    """The change point of excesses (steps × ranks), where some rank surely became slower than before."""
    steps = len(per_step)
    best, found = 0.0, None
    for at in range(FEWEST_BEFORE, steps - FEWEST_AFTER + 1):
        before, after = per_step[:at], per_step[at:]
        change = median(after, axis=0) - median(before, axis=0)
        # Who was faster before and is like the others now has no fault that began.
        change = np.minimum(change, median(after, axis=0))
        place = int(np.argmax(change))
        if change[place] <= LEAST_CHANGE * step_time_ns:
            continue
        apart = np.concatenate([before - median(before, axis=0), after - median(after, axis=0)])
        sides = 1 / at + 1 / (steps - at)
        distance = change[place] / _error(apart, place, sides)
        usual = _lasts(before[:, place], after[:, place]) and (
            # Medians change by no single step, however long that took.
            change[place] / _error(_without_farthest(apart), place, sides) > STEADY_CHANGE_ERRORS
        )
        if distance > best and (usual or distance > CHANGE_ERRORS):
            best, sure = float(distance), bool(distance > CHANGE_ERRORS)
            found = Onset(at, place, float(median(before[:, place])), float(median(after[:, place])), sure)
    return found


def _error(apart: Floats, place: int, sides: float) -> float:
    """Of the change, from distances (steps × ranks) from each side's median; `sides`: the sum of 1 / steps."""
    of_rank = apart.var(axis=0, ddof=1)
    variance = max(float(of_rank[place]), float(median(of_rank)), 1e-12)
    return math.sqrt(variance * inflation(apart) * sides)


def _without_farthest(apart: Floats) -> Floats:
    """Distances (steps × ranks) without each rank's largest."""
    return np.take_along_axis(apart, np.argsort(np.abs(apart), axis=0)[:-1], axis=0)


def _lasts(before: Floats, after: Floats) -> bool:
    return bool((after > np.quantile(before, MOST_BEFORE)).mean() >= NEARLY_ALL)
