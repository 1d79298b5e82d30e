"""How far each rank lies above its peers, and the chance that a healthy one does: a moderated t.

The spread of a handful of ranks is little known. It is moderated (Smyth 2004): what healthy ranks are known to differ
by counts as PRIOR_DF further observations. That prior gives way where the ranks contradict it (a robust mixture,
Schmidli 2014): there are two, of ranks as alike as most are and of ranks that differ more, and the peers' own spread
decides how much each counts. Roles of two or three need no rule of their own: they have the prior.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints, present
from kair_engine.localize.noise import autocorrelation, inflation_of
from kair_engine.stats import MAD_TO_SIGMA, TRIM, columns_sorted, median, student_t_tail

PRIOR_DF = 6.0
"""The priors weigh as much as this many further ranks."""
WIDE_WEIGHT = 0.1
"""The wide prior has this weight before the ranks are looked at."""
_FARTHEST = 36
"""The tails of t are known to where a normal's is 1e-284."""


USUAL_OF_WORK, WIDE_OF_WORK = 0.006, 0.05
"""Healthy devices of one type differ by USUAL_OF_WORK of their compute time, and some by WIDE_OF_WORK."""
USUAL_OF_STEP, WIDE_OF_STEP = 0.003, 0.02
"""Healthy ranks differ by USUAL_OF_STEP of the step in idle time and fetches, and some by WIDE_OF_STEP."""


class Spread(NamedTuple):
    """What healthy ranks differ by for good, ns: most of them, and those that differ more than most."""

    usual_ns: Floats | float
    wide_ns: Floats | float

    @classmethod
    def of_own_time(cls, work: Floats | float, step: Floats | float) -> "Spread":
        """Return by how much the own time of healthy ranks differs, for this much work in a step of this length."""
        usual = np.hypot(USUAL_OF_WORK * work, USUAL_OF_STEP * step)
        return cls(usual, np.hypot(WIDE_OF_WORK * work, WIDE_OF_STEP * step))


OF_WORK, OF_STEP = Spread(USUAL_OF_WORK, WIDE_OF_WORK), Spread(USUAL_OF_STEP, WIDE_OF_STEP)
"""As shares of the compute time, and of the step."""

_AT_ONCE = 1 << 16
"""So many values stay in a core's cache, which takes a third of the time. Ranks whose steps lie side by side are looked
at in such parts."""


