"""How much a step grows when a rank, or all others, are delayed: per-step levels, and a regression.

docs/mitigation.md has the formulas.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from kair_engine.arrays import Bools, Floats, Ints
from kair_engine.ranks import Rank
from kair_engine.results.confirm import DelayedArm, DelayEffect, DelayPlace
from kair_engine.stats import mad, median, student_t_tail

NEAREST_FREE: Final = 25
"""Free steps whose median is the level of a step; free: neither it nor the one before was delayed."""
FEWEST_FREE: Final = 10
"""Below so many there is no level."""
CLIPPED_AT: Final = 4.5
"""Median absolute deviations, about three standard deviations of normal noise."""
LAGS: Final = 5
"""Of the Newey-West intervals."""
ARMS: Final[tuple[DelayedArm, ...]] = ("accused", "others", "all")
SHOWN_ERROR: Final = 0.05
"""Of the intervals that are shown."""
_Value = TypeVar("_Value", bound=np.generic)


@dataclass(frozen=True)
class Recorded:
    """What steps of a job took while an order was followed. Raises ValueError for what does not fit together.

    All arrays are ranks × steps, in microseconds, of steps that follow one another; NaN for what was not recorded.
    """

    ranks: tuple[Rank, ...]
    ends_us: Floats
    """When each rank ended each step. Each rank may have another clock."""
    self_us: Floats
    """What each rank spent itself, with its delay, and without any wait that a delay can change."""
    planned_us: Floats
    """The dose that the order has for each."""
    dose_us: Floats
    """The delay that was measured; 0 where there was none."""
    accused: tuple[Rank, ...]
    """Empty where nobody is."""
    left_out: Bools = field(default_factory=lambda: np.zeros(0, dtype=bool))
    """Per step, whether it does not count: profiled, skipped, stopped. Empty: all do."""

    def __post_init__(self) -> None:
        shape = self.ends_us.shape
        if len(self.ranks) < 2 or len(shape) != 2 or shape[0] != len(self.ranks) or shape[1] < 2:
            raise ValueError("confirm needs two steps of two ranks, or more")
        if any(one.shape != shape for one in (self.self_us, self.planned_us, self.dose_us)):
            raise ValueError("ends, self times and doses must be of the same ranks and steps")
        if not (np.isfinite(self.planned_us) & (self.planned_us >= 0)).all():
            raise ValueError("the planned doses must be numbers of 0 or more")
        if len(self.left_out) not in (0, shape[1]):
            raise ValueError("left_out must be empty or have a value for each step")
        if not set(self.accused) < set(self.ranks):
            raise ValueError("the accused must be some of the ranks, and not all")

    def first(self, steps: int) -> "Recorded":
        """Return the same of the first steps alone."""
        fewer: dict[str, Any] = {name: of[..., :steps] for name, of in vars(self).items() if isinstance(of, np.ndarray)}
        return replace(self, **fewer)

    @property
    def asked_us(self) -> float:
        """The dose, of a sweep the largest; 0 where no step is to be delayed."""
        return float(self.planned_us.max())


def arms_of(recorded: Recorded) -> Ints:
    """Per step, the place in ARMS of who was to be delayed; -1 for nobody, -2 for any others."""
    planned = recorded.planned_us > 0
    accused = np.isin(recorded.ranks, recorded.accused)
    arms = np.full(planned.shape[1], -2)
    for at, who in enumerate((accused, ~accused, np.ones(len(planned), dtype=bool))):
        arms[(planned == who[:, None]).all(axis=0)] = at
    arms[~planned.any(axis=0)] = -1
    return arms


def before(values: npt.NDArray[_Value]) -> npt.NDArray[_Value]:
    """Return what the step before has; of the first step nothing (0) is known."""
    shifted = np.zeros_like(values)
    shifted[1:] = values[:-1]
    return shifted


@dataclass(frozen=True)
class Residuals:
    """What steps took above the free steps around them; per step, 0 where it does not count."""

    growth_us: Floats
    work_us: Floats
    """The same of the longest self time without delays."""
    counts: Bools
    """Whether the step can be used: it and the one before it are known, with their delays."""
    free: Bools

    @property
    def undelayed(self) -> "Residuals":
        """The same of the free steps alone."""
        return replace(self, counts=self.free)

    @property
    def controls(self) -> list[Floats]:
        """Columns of every regression: a constant, and the longest work of the step and of the one before."""
        return [np.ones(len(self.counts)), self.work_us, before(self.work_us)]


def residuals_of(recorded: Recorded, place: DelayPlace) -> Residuals | None:
    """None where there are too few free steps for a level."""
    steps = recorded.ends_us.shape[1]
    known = _known(recorded)
    # Behind the last collective a delay moves the rank's own end, not the job's; that shows one step later.
    moved = recorded.dose_us if place == "before_optimizer" else 0.0
    ends, own = (np.where(known, one, 0.0) for one in (recorded.ends_us - moved, recorded.self_us - recorded.dose_us))
    counts = known & before(known)
    delayed = np.asarray((recorded.planned_us > 0).any(axis=0))
    free = counts & ~delayed & ~before(delayed)
    if np.count_nonzero(free) < FEWEST_FREE:
        return None
    taken = np.zeros(steps)
    taken[1:] = median(np.diff(ends, axis=1), axis=0)
    growth = _above_level(taken, free, recorded.asked_us)
    work = _above_level(own.max(axis=0), free, 0.0)
    return Residuals(np.where(counts, growth, 0.0), np.where(known, work, 0.0), counts, free)


def _known(recorded: Recorded) -> Bools:
    """Return steps of which everything is known, and in which no rank missed its turn or took another's."""
    dose, planned = recorded.dose_us, recorded.planned_us
    unknown = ~np.isfinite(recorded.ends_us + recorded.self_us + dose)
    otherwise = (dose < planned / 2) | ((planned == 0) & (dose > 0))
    left_out = recorded.left_out if len(recorded.left_out) else False
    return np.asarray(~((unknown | otherwise).any(axis=0) | left_out))


