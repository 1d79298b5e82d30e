"""Learns how long each unit computes for its samples, from rows of steps and sizes.

A unit computes `fixed + slope * samples` seconds per step. One size alone cannot separate the two: the fixed part
counts as 0 until two sizes have been seen. It is stored as a number of samples of equal duration, because that does not
change when the unit slows down as a whole.
"""

from dataclasses import dataclass

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints

WEIGHT = 0.3
"""Weight of the newest step in the short window's exponential mean."""
LONG_WINDOW = 150
"""Steps of the long window."""
LEFT_OUT = 5
"""First steps of a plan that are not counted: graphs compile and caches fill."""
COMPARED = 5
"""Counted steps after a change of size that are compared with those before it."""
_LEAST_CHANGE = 0.1
"""Sizes that differ by a smaller share separate noise and fixed part too poorly."""
_KEPT_ESTIMATES = 5
"""Estimates of a fixed part, whose median is used: it ignores one spoilt by the begin or end of a spell."""
_OWN_CHANGE = 0.7
"""Change of a unit's size, as a share, at which its own estimate weighs as much as that of all units: units run one
program, and small changes are informative only in sum.
"""
_GRID = np.concatenate(([0.0], np.geomspace(0.01, 20.0, 160)))
"""Candidates for fixed parts, as multiples of the mean unit's samples."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Seconds per step and per sample of every unit, and whether it has been seen with two sizes."""

    fixed_s: Floats
    slope_s: Floats
    two_sizes: Bools

    def times(self, samples: Ints) -> Floats:
        """Return the seconds each unit computes for this many samples."""
        result: Floats = self.fixed_s + self.slope_s * samples
        return result

    @property
    def fixed_samples(self) -> Floats:
        """Return the samples that take a unit as long as its fixed part."""
        result: Floats = self.fixed_s / np.maximum(self.slope_s, np.finfo(np.float64).tiny)
        return result


@dataclass(frozen=True, slots=True)
class Recorded:
    """Recorded steps: seconds of computing and samples (steps × units), and the remaining seconds of each step.

    Samples that are equal in all steps are one row (1 × units). The remaining time is the step's time minus the longest
    computing.
    """

    compute_s: Floats
    samples: Floats
    rest_s: Floats


