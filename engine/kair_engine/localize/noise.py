"""Measures a recording's own noise: how steps depend on one another, and what a mean over them is worth.

Slowness comes in spells: another process on the core, a thermal phase. Steps in a spell are one observation.
"""

import math
from collections.abc import Sequence

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints
from kair_engine.stats import MAD_TO_SIGMA, TRIM, binomial_tail, log_binomial, median, student_t_tail, trimmed_mean

MOST_CORRELATED = 0.6
"""Autocorrelation is taken for no more than this: short recordings could not tell anything beyond it."""
KNOWN_VALUES = 16
"""At this many steps × ranks half of the measured autocorrelation counts: few of them show little of it."""
FEWEST_TELLING = 8
"""Steps: of autocorrelation S of them show the part 1 − 3/S, which is not known so well of fewer."""
SURE = 0.02
"""A rank no slower than the smallest share is called surely slower with this chance."""
TOP_BY_CHANCE = 0.05
"""Level of the permutation test: the chance that some rank is on top this often, were ranks shuffled in each block."""
SETS_BY_CHANCE = 0.01
"""Level of the same test of sets of ranks, for which the sums of places are normal only roughly."""
ADJACENT_BY_CHANCE = 0.1
"""Events are adjacent if as many lie side by side with a lower chance than this, were steps independent."""
STEADY_PART, STEADY_STEPS = 0.25, 0.75
"""What is slow in every step shows this part of its mean excess in more than this share of the steps."""


def inflation(per_step: Floats) -> float:
    """By how much the variance of a mean over steps exceeds that of independent ones: (1 + ρ) / (1 − ρ).

    `per_step` is (steps × ranks). ρ is the median over ranks of the autocorrelation from one step to the next, the
    bias of short recordings put right ((1 + 3 ρ) / steps too low, Kendall 1954), shrunk where steps and ranks are few.
    """
    steps = len(per_step)
    if steps < 4:
        return 1.0
    # Ranks of a single large delay must not count by it: values are pulled in to where most are.
    centred = per_step - median(per_step, axis=0)
    reach = 3 * MAD_TO_SIGMA * median(np.abs(centred), axis=0)
    centred = np.clip(centred, -reach, reach)
    centred -= centred.mean(axis=0)
    squares = (centred**2).sum(axis=0)
    known = squares > 0
    if not known.any():
        return 1.0
    lagged = (centred[1:, known] * centred[:-1, known]).sum(axis=0) / squares[known]
    values = steps * int(np.count_nonzero(known))
    shown = 1 - 3 / steps if steps >= FEWEST_TELLING else 1.0
    rho = (float(median(lagged)) + 1 / steps) / shown * values / (values + KNOWN_VALUES)
    rho = min(max(rho, 0.0), MOST_CORRELATED)
    return float((1 + rho) / (1 - rho))


def noise_of_mean(per_step: Floats) -> float:
    """Standard error of a rank's mean over the steps (steps × ranks): the median rank's variance, inflated."""
    steps = len(per_step)
    if steps < 2:
        return 0.0
    return math.sqrt(float(median(per_step.var(axis=0, ddof=1))) * inflation(per_step) / steps)


def above_peers(per_step: Floats, at: int) -> Floats:
    """Per step, how far one of (steps × ranks) lies above the median of the others."""
    return np.asarray(per_step[:, at] - median(np.delete(per_step, at, axis=1), axis=1))