class Columns(NamedTuple):
    """What each rank's own steps say of its mean; the ranks that are compared share what is usual among them."""

    steps: int
    mean_ns: Floats
    variance: Floats
    """Of single steps."""
    own: Floats
    """Of those that the trimmed mean is of."""
    correlation: Floats
    """From one step to the next."""

    @classmethod
    def of(cls, per_step: Floats) -> "Columns":
        """Those of (steps × ranks), with means trimmed where there are two steps."""
        some, ranks = max(_AT_ONCE // max(len(per_step), 1), 1), per_step.shape[1]
        if ranks <= some or per_step.strides[0] != per_step.itemsize:
            return cls._of(per_step)
        parts = [cls._of(per_step[:, at : at + some]) for at in range(0, ranks, some)]
        return cls(len(per_step), *(np.concatenate(values) for values in zip(*(of[1:] for of in parts), strict=True)))

    @classmethod
    def _of(cls, per_step: Floats) -> "Columns":
        steps = len(per_step)
        if steps < 2:
            nothing = np.zeros(per_step.shape[1])
            return cls(steps, per_step.mean(axis=0), nothing, nothing, autocorrelation(per_step, per_step))
        cut = int(steps * TRIM)
        ordered = columns_sorted(per_step)
        winsorised = np.clip(per_step, ordered[cut], ordered[steps - cut - 1]).var(axis=0, ddof=1)
        own = winsorised * (steps / (steps - 2 * cut)) ** 2
        mean_ns = ordered[cut : steps - cut].mean(axis=0)
        return cls(steps, mean_ns, per_step.var(axis=0, ddof=1), own, autocorrelation(per_step, ordered))

    def at(self, places: Bools | Ints) -> "Columns":
        """Those of some ranks."""
        return Columns(self.steps, *(values[places] for values in self[1:]))


def steps_side_by_side(per_step: Floats) -> Floats:
    """Return (steps × ranks) so that a rank's steps lie next to one another in memory: its columns sort faster."""
    return np.asfortranarray(per_step)


class Means(NamedTuple):
    """(… × ranks): the mean over steps, ns, and the variance that the steps leave it with, ns²."""

    mean_ns: Floats
    variance: Floats

    @classmethod
    def of(cls, per_step: Floats) -> "Means":
        """Trimmed means of (steps × ranks).

        Each is as uncertain as the median rank's, or as its own trimmed one if that is more (Yuen 1974); steps that
        depend on one another count for less.
        """
        return cls.of_columns(Columns.of(per_step))

    @classmethod
    def of_columns(cls, of: Columns) -> "Means":
        """Return the same of columns that are known."""
        usual = float(median(of.variance))
        variance = np.maximum(usual, of.own) * (inflation_of(of.steps, of.correlation) / max(of.steps, 1))
        return cls(of.mean_ns, variance)

    @classmethod
    def of_roles(cls, of: Columns, role: Ints) -> "Means":
        """Return the same of ranks of several roles: what is usual is usual in a rank's own role."""
        means = cls(of.mean_ns, np.empty(len(role)))
        for code in present(role).tolist():
            members = np.flatnonzero(role == code)
            means.variance[members] = cls.of_columns(of.at(members)).variance
        return means

    @classmethod
    def stacked(cls, every: Sequence["Means"]) -> "Means":
        """Those of several rows of ranks, one below the other."""
        return cls(np.stack([one.mean_ns for one in every]), np.stack([one.variance for one in every]))

    def less(self, before: "Means") -> "Means":
        """By how much the means are larger than before, in other steps."""
        return Means(self.mean_ns - before.mean_ns, self.variance + before.variance)

    def at(self, places: Bools) -> "Means":
        """Those of some ranks."""
        return Means(self.mean_ns[..., places], self.variance[..., places])


class Pooled(NamedTuple):
    """What the ranks of other roles add to what is known of a role's spread, in units of what is usual in each."""

    squares: Floats
    """(… × 1): sums of squares over `usual_ns²`."""
    df: int

    @classmethod
    def of(cls, means: Means, spread: Spread) -> "Pooled":
        """Return the sum of one role, without the farthest quarter of its ranks: a slow one must not widen it.

        What is left spreads less than all do: by about twice the part that was dropped.
        """
        count = means.mean_ns.shape[-1]
        apart = np.sort(np.abs(means.mean_ns - median(means.mean_ns)[..., None]), axis=-1)
        kept = apart[..., : count - count // _RANKS_PER_DROPPED]
        dropped = 1 - kept.shape[-1] / max(count, 1)
        noise = median(means.variance)[..., None]
        usual = np.maximum(spread.usual_ns, 1e-6) ** 2 + noise
        squares = (kept**2).sum(axis=-1, keepdims=True) * (1 + 2 * dropped)
        return cls(squares / usual, max(kept.shape[-1] - 1, 0))

    @classmethod
    def together(cls, others: "Sequence[Pooled]") -> "Pooled":
        """Return the sum over several roles."""
        return cls(np.sum([one.squares for one in others], axis=0), sum(one.df for one in others))


_RANKS_PER_DROPPED = 4
NOTHING_POOLED = Pooled(np.zeros(1), 0)


def above_others(
    means: Means, spread: Spread, at_most_ns: Floats | None = None, pooled: Pooled = NOTHING_POOLED
) -> tuple[Floats, Floats]:
    """Return, per rank, its t against all others, and the chance of that for a healthy one; at most one half.

    `at_most_ns` limits how far each lies above the others, whatever its mean; `pooled` is what other roles show
    about how much ranks differ (limma's pooled variance, Smyth 2004).
    """
    values, count = means.mean_ns, means.mean_ns.shape[-1]
    if count < 2:
        return np.zeros(values.shape), np.full(values.shape, 0.5)
    from_mean = values - values.mean(axis=-1, keepdims=True)
    from_others, df = from_mean * (count / (count - 1)), count - 2
    above = from_others if at_most_ns is None else np.minimum(from_others, at_most_ns)
    squares = (from_mean**2).sum(axis=-1, keepdims=True) - from_others**2 * ((count - 1) / count)
    variance = np.maximum(squares, 0.0) / df if df else np.zeros(values.shape)
    if pooled.df:
        usual = np.maximum(spread.usual_ns, 1e-6) ** 2 + median(means.variance)[..., None]
        variance = (variance * df + pooled.squares * usual) / (df + pooled.df)
        df += pooled.df
    return moderated(above, np.maximum(variance, means.variance), df, 1 + 1 / (count - 1), means.variance, spread)


def above_most(means: Means, spread: Spread) -> tuple[Floats, Floats]:
    """Return the same against the median of all, by their median distance: nearly half of them may be slow together."""
    values, count = means.mean_ns, len(means.mean_ns)
    above = values - median(values)
    variance = (MAD_TO_SIGMA * median(np.abs(above))) ** 2
    return moderated(above, np.maximum(variance, means.variance), count - 1, 1 + 1 / count, means.variance, spread)


def set_above_rest(means: Means, members: Bools, spread: Spread) -> tuple[float, float]:
    """(how far some of the ranks lie above the rest, ns, the chance of it): a two-sample t with one variance."""
    mine, others = means.mean_ns[members], means.mean_ns[~members]
    df = len(mine) + len(others) - 2
    squares = ((mine - mine.mean()) ** 2).sum() + ((others - others.mean()) ** 2).sum()
    noise, above = np.array([float(median(means.variance))]), np.array([float(mine.mean() - others.mean())])
    variance = np.maximum(float(squares) / max(df, 1), noise)
    _, chance = moderated(above, variance, df, 1 / len(mine) + 1 / len(others), noise, spread)
    return float(above[0]), float(chance[0])


def moderated(  # noqa: PLR0917  (each of another kind)
    above: Floats, variance: Floats, df: int, scale: float, noise: Floats, spread: Spread
) -> tuple[Floats, Floats]:
    """t by the usual prior, and the chance over both; `scale`: the variance of a distance in those of a mean."""
    ts, chances, logs = [], [], []
    for weight, deviation in ((1 - WIDE_WEIGHT, spread.usual_ns), (WIDE_WEIGHT, np.maximum(*spread))):
        prior = np.maximum(deviation, 1e-6) ** 2 + noise
        ts.append(above / np.sqrt((variance * df + prior * PRIOR_DF) / (df + PRIOR_DF) * scale))
        chances.append(tails(ts[-1], df + PRIOR_DF))
        # The density of F with these degrees of freedom: how well the peers' own spread fits the prior.
        fits = df / 2 * np.log(prior) + (df + PRIOR_DF) / 2 * np.log1p(df * variance / (PRIOR_DF * prior))
        logs.append(math.log(weight) - fits)
    weights = np.exp(np.array(logs) - np.max(logs, axis=0))
    return ts[0], np.asarray((weights * chances).sum(axis=0) / weights.sum(axis=0))


def tails(t: Floats, df: float) -> Floats:
    """Return the probability of a t and beyond, one half below 0: interpolated along a normal's tail, within a
    thousandth."""
    z = np.sqrt(df * np.log1p(np.maximum(t, 0.0) ** 2 / df))
    at, beside = _beside_normal(df)
    return np.asarray(np.exp(np.interp(z, at, beside) - z**2 / 2))


@cache
def _beside_normal(df: float) -> tuple[Floats, Floats]:
    """(z, ln of the tail beyond the t of that z, plus z² / 2), which hardly bends."""
    z = np.linspace(0, _FARTHEST, 10 * _FARTHEST + 1)
    t = np.sqrt(df * np.expm1(z**2 / df))
    return z, np.array([math.log(max(student_t_tail(float(one), df), 1e-300)) for one in t]) + z**2 / 2