class Rates:
    """Knowledge of the units' speeds, from one row per step; it keeps 150 rows."""

    def __init__(self, units: int) -> None:
        # Each row is stored twice, a window apart, so that the last steps are always contiguous and need no copy.
        self._compute = np.zeros((2 * LONG_WINDOW, units))
        self._samples = np.ones((2 * LONG_WINDOW, units))
        self._rest = np.zeros(2 * LONG_WINDOW)
        self._rows = 0
        # How many of the last rows have the same samples.
        self._alike = 0
        self._sizes: Ints | None = None
        self._plan_from = -LEFT_OUT
        self._counted = 0
        self._level = np.zeros(units)
        self._fixed_samples = np.zeros(units)
        self._before: tuple[Floats, Ints] | None = None
        self._estimates = np.full((_KEPT_ESTIMATES, units), np.nan)
        self._estimated = 0
        self._changed = np.zeros(units)
        self._two_sizes = np.zeros(units, dtype=np.bool_)
        self._rest_level = 0.0
        self._lasting: Fit | None = None
        self._best: tuple[Floats, Ints] | None = None
        self.best_rest_s: float | None = None

    @property
    def counted(self) -> int:
        """Return the steps counted since sizes last changed."""
        return self._counted

    @property
    def rows(self) -> int:
        """Return all steps counted."""
        return self._rows

    @property
    def rest_s(self) -> float:
        """Return the seconds of a step beyond its longest computing, by the short window."""
        return self._rest_level

    def add(self, step: int, compute_s: Floats, sizes: Ints, rest_s: float = 0.0, done: Ints | None = None) -> None:
        """Add one step: each unit's seconds of computing, its planned samples, and those done if not all were.

        A unit without data in this step has NaN seconds, or 0 samples.
        """
        if self._sizes is None:
            self._sizes, self._plan_from = sizes.copy(), step
        elif not np.array_equal(sizes, self._sizes):
            self._change_sizes(step, sizes)
        if step < self._plan_from + LEFT_OUT:
            return
        samples = (sizes if done is None else done).astype(np.float64)
        known = np.isfinite(compute_s) & (samples > 0)
        row, before = self._rows % LONG_WINDOW, self._samples[(self._rows - 1) % LONG_WINDOW]
        if not known.all():
            compute_s, samples = np.where(known, compute_s, self._level), np.where(known, samples, sizes)
        self._alike = self._alike + 1 if np.array_equal(samples, before) else 1
        for at in (row, row + LONG_WINDOW):
            self._compute[at], self._samples[at], self._rest[at] = compute_s, samples, rest_s
        self._rows += 1
        self._counted += 1
        self._lasting = None
        self._follow()
        if self._counted == COMPARED and self._before is not None:
            self._compare_sizes(*self._before)
        if self._rows % LONG_WINDOW == 0:
            self._keep_best()

    def fitted(self) -> Fit:
        """Return the units' times by the short window."""
        sizes = np.ones(len(self._level), dtype=np.int64) if self._sizes is None else self._sizes
        return self._fit(self._level / np.maximum(sizes + self._fixed_samples, 1.0))

    def lasting(self) -> Fit | None:
        """Return the units' times by the medians of the long window; None until it is full."""
        if self._rows >= LONG_WINDOW and self._lasting is None:
            window = self.recent(LONG_WINDOW)
            self._lasting = self._fit(_median_of_known(window.compute_s / (window.samples + self._fixed_samples)))
        return self._lasting

    def best(self) -> Fit | None:
        """Return the shortest times that each unit has kept over a long window; None before the first."""
        if self._best is None:
            return None
        level, sizes = self._best
        return self._fit(level / (sizes + self._fixed_samples))

    def recent(self, steps: int) -> Recorded:
        """Return the last counted steps, oldest first, at most `steps` and at most the long window.

        They are views, which the next `add` may change.
        """
        count = min(steps, LONG_WINDOW, self._rows)
        end = (self._rows - 1) % LONG_WINDOW + 1 + LONG_WINDOW
        rows = slice(end - count, end)
        samples = self._samples[rows]
        return Recorded(self._compute[rows], samples[:1] if count <= self._alike else samples, self._rest[rows])

    def _fit(self, slope: Floats) -> Fit:
        return Fit(self._fixed_samples * slope, slope, self._two_sizes.copy())

    def _change_sizes(self, step: int, sizes: Ints) -> None:
        """Scale the units' levels to the new sizes by the fit, until steps with these are counted."""
        assert self._sizes is not None
        self._before = (self._level, self._sizes) if self._counted >= COMPARED else None
        fixed = self._fixed_samples
        self._level = self._level * (sizes + fixed) / np.maximum(self._sizes + fixed, 1.0)
        self._sizes, self._plan_from, self._counted = sizes.copy(), step, 0

    def _follow(self) -> None:
        """Update the short window's levels; for a new plan, they are the mean of its first steps.

        From the third step on, the median of the last three counts: one long step is no change of speed.
        """
        weight = max(WEIGHT, 1 / self._counted)
        last = self._at_planned_sizes(min(self._counted, 3))
        if len(last) == 3:
            first, second, third = last
            middle = np.maximum(np.minimum(first, second), np.minimum(np.maximum(first, second), third))
        else:
            middle = last[-1]
        self._level = self._level + weight * (middle - self._level)
        rest = sorted(self.recent(min(self._counted, 3)).rest_s)[min(self._counted, 3) // 2]
        self._rest_level += max(WEIGHT, 1 / self._rows) * (rest - self._rest_level)

    def _at_planned_sizes(self, steps: int) -> Floats:
        """Return the computing time of the last steps, scaled to all planned samples (steps × units)."""
        assert self._sizes is not None
        recent, fixed = self.recent(steps), self._fixed_samples
        result: Floats = recent.compute_s * ((self._sizes + fixed) / (recent.samples + fixed))
        return result

    def _compare_sizes(self, level: Floats, sizes: Ints) -> None:
        """Estimate the fixed part of units whose size has changed enough, from steps before and after the change."""
        assert self._sizes is not None
        after = np.median(self._at_planned_sizes(COMPARED), axis=0)
        change = np.abs(self._sizes - sizes) / np.maximum(sizes, 1)
        units = np.flatnonzero((change >= _LEAST_CHANGE) & (sizes > 0) & (self._sizes > 0) & (level > 0) & (after > 0))
        if not len(units):
            return
        # Compare each unit's measured ratio of times with the ratio that each candidate would give.
        tried = _GRID[:, None] * sizes.mean()
        expected = np.log((self._sizes[units] + tried) / (sizes[units] + tried))
        away = (expected - np.log(after[units] / level[units])) ** 2
        own, of_all = tried[away.argmin(axis=0), 0], tried[away.sum(axis=1).argmin(), 0]
        self._changed[units] += change[units] ** 2
        share = self._changed[units] / (self._changed[units] + _OWN_CHANGE**2)
        self._estimates[self._estimated % _KEPT_ESTIMATES] = of_all
        self._estimates[self._estimated % _KEPT_ESTIMATES, units] = share * own + (1 - share) * of_all
        self._estimated += 1
        self._two_sizes[units] = True
        self._fixed_samples = _median_of_known(self._estimates)

    def _keep_best(self) -> None:
        """Keep the speeds of the now full long window where they are the best so far."""
        assert self._sizes is not None
        lasting, best = self.lasting(), self.best()
        assert lasting is not None
        slope = lasting.slope_s if best is None else np.minimum(lasting.slope_s, best.slope_s)
        self._best = slope * (self._sizes + self._fixed_samples), self._sizes
        rest = float(np.median(self._rest[:LONG_WINDOW]))
        self.best_rest_s = rest if self.best_rest_s is None else min(rest, self.best_rest_s)


def _median_of_known(values: Floats) -> Floats:
    """Return the median of each column's numbers, ignoring NaN; every column must have a number.

    For 150 rows and 2,048 columns this takes a quarter of the time of `np.median`.
    """
    ordered, known = np.sort(values, axis=0), np.isfinite(values).sum(axis=0)
    columns = np.arange(values.shape[1])
    result: Floats = (ordered[(known - 1) // 2, columns] + ordered[known // 2, columns]) / 2
    return result
