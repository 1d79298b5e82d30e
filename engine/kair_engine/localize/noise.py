"""Measures a recording's own noise: how steps depend on one another, and what a mean over them is worth.

Slowness comes in spells: another process on the core, a thermal phase. Steps in a spell are one observation.
"""

import math

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints
from kair_engine.stats import MAD_TO_SIGMA, binomial_tail, columns_sorted, mad_of_sorted, median, middle_of_sorted

MOST_CORRELATED = 0.6
"""Autocorrelation is capped at this: short recordings cannot show more."""
KNOWN_VALUES = 16
"""At this many steps × ranks half of the measured autocorrelation counts: few of them show little of it."""
FEWEST_RELATED = 4
"""Steps: of fewer nothing is known of how one follows another."""
FEWEST_TELLING = 8
"""Steps: of autocorrelation S of them show the part 1 − 3/S, which is not known so well of fewer."""
ADJACENT_BY_CHANCE = 0.1
"""Events are adjacent if as many lie side by side with a lower chance than this, were steps independent."""


def inflation(per_step: Floats) -> float:
    """By how much the variance of a mean over steps exceeds that of independent ones: (1 + ρ) / (1 − ρ).

    `per_step` is (steps × ranks). ρ is the median over ranks of the autocorrelation from one step to the next, the
    bias of short recordings put right ((1 + 3 ρ) / steps too low, Kendall 1954), shrunk where steps and ranks are few.
    """
    return inflation_of(len(per_step), autocorrelation(per_step, columns_sorted(per_step)))


def autocorrelation(per_step: Floats, ordered: Floats) -> Floats:
    """Per rank of (steps × ranks), from one step to the next; NaN of a rank whose steps are all alike.

    `ordered` has every rank's values in the order of their size.
    """
    if len(per_step) < FEWEST_RELATED:
        return np.full(per_step.shape[1], np.nan)
    # Ranks of a single large delay must not count by it: values are pulled in to where most are.
    centred = per_step - middle_of_sorted(ordered)
    reach = 3 * MAD_TO_SIGMA * mad_of_sorted(ordered)
    np.clip(centred, -reach, reach, out=centred)
    centred -= centred.mean(axis=0)
    squares = (centred**2).sum(axis=0)
    known = squares > 0
    of_known = centred if known.all() else centred[:, known]
    result = np.full(len(known), np.nan)
    result[known] = np.asfortranarray(of_known[1:] * of_known[:-1]).sum(axis=0) / squares[known]
    return result


def inflation_of(steps: int, correlation: Floats) -> float:
    """`inflation` by each rank's autocorrelation over so many steps."""
    known = correlation[~np.isnan(correlation)]
    if not len(known):
        return 1.0
    values = steps * len(known)
    shown = 1 - 3 / steps if steps >= FEWEST_TELLING else 1.0
    rho = (float(median(known)) + 1 / steps) / shown * values / (values + KNOWN_VALUES)
    rho = min(max(rho, 0.0), MOST_CORRELATED)
    return float((1 + rho) / (1 - rho))


def noise_of_mean(per_step: Floats) -> float:
    """Return the standard error of a rank's mean over steps (steps × ranks): the median rank's variance, inflated."""
    steps = len(per_step)
    if steps < 2:
        return 0.0
    return math.sqrt(float(median(per_step.var(axis=0, ddof=1))) * inflation(per_step) / steps)


def above_peers(per_step: Floats, at: int) -> Floats:
    """Per step, how far one of (steps × ranks) lies above the median of the others."""
    return np.asarray(per_step[:, at] - median(np.delete(per_step, at, axis=1), axis=1))


def episodes(events: Bools) -> Ints:
    """Per rank, how many independent events there are in `events` (steps × ranks).

    Those side by side count once where there are more of them than chance brings about, on that rank or on all.
    """
    steps = len(events)
    count = np.asarray(events.sum(axis=0))
    if not count.any():
        return count
    begins = events[:1].sum(axis=0) + (events[1:] & ~events[:-1]).sum(axis=0)
    after = np.maximum(count - 1, 0)
    chance = np.minimum(after / max(steps - 1, 1), 1.0)

    def in_spells(side_by_side: int, trials: int, rate: float) -> bool:
        return side_by_side > 0 and binomial_tail(side_by_side, trials, rate) < ADJACENT_BY_CHANCE

    trials = int(after.sum())
    if trials and in_spells(int((count - begins).sum()), trials, float((after * chance).sum() / trials)):
        return np.asarray(begins)
    for at in np.flatnonzero(count > begins).tolist():
        if in_spells(int(count[at] - begins[at]), int(after[at]), float(chance[at])):
            count[at] = begins[at]
    return count


def episodes_of_larger(larger: Bools, events: Bools, independent: Ints) -> Ints:
    """Return the same of those `events` that are `larger`: in what is one episode, however many there are, they are
    one.

    `independent` is what `episodes` says of all of them.
    """
    count = episodes(larger)
    in_spells = np.flatnonzero(independent < events.sum(axis=0))
    if not len(in_spells):
        return count
    events, larger = events[:, in_spells], larger[:, in_spells]
    run = np.cumsum(events & ~np.concatenate((np.zeros_like(events[:1]), events[:-1])), axis=0)
    first = np.concatenate((np.zeros_like(run[:1]), np.maximum.accumulate(np.where(larger, run, 0), axis=0)[:-1]))
    count[in_spells] = (larger & (run > first)).sum(axis=0)
    return count