def _above_level(values: Floats, free: Bools, most: float) -> Floats:
    """Return the values less the median of the nearest free steps.

    They are clipped beyond `most` more than the free ones vary.
    """
    at = np.flatnonzero(free)
    nearest = min(NEAREST_FREE, len(at))
    begin = np.clip(np.searchsorted(at, np.arange(len(values))) - nearest // 2, 0, len(at) - nearest)
    above = values - median(values[at[begin[:, None] + np.arange(nearest)]])
    limit = CLIPPED_AT * mad(above[free]) + most
    return np.asarray(np.clip(above, -limit, limit))


@dataclass(frozen=True)
class Fit:
    """A regression of the growth on columns, by least squares, over the steps that count."""

    values: Floats
    covariance: Floats
    """By Newey and West."""
    left_us: Floats
    """Per step, what is not explained; 0 where the step does not count."""


def fitted(columns: Sequence[Floats], found: Residuals) -> Fit | None:
    """None where there are fewer steps than it takes."""
    rows = np.stack(columns, axis=1) * found.counts[:, None]
    used = int(np.count_nonzero(found.counts))
    if used < 2 * len(columns):
        return None
    inverse = np.linalg.pinv(rows.T @ rows)
    values = inverse @ rows.T @ found.growth_us
    left = found.growth_us - rows @ values
    # Steps that do not count keep their places in time, with nothing in them.
    scores = rows * left[:, None]
    middle = scores.T @ scores
    for lag in range(1, LAGS + 1):
        shifted = scores[lag:].T @ scores[:-lag]
        middle += (1 - lag / (LAGS + 1)) * (shifted + shifted.T)
    covariance = inverse @ middle @ inverse * (used / (used - len(columns)))
    return Fit(values, covariance, left)


@dataclass(frozen=True)
class Estimate:
    """One effect, in doses: of the step and of the one after, summed."""

    value: float
    error: float
    """Its standard error."""
    n: int
    """Delayed steps."""

    def interval(self, error_rate: float = SHOWN_ERROR) -> tuple[float, float]:
        """Return what holds the effect but for `error_rate`, by Student's t, since few steps are delayed."""
        wide = two_sided(error_rate, self.n - 1) * self.error
        return self.value - wide, self.value + wide


@lru_cache(maxsize=4096)
def two_sided(error_rate: float, df: int) -> float:
    """So many standard errors on both sides leave `error_rate` outside, by Student's t."""
    low, high = 0.0, 1e6
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if student_t_tail(middle, df) > error_rate / 2 else (low, middle)
    return high


def effects_of(doses: Sequence[Floats], found: Residuals | None) -> tuple[list[Estimate | None], Fit | None]:
    """Return the effect of each series of doses (microseconds per step), and the fit that they are from.

    Both are None if too little is known; a single effect also if fewer than two of its steps count.
    """
    columns = [column for dose in doses for column in (dose, before(dose))]
    fit = fitted([*columns, *found.controls], found) if found and doses else None
    if fit is None or found is None:
        return [None] * len(doses), None
    return [estimated(fit, found, dose, slice(2 * at, 2 * at + 2)) for at, dose in enumerate(doses)], fit


def estimated(fit: Fit, found: Residuals, dose: Floats, columns: slice) -> Estimate | None:
    """Sum a dose's columns; None where fewer than two of its steps count."""
    n = int(np.count_nonzero((dose > 0) & found.counts))
    variance = float(fit.covariance[columns, columns].sum())
    return Estimate(float(fit.values[columns].sum()), max(variance, 0.0) ** 0.5, n) if n >= 2 else None


def arm_doses(recorded: Recorded) -> list[Floats]:
    """Per arm the measured dose of each step, in microseconds; 0 where another arm, or none, had its turn."""
    arms = arms_of(recorded)
    planned = recorded.planned_us > 0
    mean = np.where(planned, recorded.dose_us, 0).sum(axis=0) / np.maximum(planned.sum(axis=0), 1)
    return [np.where(arms == at, np.nan_to_num(mean), 0.0) for at in range(len(ARMS))]


def effect_row(
    arm: DelayedArm,
    ranks: tuple[Rank, ...],
    doses: Floats,
    estimate: Estimate | None,
    error_rate: float = SHOWN_ERROR,
) -> DelayEffect:
    """Return an effect as it is reported, with the slack that it leaves."""
    given = doses[doses > 0]
    dose_us = float(given.mean()) if len(given) else 0.0
    if estimate is None:
        return DelayEffect(arm, ranks, 0, dose_us)
    low, high = estimate.interval(error_rate)
    within = [min(max((1 - effect) * dose_us, 0.0), dose_us) for effect in (estimate.value, high, low)]
    return DelayEffect(
        arm,
        ranks,
        estimate.n,
        dose_us,
        estimate.value,
        low,
        high,
        estimate.value * dose_us,
        low * dose_us,
        high * dose_us,
        within[0],
        within[1],
        within[2] if low > 0 else None,
    )
