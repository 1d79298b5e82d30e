"""Whether one of several that do the same is slower than the others beyond chance: groups, links, ranks.

Two chances must both be small. That of a moderated t (localize/peers.py) allows for healthy links and devices that
differ for good, by a few percent. That of ranks holds whatever the distribution is: were all alike, each would be as
often the slowest of a step as any other, so a few steps prove nothing.

Several slow ones hide one another: a slow link is one in both directions. So each is compared with those that are no
slower than it, and is slow if it, or one after it, is slow by that (Rosner 1983, the generalised extreme deviate).
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints, order_by, present
from kair_engine.localize.anomalies import FALSE_ALARM_RATE, FEWEST_STEPS
from kair_engine.localize.links import FEWEST_SIBLINGS, HEALTHY_SPREAD, SLOWER_BY, STEADY_STEPS
from kair_engine.localize.peers import Means, Spread, above_others
from kair_engine.stats import median

FEWEST_COMPARED: Final = 2
"""Of two siblings one can be slower; which is usual takes FEWEST_SIBLINGS."""
_LEVELS: Final = 64
"""Positions in a step are rounded to this, so that the sum's distribution stays small with thousands of siblings."""


@dataclass(frozen=True)
class Comparison:
    """Of each of several siblings, in their order."""

    p_value: Floats
    """The chance that a healthy one is that slow; NaN if no test can show it."""
    steady: Bools
    """Slower than the others by SLOWER_BY in the median step, and by half of that in STEADY_STEPS of the steps."""


def compare(times: Floats) -> Comparison:
    """Compare siblings by `times`, (steps × siblings): the time of each over the median of the others for the same.

    NaN stands for a step in which one did nothing that can be compared; a step that lacks one is not used at all.
    """
    whole = times[~np.isnan(times).any(axis=1)] if times.size else times
    siblings = times.shape[1]
    if siblings < FEWEST_COMPARED or len(whole) < FEWEST_STEPS:
        return Comparison(np.full(siblings, np.nan), np.zeros(siblings, dtype=bool))
    steady = (median(whole, axis=0) > 1 + SLOWER_BY) & ((whole > 1 + SLOWER_BY / 2).mean(axis=0) > STEADY_STEPS)
    if siblings < FEWEST_SIBLINGS:
        return Comparison(np.full(siblings, np.nan), steady)
    p_value = _chances(whole)
    slower = np.flatnonzero(steady)
    slower = slower[np.argsort(-whole[:, slower].mean(axis=0), kind="stable")]
    left, of_each = np.ones(siblings, dtype=bool), []
    for at in slower[: min((siblings - 1) // 2, siblings - FEWEST_SIBLINGS + 1)].tolist():
        of_each.append(_chances(whole[:, left])[int(left[:at].sum())])
        left[at] = False
    p_value[slower[: len(of_each)]] = np.minimum.accumulate(of_each[::-1])[::-1]
    return Comparison(p_value, steady)


def _chances(times: Floats) -> Floats:
    """Of each sibling the larger of both chances."""
    _, by_spread = above_others(Means.of(times), Spread(HEALTHY_SPREAD, HEALTHY_SPREAD))
    return np.maximum(by_spread, chance_of_places(times))


def is_slow(comparison: Comparison, tests: int) -> Bools:
    """Which of them are slow, where so many tests are made in all: that any is by chance is FALSE_ALARM_RATE."""
    return comparison.steady & (np.nan_to_num(comparison.p_value, nan=np.inf) * max(tests, 1) < FALSE_ALARM_RATE)


def chance_of_places(times: Floats) -> Floats:
    """Per sibling the chance of places in the steps that are as late together, were every order of a step as likely.

    `times` is (steps × siblings). The exact distribution of a sum of independent places; equals share the best place.
    """
    steps, siblings = times.shape
    ordered = np.sort(times, axis=1)
    place = np.stack([np.searchsorted(of, row) for of, row in zip(ordered, times, strict=True)])
    levels = min(siblings, _LEVELS)
    level = place * levels // siblings
    of_level = np.bincount(np.arange(siblings) * levels // siblings, minlength=levels) / siblings
    chance = np.ones(1)
    for _ in range(steps):
        chance = np.convolve(chance, of_level)
    at_least = np.cumsum(chance[::-1])[::-1]
    return np.asarray(np.clip(at_least[level.sum(axis=0)], 0.0, 1.0))


def others_median(cell: Ints, values: Floats) -> tuple[Floats, Ints]:
    """For each value (the median of the others with its cell number, how many they are); NaN where it is alone."""
    order = order_by(cell)
    ordered = cell[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1]))) if len(order) else order
    sizes = np.diff(np.concatenate((starts, [len(ordered)])))
    result, others = np.full(len(values), np.nan), np.zeros(len(values), dtype=np.int64)
    for size in present(sizes).tolist():
        members = order[starts[sizes == size][:, None] + np.arange(size)]
        others[members] = size - 1
        if size < 2:
            continue
        by_value = np.argsort(values[members], axis=1, kind="stable")
        members = np.take_along_axis(members, by_value, axis=1)
        # Without the i-th of the sorted values, the k-th of the rest is the k-th where k < i, else the one after it.
        at = np.arange(size)
        low, high = (size - 2) // 2, (size - 1) // 2
        rest = values[members]
        result[members] = (rest[:, low + (at <= low)] + rest[:, high + (at <= high)]) / 2
    return result, others
