"""The few distributions and robust estimators the methods need.

scipy.special would bring Student's t, at 200 ms of start-up against the 300 ms that `kair localize` takes in
all; the tail here agrees with it to 1e-10 relative (held by a test).

One rate for all steps in which something was sent.
"""

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kair_engine.arrays import Floats, Ints, order_by, present

TRIM = 0.2
_TINY = 1e-300
MAD_TO_SIGMA = 1.4826
"""The standard deviation of a normal distribution over its median absolute deviation."""
_Z = 1.959964
"""95 % of a normal distribution lie within so many standard deviations."""


def trimmed_mean(values: Floats, proportion: float, axis: int = 0) -> Floats:
    """Mean along `axis` without the `proportion` largest and the `proportion` smallest values."""
    ordered = np.sort(values, axis=axis)
    length = ordered.shape[axis]
    cut = int(length * proportion)
    kept = ordered[(*[slice(None)] * (axis % ordered.ndim), slice(cut, length - cut))]
    return np.asarray(np.ascontiguousarray(kept).mean(axis=axis))


def median_of_others(values: Floats, axis: int = 0) -> Floats:
    """For each value the median of all others along `axis`, in the shape of `values`; NaN for a single one.

    They are sorted once for all: what comes after a value itself moves up by one place when that is left out. Of equal
    ones it is the same which is left out.
    """
    count = values.shape[axis]
    if count < 2:
        return np.full(values.shape, np.nan)
    values = np.moveaxis(values, axis, 0)
    ordered = np.sort(values, axis=0)
    low, high = ((count - 2) // 2, (count - 1) // 2)
    of = [np.where(values <= ordered[at], ordered[at + 1], ordered[at]) for at in (low, high)]
    return np.asarray(np.moveaxis((of[0] + of[1]) / 2, 0, axis))


def median(values: Floats, axis: int | None = -1) -> Floats:
    """Median along `axis` (None: of all) of values without NaN: NumPy's takes several times as long."""
    # What lies side by side is sorted five times as fast.
    if axis is None:
        ordered = values.ravel()
    elif axis in (-1, values.ndim - 1):
        ordered = values
    else:
        ordered = values.T if values.ndim == 2 else np.moveaxis(values, axis, -1)
    ordered = ordered.copy(order="C")
    middle = ordered.shape[-1] // 2
    # All that comes before the middle one is no larger: to find both takes a third of sorting.
    ordered.partition(middle)
    below = ordered[..., middle] if ordered.shape[-1] % 2 else ordered[..., :middle].max(axis=-1)
    return np.asarray((below + ordered[..., middle]) / 2)


def columns_sorted(values: Floats) -> Floats:
    """Each column of a matrix in order, which takes `np.sort` twice as long where rows lie side by side."""
    if values.flags.f_contiguous or values.strides[0] == values.itemsize:
        return np.sort(values, axis=0)
    turned = values.T.copy(order="C")
    turned.sort()
    return turned.T.copy(order="C")


def middle_of_sorted(ordered: Floats) -> Floats:
    """Each column's median."""
    return np.asarray((ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2)


def mad_of_sorted(ordered: Floats) -> Floats:
    """Each column's median absolute deviation from its median: those that lie within are side by side."""
    count, middle = len(ordered), middle_of_sorted(ordered)

    def within(some: int) -> Floats:
        below, above = middle - ordered[: count - some + 1], ordered[some - 1 :] - middle
        return np.asarray(np.maximum(below, above, out=below).min(axis=0))

    nearest = within(count // 2 + 1)
    return nearest if count % 2 else (within(count // 2) + nearest) / 2


def known_median(values: Floats) -> Floats:
    """Each column's median of what is not NaN; NaN for a column of nothing else. NumPy's goes by masked arrays."""
    if not len(values):
        return np.full(values.shape[1], np.nan)
    ordered = columns_sorted(values)  # what is NaN comes last
    if not np.isnan(ordered[-1]).any():
        return middle_of_sorted(ordered)
    count = np.count_nonzero(~np.isnan(ordered), axis=0)
    column = np.arange(values.shape[1])
    return np.asarray((ordered[(count - 1) // 2, column] + ordered[count // 2, column]) / 2)


def role_medians(values: npt.NDArray[Any], role: Ints) -> Floats:
    """Per rank (the last axis of `values`) the median of its role, which is a code per rank."""
    result = np.empty(values.shape)
    codes = present(role)
    if len(codes) == 1:
        result[:] = median(values)[..., None]
        return result
    for code in codes:
        members = np.flatnonzero(role == code)
        result[..., members] = median(values.take(members, axis=-1))[..., None]
    return result


def beyond_role(values: Floats, role: Ints) -> Floats:
    """Return by how much the values lie above the median of their role; of what no rank has, zeros that take no memory.

    They are not to be written to.
    """
    if not values.any():
        return np.broadcast_to(np.zeros(1), values.shape)
    usual = role_medians(values, role)
    return np.subtract(values, usual, out=usual)


def known_role_medians(values: Floats, role: Ints) -> Floats:
    """Return the same of (rows × ranks) with NaN for what is not known: the median of the others; NaN without any."""
    result = np.zeros(values.shape)
    for code in present(role):
        members = role == code
        result[:, members] = known_median(values[:, members].T)[:, None]
    return result


def median_by(cell: Ints, values: Floats) -> Floats:
    """For each value the median of those with the same cell number."""
    order = order_by(cell)
    ordered = cell[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1]))) if len(order) else order
    sizes = np.diff(np.concatenate((starts, [len(ordered)])))
    result = np.empty(len(values))
    # Cells of one size are sorted together: there are few sizes.
    for size in present(sizes).tolist():
        members = order[starts[sizes == size][:, None] + np.arange(size)]
        by_value = np.sort(values[members], axis=1)
        result[members] = (by_value[:, [(size - 1) // 2]] + by_value[:, [size // 2]]) / 2
    return result


def mad(values: Floats) -> float:
    """Median absolute deviation from the median."""
    return float(median(np.abs(values - median(values)))) if len(values) else 0.0


def student_t_tail(t: float, df: float) -> float:
    """P(T > t) for Student's t with `df` degrees of freedom, by the regularised incomplete beta function."""
    if df <= 0 or math.isnan(t):
        return 1.0
    if abs(t) < 1:  # df / (df + t²) is too close to 1 to hold a small t
        tail = 0.5 * (1 - _regularised_beta(t * t / (df + t * t), 0.5, df / 2))
    else:
        tail = 0.5 * _regularised_beta(df / (df + t * t), df / 2, 0.5)
    return tail if t > 0 else 1 - tail


def binomial_tail(k: int, n: int, p: float) -> float:
    """P(Bin(n, p) ≥ k)."""
    if k <= 0:
        return 1.0
    # By the beta function: with a thousand events the binomial coefficients leave the floats.
    return _regularised_beta(p, k, n - k + 1) if k <= n else 0.0


def fisher_tail(k: int, drawn: int, marked: int, total: int) -> float:
    """Return P(at least k of those drawn are marked), without replacement: Fisher's exact test, one-sided."""
    every = log_binomial(total, drawn)
    hits = range(max(k, drawn + marked - total), min(drawn, marked) + 1)
    return sum(math.exp(log_binomial(marked, hit) + log_binomial(total - marked, drawn - hit) - every) for hit in hits)


def beta_binomial_tail(k: int, n: int, a: float, b: float) -> float:
    """P(X ≥ k) of n trials whose probability is itself Beta(a, b) distributed."""
    least = max(k, 0)
    if least > n:
        return 0.0
    first = log_binomial(n, least) + log_beta(a + least, b + n - least) - log_beta(a, b)
    # Each term by the one before it.
    at = np.arange(least, n)
    ratios = (n - at) / (at + 1) * (a + at) / (b + n - at - 1)
    return min(1.0, math.exp(first) + float(np.exp(first + np.cumsum(np.log(ratios))).sum()))


def wilson(hits: int, trials: int) -> tuple[float, float]:
    """Return the 95 % interval of a share by Wilson's formula; (0, 1) without trials."""
    if not trials:
        return 0.0, 1.0
    share, z2 = hits / trials, _Z**2
    middle = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = _Z / (1 + z2 / trials) * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def log_beta(a: float, b: float) -> float:
    """ln B(a, b)."""
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def log_binomial(n: int, k: int) -> float:
    """ln of n over k."""
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def benjamini_hochberg(p_values: Floats, tests: int | None = None) -> Floats:
    """Return adjusted p-values that bound the false discovery rate over `tests` tests (default: the given ones)."""
    count = len(p_values)
    if count == 0:
        return p_values
    order = np.argsort(p_values)
    scaled = p_values[order] * (tests or count) / np.arange(1, count + 1)
    adjusted = np.minimum.accumulate(scaled[::-1])[::-1]
    result = np.empty(count)
    result[order] = np.minimum(adjusted, 1.0)
    return result


def _regularised_beta(x: float, a: float, b: float) -> float:
    if x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x > (a + 1) / (a + b + 2):
        return 1 - front * _beta_fraction(1 - x, b, a) / b
    return front * _beta_fraction(x, a, b) / a


def _beta_fraction(x: float, a: float, b: float) -> float:
    """Lentz's evaluation of the continued fraction of the incomplete beta function (DLMF 8.17.22)."""
    c, d = 1.0, 1.0 / ((1 - (a + b) * x / (a + 1)) or _TINY)
    value = d
    for m in range(1, 300):
        at = a + 2 * m
        even = m * (b - m) * x / ((at - 1) * at)
        odd = -(a + m) * (a + b + m) * x / (at * (at + 1))
        for coefficient in (even, odd):
            d = 1 / ((1 + coefficient * d) or _TINY)
            c = (1 + coefficient / c) or _TINY
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value


FEW_STEPS: Final = 8
"""Fewer steps may all have been slow by chance, as what waits for a receiver is."""
UPPER: Final = 0.75
"""Of few steps: as fast as in so many of them at most."""


def usual_rate(rates: Sequence[float], steps: Sequence[float]) -> float:
    """Return the median of `rates`, each of so many `steps`; of fewer than FEW_STEPS in all the upper quartile.

    What is sent to somebody who does not read yet goes slowly now and then on any network.
    """
    return reached(rates, steps, UPPER if sum(steps) < FEW_STEPS else 0.5)


def reached(values: Sequence[float], weights: Sequence[float], share: float) -> float:
    """Return the least value such that more than `share` of the weight lies at or below it."""
    left = share * sum(weights)
    for value, weight in sorted(zip(values, weights, strict=True)):
        left -= weight
        if left < 0:
            return value
    return max(values)  # what rounding left over


def last_reported(values: Floats) -> Floats:
    """Return the matrix (steps × ranks) with zeros replaced by the rank's last value; before its first, by that."""
    at = np.where(values > 0, np.arange(len(values))[:, None], -1)
    first = np.argmax(values > 0, axis=0)
    return np.asarray(np.take_along_axis(values, np.maximum(np.maximum.accumulate(at, axis=0), first), axis=0))
