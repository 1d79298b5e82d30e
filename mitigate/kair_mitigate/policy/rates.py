"""How long every unit computes for its samples: what the monitor learns from rows of steps and sizes.

A unit computes `fixed + slope * samples` seconds a step. Of one size alone the two cannot be told apart: the fixed part
counts as 0 until two sizes have been seen. It is kept as the number of samples that would last as long, because that
stays what it is when a unit gets slower as a whole.
"""

from dataclasses import dataclass

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints

WEIGHT = 0.3
"""The newest step's weight in the short window's exponential mean."""
LONG_WINDOW = 150
"""Steps of the long window."""
LEFT_OUT = 5
"""Steps from a plan's first one on that are not counted: there graphs are compiled, and caches filled."""
COMPARED = 5
"""Counted steps after a change of size that are compared with what was before it."""
_LEAST_CHANGE = 0.1
"""Sizes that differ by less, as a share, tell noise from the fixed part too badly."""
_KEPT_ESTIMATES = 5
"""A fixed part is the median of so many: one that a spell's begin or end has spoilt does not count."""
_OWN_CHANGE = 0.7
"""A unit's own estimate counts as much as that of all units together once its size has changed by this share: units run
one program, and a small change says less of one of them than all do of each."""
_GRID = np.concatenate(([0.0], np.geomspace(0.01, 20.0, 160)))
"""Fixed parts that are tried, as multiples of the mean unit's samples."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Seconds a step and seconds a sample of every unit; and of which units two sizes have been seen."""

    fixed_s: Floats
    slope_s: Floats
    two_sizes: Bools

    def times(self, samples: Ints) -> Floats:
        """Return the seconds each unit computes for so many samples."""
        result: Floats = self.fixed_s + self.slope_s * samples
        return result

    @property
    def fixed_samples(self) -> Floats:
        """The number of samples that would take a unit as long as its fixed part does."""
        result: Floats = self.fixed_s / np.maximum(self.slope_s, np.finfo(np.float64).tiny)
        return result


@dataclass(frozen=True, slots=True)
class Recorded:
    """Steps as they were: seconds of computing and samples (steps × units), and the rest of each step in seconds.

    Samples that are the same in all steps are one row (1 × units). The rest is the step's time less that of the unit
    that computed longest.
    """

    compute_s: Floats
    samples: Floats
    rest_s: Floats


