"""What a fix of the accused ranks is worth: all others are delayed by doses of several sizes.

All others later by d is the accused earlier by d, in a step that takes d more: a saving is d less the growth. It grows
with d up to the worth of a fix, where it levels off.
"""

from dataclasses import replace
from math import erf, exp, pi, sqrt
from typing import Final

import numpy as np

from kair_engine.arrays import Floats
from kair_engine.confirm.decide import summed_up
from kair_engine.confirm.estimate import (
    SHOWN_ERROR,
    Estimate,
    Recorded,
    arm_doses,
    effect_row,
    effects_of,
    residuals_of,
    two_sided,
)
from kair_engine.results.confirm import ConfirmResult, DelayPlace, SweptDose, Worth

GRID: Final = 161
"""Values of the worth that are tried, and an eighth as many of how much it varies from step to step."""


def swept(recorded: Recorded, place: DelayPlace) -> ConfirmResult:
    """Return what the sweep says a fix of the accused is worth; `worth` is null before each dose has had two steps.

    Raises ValueError where nobody is accused.
    """
    if not recorded.accused:
        raise ValueError("nobody is accused: ask which rank it is")
    found = residuals_of(recorded, place)
    others = arm_doses(recorded)[1]
    asked = recorded.planned_us.max(axis=0)
    sizes = np.unique(asked[others > 0])
    doses = [np.where(asked == size, others, 0.0) for size in sizes]
    estimates, fit = effects_of(doses, found)
    who = tuple(rank for rank in recorded.ranks if rank not in recorded.accused)
    rows = tuple(effect_row("others", who, dose, one) for dose, one in zip(doses, estimates, strict=True))
    result = summed_up(recorded, place, found, rows)
    known = [one for one in estimates if one]
    if not fit or len(known) < max(len(doses), 2):
        return result
    given = np.array([row.dose_us for row in rows])
    pairs = fit.covariance[: 2 * len(doses), : 2 * len(doses)].reshape(len(doses), 2, len(doses), 2)
    covariance = pairs.sum(axis=(1, 3)) * np.outer(given, given)
    growth = np.array([one.value for one in known]) * given
    return replace(result, worth=_leveled(given, growth, covariance, known))


def _leveled(doses: Floats, growth: Floats, covariance: Floats, known: list[Estimate]) -> Worth:
    """Where the savings level off, by least squares, over all that may be how the accused's lead is distributed."""
    largest = float(doses[-1])
    weights = np.linalg.pinv(covariance)
    tried: list[tuple[float, float]] = []
    for lead in np.linspace(-largest / 2, 1.5 * largest, GRID).tolist():
        for varies in np.geomspace(largest / 200, largest, GRID // 8).tolist():
            free = _excess(-lead, varies)
            off = growth - np.array([_excess(dose - lead, varies) - free for dose in doses.tolist()])
            # A fix that takes away all of the lead saves that, and nothing in steps without a lead.
            tried.append((float(off @ weights @ off), lead + free))
    least, worth = min(tried)
    limit = least + two_sided(SHOWN_ERROR, min(one.n for one in known) - 1) ** 2
    within = [value for misfit, value in tried if misfit <= limit]
    rows = []
    for dose, one in zip(doses.tolist(), known, strict=True):
        low, high = one.interval()
        rows.append(SweptDose(dose, one.n, dose * (1 - one.value), dose * (1 - high), dose * (1 - low)))
    high = max(within)
    return Worth(min(worth, largest), min(*within, largest), high if high < largest else None, tuple(rows))


def _excess(mean: float, deviation: float) -> float:
    """Return the mean of what a normal number is above 0."""
    z = mean / deviation
    return mean * (1 + erf(z / sqrt(2))) / 2 + deviation * exp(-z * z / 2) / sqrt(2 * pi)
