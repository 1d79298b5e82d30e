"""Divides the global batch over units so that the slowest takes as little time as possible.

A unit can be resized alone: a rank under DDP, a whole replica under tensor or pipeline parallelism.
"""

from collections.abc import Callable

import numpy as np

from kair_engine.arrays import Floats, Ints

_HALVINGS = 60
"""Halvings after which an interval is below float precision."""
_LEAST_SLOPE_S = 1e-30
"""Replaces a slope of 0, which capacities are divided by."""
_SLACK = 1e-9
"""Margin on the longest time to try, so that rounding takes no sample from full units."""


def split(fixed_s: Floats, slope_s: Floats, batch: int, lowest: Ints, highest: Ints) -> Ints:
    """Return the samples per unit that minimise `max(fixed_s + slope_s * samples)`, exactly `batch` in total.

    Arrays have one entry per unit: seconds per step, seconds per sample, and bounds in samples. Raises ValueError if
    the batch does not fit the bounds.
    """
    fixed, slope, low, high = _checked(fixed_s, slope_s, batch, lowest, highest)
    slope = np.maximum(slope, _LEAST_SLOPE_S)

    def capacity(time_s: float) -> Floats:
        return (time_s - fixed) / slope

    def times(samples: Floats) -> Floats:
        return fixed + slope * samples

    least_s = least_time(fixed, slope, batch)
    # Whole samples last at most one sample longer, but where units are full.
    return _balanced(capacity, times, batch, low, high, between=(least_s * (1 - _SLACK), least_s + float(slope.max())))


def least_time(fixed_s: Floats, slope_s: Floats, batch: int) -> float:
    """Return the seconds that the slowest unit takes at least, however the batch is divided, in parts of samples too.

    Arrays have one entry per unit: seconds per step and per sample.
    """
    speed = 1 / np.maximum(slope_s, _LEAST_SLOPE_S)
    return float((batch + (fixed_s * speed).sum()) / speed.sum())


def split_in_micro_batches(
    fixed_s: Floats, slope_s: Floats, batch: int, lowest: Ints, largest: Ints, *, most: int
) -> tuple[Ints, Ints]:
    """Return samples and micro-batches per unit that minimise `max(micro * fixed_s + slope_s * samples)`.

    A unit takes at least `lowest` samples in 1 to `most` micro-batches of at most `largest` samples, as few as
    possible; each micro-batch costs `fixed_s`. Raises ValueError if the batch does not fit the bounds.
    """
    fixed, slope, low, high = _checked(fixed_s, slope_s, batch, lowest, np.asarray(largest) * most)
    slope = np.maximum(slope, _LEAST_SLOPE_S)
    size = np.maximum(np.asarray(largest, dtype=np.float64), 1.0)
    full_s = fixed + slope * size

    def capacity(time_s: float) -> Floats:
        full = np.clip(np.floor(time_s / full_s), 0, most)
        result: Floats = full * size + np.clip(np.floor((time_s - full * full_s - fixed) / slope), 0, size)
        return result

    def times(samples: Floats) -> Floats:
        return np.maximum(np.ceil(samples / size), 1.0) * fixed + slope * samples

    samples = _balanced(capacity, times, batch, low, high)
    micro_batches: Ints = np.maximum(np.ceil(samples / size), 1.0).astype(np.int64)
    return samples, micro_batches


def half_way(now: Ints, wanted: Ints) -> Ints:
    """Return the sizes halfway between two plans with the same sum, which is kept; halves are rounded towards `wanted`.

    Raises ValueError if the sums differ.
    """
    if now.sum() != wanted.sum():
        raise ValueError(f"the plans differ in their sums, {now.sum()} and {wanted.sum()}")
    twice = now + wanted
    result: Ints = twice // 2
    halves = np.flatnonzero(twice % 2)
    # Those that grow most come first: as many are rounded up as down, so that the sum stays.
    order = np.argsort((now - wanted)[halves], kind="stable")
    result[halves[order[: len(halves) // 2]]] += 1
    return result


def _checked(
    fixed_s: Floats, slope_s: Floats, batch: int, lowest: Ints, highest: Ints
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return the arguments as arrays of floats. Raises ValueError if no plan is possible."""
    fixed, slope, low, high = (np.asarray(one, dtype=np.float64) for one in (fixed_s, slope_s, lowest, highest))
    if not len(fixed) or not (fixed.shape == slope.shape == low.shape == high.shape):
        raise ValueError("every unit needs a fixed part, a slope, a lowest and a highest number of samples")
    if not (np.isfinite(fixed).all() and np.isfinite(slope).all() and fixed.min() >= 0 and slope.min() >= 0):
        raise ValueError("the units' times must be finite, and none below 0")
    if low.min() < 0 or (low > high).any():
        raise ValueError("a unit's lowest number of samples must be from 0 to its highest")
    if not low.sum() <= batch <= high.sum():
        raise ValueError(
            f"a batch of {batch} does not fit: together the units take {low.sum():.0f} to {high.sum():.0f} samples"
        )
    return fixed, slope, low, np.minimum(high, batch)


def _balanced(
    capacity: Callable[[float], Floats],
    times: Callable[[Floats], Floats],
    batch: int,
    low: Floats,
    high: Floats,
    *,
    between: tuple[float, float] | None = None,
) -> Ints:
    """Return the samples per unit at the shortest time in which the units' capacities hold the batch.

    It is not below the first of `between`, and seldom above the second.
    """

    def held(time_s: float) -> Floats:
        # No unit takes fewer than its lowest number, however long that lasts.
        return np.minimum(np.maximum(np.floor(capacity(time_s)), low), high)

    too_short, enough = 0.0, float(times(high).max()) * (1 + _SLACK)
    middle = enough / 2
    if between is not None:
        too_short, middle = between
    samples = held(enough)
    for _ in range(_HALVINGS):
        tried = held(middle)
        excess = tried.sum() - batch
        if excess < 0:
            too_short = middle
        else:
            enough, samples = middle, tried
        if excess == 0:
            # A shorter time cannot hold the same whole samples.
            break
        middle = (too_short + enough) / 2
    result: Ints = _without_surplus(samples, times, batch, low).astype(np.int64)
    return result


def _without_surplus(samples: Floats, times: Callable[[Floats], Floats], batch: int, low: Floats) -> Floats:
    """Take the surplus from the slowest units, repeatedly until none is left.

    Once is not enough if all that may shrink would have to give more than they have above their lowest.
    """
    samples = samples.copy()
    surplus = samples.sum() - batch
    while surplus > 0:
        order = np.argsort(-times(samples), kind="stable")
        spare = (samples - low)[order]
        each = np.minimum(spare, np.ceil(surplus / np.count_nonzero(spare)))
        given = np.clip(surplus - (np.cumsum(each) - each), 0, each)
        samples[order] -= given
        surplus -= given.sum()
    return samples