class Rates:
    """What is known of the units' speeds, from one row of every step: it keeps 150 of them."""

    def __init__(self, units: int) -> None:
        # Each row stands twice, a window apart: whichever steps were last are rows in order, and no copies.
        self._compute = np.zeros((2 * LONG_WINDOW, units))
        self._samples = np.ones((2 * LONG_WINDOW, units))
        self._rest = np.zeros(2 * LONG_WINDOW)
        self._rows = 0
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
        """Steps counted since the units' sizes last changed."""
        return self._counted

    @property
    def rows(self) -> int:
        """Steps counted in all."""
        return self._rows

    @property
    def rest_s(self) -> float:
        """Seconds a step takes beyond its longest computing, by the short window."""
        return self._rest_level

    def add(self, step: int, compute_s: Floats, sizes: Ints, rest_s: float = 0.0, done: Ints | None = None) -> None:
        """Take in one step: every unit's seconds of computing, its planned samples, and those done if not all were.

        A unit of which nothing is known in this step has NaN seconds, or 0 samples.
        """
        if self._sizes is None:
            self._sizes, self._plan_from = sizes.copy(), step
        elif not np.array_equal(sizes, self._sizes):
            self._change_sizes(step, sizes)
        if step < self._plan_from + LEFT_OUT:
            return
        samples = (sizes if done is None else done).astype(np.float64)
        known = np.isfinite(compute_s) & (samples > 0)
        rows = self._rows % LONG_WINDOW + np.array([0, LONG_WINDOW])
        self._compute[rows] = np.where(known, compute_s, self._level)
        self._samples[rows] = np.where(known, samples, sizes)
        self._rest[rows] = rest_s
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
        """Return the units' times by the medians of the long window; None until that is full."""
        if self._rows >= LONG_WINDOW and self._lasting is None:
            window = self.recent(LONG_WINDOW)
            self._lasting = self._fit(_median_of_known(window.compute_s / (window.samples + self._fixed_samples)))
        return self._lasting

    def best(self) -> Fit | None:
        """Return the shortest times that a unit has kept to over a long window; None until there has been one."""
        if self._best is None:
            return None
        level, sizes = self._best
        return self._fit(level / (sizes + self._fixed_samples))

    def recent(self, steps: int) -> Recorded:
        """Return the last counted steps, at most so many and at most the long window, the oldest first.

        They are views, which the next `add` may change.
        """
        count = min(steps, LONG_WINDOW, self._rows)
        end = (self._rows - 1) % LONG_WINDOW + 1 + LONG_WINDOW
        rows = slice(end - count, end)
        samples = self._samples[rows]
        alike = bool((samples == samples[:1]).all())
        return Recorded(self._compute[rows], samples[:1] if alike else samples, self._rest[rows])

    def _fit(self, slope: Floats) -> Fit:
        return Fit(self._fixed_samples * slope, slope, self._two_sizes.copy())

    def _change_sizes(self, step: int, sizes: Ints) -> None:
        """Expect the units at their new sizes to take as long as the fit says, until steps of these are counted."""
        assert self._sizes is not None
        self._before = (self._level, self._sizes) if self._counted >= COMPARED else None
        fixed = self._fixed_samples
        self._level = self._level * (sizes + fixed) / np.maximum(self._sizes + fixed, 1.0)
        self._sizes, self._plan_from, self._counted = sizes.copy(), step, 0

    def _follow(self) -> None:
        """Move the short window's levels; of a new plan they are the mean of its steps while these are few.

        From the third step on the middle one of the last three counts: one long step is no change of speed.
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
        """Return the computing time of the last steps, as long as it would have been for all planned samples (steps ×
        units).
        """
        assert self._sizes is not None
        recent, fixed = self.recent(steps), self._fixed_samples
        result: Floats = recent.compute_s * ((self._sizes + fixed) / (recent.samples + fixed))
        return result

    def _compare_sizes(self, level: Floats, sizes: Ints) -> None:
        """Estimates the fixed part of those units whose size has changed enough, from before and after the change."""
        assert self._sizes is not None
        after = np.median(self._at_planned_sizes(COMPARED), axis=0)
        change = np.abs(self._sizes - sizes) / np.maximum(sizes, 1)
        units = np.flatnonzero((change >= _LEAST_CHANGE) & (sizes > 0) & (self._sizes > 0) & (level > 0) & (after > 0))
        if not len(units):
            return
        # How many times as long each unit takes, beside what a fixed part of so many samples would have it take.
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
        """Remembers the speeds of the long window that is now full where they are the best so far."""
        assert self._sizes is not None
        lasting, best = self.lasting(), self.best()
        assert lasting is not None
        slope = lasting.slope_s if best is None else np.minimum(lasting.slope_s, best.slope_s)
        self._best = slope * (self._sizes + self._fixed_samples), self._sizes
        rest = float(np.median(self._rest[:LONG_WINDOW]))
        self.best_rest_s = rest if self.best_rest_s is None else min(rest, self.best_rest_s)


def _median_of_known(values: Floats) -> Floats:
    """Return the median of each column's numbers, which come before its NaNs once sorted; every column has one.

    Of 150 rows and 2,048 columns this takes a quarter of the time of `np.median`.
    """
    ordered, known = np.sort(values, axis=0), np.isfinite(values).sum(axis=0)
    columns = np.arange(values.shape[1])
    result: Floats = (ordered[(known - 1) // 2, columns] + ordered[known // 2, columns]) / 2
    return result