def beside_others(per_step: Floats) -> Floats:
    """How far each of (steps × ranks) lies above the median of the others, as `above_peers` of one; 0 of a lone rank.

    Of those in order, without one, the middle is a place further on where that one lies below it.
    """
    ranks = per_step.shape[1]
    if ranks < 2:
        return np.zeros_like(per_step)
    order = np.argsort(per_step, axis=1, kind="stable")
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.broadcast_to(np.arange(ranks), order.shape), axis=1)
    ordered = np.take_along_axis(per_step, order, axis=1)
    middles = [np.take_along_axis(ordered, at + (place <= at), axis=1) for at in ((ranks - 2) // 2, (ranks - 1) // 2)]
    return np.asarray(per_step - (middles[0] + middles[1]) / 2)


def surely_above(apart: Floats, least: float, inflated: float) -> bool:
    """Whether the trimmed mean of a rank's distances from its peers (steps) is surely above `least`.

    By Yuen's t: the variance is the winsorised one, steps count for less by `inflated`.
    """
    steps = len(apart)
    cut = int(steps * TRIM)
    kept = steps - 2 * cut
    ordered = np.sort(apart)
    winsorised = np.clip(apart, ordered[cut], ordered[steps - cut - 1])
    above = float(trimmed_mean(apart, TRIM)) - least
    if above <= 0 or steps < 2:
        return False
    error = math.sqrt(float(winsorised.var(ddof=1)) * inflated / steps) * steps / kept
    df = max(kept / inflated - 1, 1.0)
    return bool(error == 0 or student_t_tail(above / error, df) < SURE)


def steadily_above(apart: Floats, excess_ns: float, smallest_ns: float, inflated: float) -> bool:
    """Whether distances from peers (steps) show a good part of the mean excess in most steps, and surely exceed the
    smallest."""
    often = (apart > STEADY_PART * excess_ns).mean() > STEADY_STEPS
    return bool(often) and surely_above(apart, smallest_ns, inflated)


def mostly_above(apart: Floats, least: float, inflated: float) -> bool:
    """Whether a rank's distances from its peers (steps) lie above `least` in more steps than half are by chance.

    The sign test, over blocks of steps: it does not mind how much the distances differ from one another.
    """
    above = _means_of_blocks(apart, inflated) > least
    return binomial_tail(int(np.count_nonzero(above)), len(above), 0.5) < SURE


def without_trend(per_step: Floats) -> Floats:
    """Values (steps × ranks) less the straight line through each rank's: what grows or fades all along is no spell."""
    time = np.arange(len(per_step)) - (len(per_step) - 1) / 2
    return np.asarray(per_step - np.outer(time, (time @ per_step) / max(float(time @ time), 1.0)))


def on_top_by_chance(per_step: Floats, places: Sequence[int], inflated: float) -> float:
    """Chance that some ranks lie above their peers (steps × ranks) as often and as far up as those at `places`.

    Ranks may change places within blocks of steps, as healthy ones may, whatever their noise: the sum over blocks of
    the ranks' places among all, against places drawn at random; exact for one rank, by the rank sum's normal for more
    (Wilcoxon). Blocks are as long as steps depend on one another. Corrected for the number of such sets.
    """
    ranks, size = per_step.shape[1], len(places)
    means = _means_of_blocks(per_step, inflated)
    blocks = len(means)
    reached = float(places_among(means)[:, list(places)].sum())
    if size == 1:
        return min(1.0, float(ranks) * _sum_of_places(math.floor(reached), blocks, ranks))
    mean, variance = blocks * size * (ranks - 1) / 2, blocks * size * (ranks - size) * (ranks + 1) / 12
    tail = 0.5 * math.erfc((reached - 0.5 - mean) / math.sqrt(2 * variance))
    return min(1.0, math.exp(min(log_binomial(ranks, size), 700.0)) * tail)


def steady_by_chance(per_step: Floats, at: int, least_ns: float) -> float:
    """Chance of the rank's places among its peers (steps × ranks); 1 where it is not surely so far above them."""
    inflated = inflation(per_step)
    if not surely_above(above_peers(per_step, at), least_ns, inflated):
        return 1.0
    return on_top_by_chance(per_step, (at,), inflated)


def places_among(per_step: Floats) -> Floats:
    """(steps × ranks): how many of the ranks lie below each in that step; of equal ones half do."""
    result = np.empty(per_step.shape)
    for row, values in zip(result, per_step, strict=True):
        ordered = np.sort(values)
        row[:] = (np.searchsorted(ordered, values) + np.searchsorted(ordered, values, side="right") - 1) / 2
    return result


def _means_of_blocks(per_step: Floats, inflated: float) -> Floats:
    """Of steps (the first axis) put together for as long as they depend on one another."""
    steps = len(per_step)
    blocks = max(round(steps / max(round(inflated), 1)), 1)
    if blocks == steps:
        return per_step
    return np.stack([part.mean(axis=0) for part in np.array_split(per_step, blocks)])


def _sum_of_places(reached: int, blocks: int, ranks: int) -> float:
    """P(sum of `blocks` places, each uniform in 0 … ranks − 1, ≥ reached)."""
    most = blocks * (ranks - 1)
    if blocks * ranks > 4000:
        mean, deviation = most / 2, math.sqrt(blocks * (ranks**2 - 1) / 12)
        return 0.5 * math.erfc((reached - 0.5 - mean) / deviation / math.sqrt(2))
    chances = _of_sum(np.full(ranks, 1 / ranks), blocks)
    return min(1.0, float(chances[max(reached, 0) :].sum())) if reached <= most else 0.0


def episodes(events: Bools) -> Ints:
    """Per rank, how many independent events there are in `events` (steps × ranks).

    Those side by side count once where there are more of them than chance brings about, on that rank or on all.
    """
    steps = len(events)
    count = events.sum(axis=0)
    begins = events[:1].sum(axis=0) + (events[1:] & ~events[:-1]).sum(axis=0)
    after = np.maximum(count - 1, 0)
    chance = np.minimum(after / max(steps - 1, 1), 1.0)

    def in_spells(side_by_side: int, trials: int, rate: float) -> bool:
        return side_by_side > 0 and binomial_tail(side_by_side, trials, rate) < ADJACENT_BY_CHANCE

    trials = int(after.sum())
    if trials and in_spells(int((count - begins).sum()), trials, float((after * chance).sum() / trials)):
        return np.asarray(begins)
    alone = [
        in_spells(int(k - begun), int(k - 1), float(rate)) for k, begun, rate in zip(count, begins, chance, strict=True)
    ]
    return np.asarray(np.where(alone, begins, count))


def episodes_of_larger(larger: Bools, events: Bools, independent: Ints) -> Ints:
    """The same of those `events` that are `larger`: in what is one episode, however many there are, they are one.

    `independent` is what `episodes` says of all of them.
    """
    run = np.cumsum(events & ~np.concatenate((np.zeros_like(events[:1]), events[:-1])), axis=0)
    first = np.concatenate((np.zeros_like(run[:1]), np.maximum.accumulate(np.where(larger, run, 0), axis=0)[:-1]))
    runs = (larger & (run > first)).sum(axis=0)
    return np.asarray(np.where(independent < events.sum(axis=0), runs, episodes(larger)))


def _of_sum(chances: Floats, times: int) -> Floats:
    """Distribution of the sum of so many independent draws: squares and products, as a power is worked out."""
    if times == 1:
        return chances
    half = _of_sum(chances, times // 2)
    whole = np.convolve(half, half)
    return np.convolve(whole, chances) if times % 2 else whole
