"""Outlier tests for the ranks of a role: sets of one or several, with p-values that hold for all that was tried.

Spreads of a handful of ranks are little known. They are moderated (Smyth 2004): a prior deviation counts as
PRIOR_DF further observations, and what other roles show as a few more, so that eight ranks are enough for a verdict.
The prior gives way where the ranks contradict it (a robust mixture, Schmidli 2014): there are two, of devices as alike
as they mostly are and of devices that differ, and the ranks' own spread decides how much each counts.
"""

import math
from dataclasses import replace
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints
from kair_engine.frozen import dataclass
from kair_engine.stats import MAD_TO_SIGMA, log_binomial, mad, median, student_t_tail

PRIOR_DF = 4.0
BORROWED_DF = 6.0
"""Other roles' spread counts for at most this many degrees of freedom."""
ELSEWHERE_DF = 30.0
"""It counts for at most this many when the two priors are weighed."""
FEWEST_DF = 2.0
"""The recording itself must give this many degrees of freedom: with less, the answer would be the prior's."""
SINGLE_SHARE = 0.6
"""Sets of one rank have this part of the false-alarm rate; all larger sets share the rest."""
SMALL_SAMPLE = 20
"""Below this many ranks mean and standard deviation are used, from it on median and MAD."""
WIDE_WEIGHT = 0.1
"""The wide prior has this weight before the ranks were looked at."""
_CANDIDATES = 3
_NOTABLE = 1.0
"""A rank whose t is lower does not stand out: its p would be 1 after correction, or near it."""


class Spread(NamedTuple):
    """A variance and the degrees of freedom it is known with."""

    variance: float
    df: float


@dataclass(frozen=True)
class Peers:
    """What the ranks of one role are compared in: `values` has an entry for each, in ns.

    `prior_ns` is the deviation expected of healthy ranks, `wide_ns` that of ranks which differ more (0: none),
    `borrowed` the one that other roles show. `noise_ns` is what each value is uncertain by, from the steps behind it:
    rare large delays are in it, and not in a robust spread of few values. `unit` numbers ranks that share their work
    (a tensor-parallel group computes one batch): as a set they count as one.
    """

    values: Floats
    prior_ns: float
    noise_ns: float = 0.0
    borrowed: Spread | None = None
    unit: Ints | None = None
    wide_ns: float = 0.0
    elsewhere: Spread | None = None
    """What the ranks of all other roles show, for how much each prior counts."""

    @cached_property
    def priors(self) -> tuple[tuple[float, float], ...]:
        """(weight, variance) of each prior, the noise of the values included."""
        usual, wide = (max(deviation, 1e-6) ** 2 + self.noise_ns**2 for deviation in (self.prior_ns, self.wide_ns))
        return ((1.0, usual),) if wide <= usual else ((1 - WIDE_WEIGHT, usual), (WIDE_WEIGHT, wide))

    @property
    def known_df(self) -> float:
        """Degrees of freedom that the recording gives for the spread."""
        return max(len(self.values) - 2, 0) + (self.borrowed.df if self.borrowed is not None else 0.0)


@dataclass(frozen=True)
class SlowSet:
    """Ranks (places in the values) above the rest; the p-value is corrected for every set that could have been."""

    members: tuple[int, ...]
    p_value: float
    excess_ns: float
    """The mean of the members less that of the rest."""


def slow_sets(peers: Peers, *, p_below: float, excess_above_ns: float) -> list[SlowSet]:
    """Takes out the most outlying set of ranks, then looks at the rest again, as long as there is one beyond chance.

    So two culprits do not hide each other, and half of the role may be slow.
    """
    found: list[SlowSet] = []
    if peers.known_df < FEWEST_DF:
        return found
    left = np.arange(len(peers.values))
    while len(left) > 1:
        best = most_outlying(_part(peers, left))
        if best is None or best.p_value >= p_below or best.excess_ns <= excess_above_ns:
            break
        members = left[list(best.members)]
        found.append(SlowSet(tuple(int(place) for place in members), best.p_value, best.excess_ns))
        left = np.setdiff1d(left, members)
        if 2 * len(left) < len(peers.values) or len(left) < 3:
            break
    return found


def most_outlying(peers: Peers) -> SlowSet | None:
    """The set of up to half of the ranks, the highest ones, that chance explains least."""
    singles = single(peers)
    order = np.argsort(-peers.values, kind="stable")
    best = SlowSet((int(order[0]),), float(singles[order[0]]), _above_rest(peers.values, order[:1]))
    for size in _promising_sizes(peers.values[order], peers):
        members = order[:size]
        p = _set_p(peers, members)
        if p < best.p_value:
            best = SlowSet(tuple(sorted(int(m) for m in members)), p, _above_rest(peers.values, members))
    return best


def single(peers: Peers) -> Floats:
    """For each rank the p-value of its lying above all others, corrected for the number of ranks."""
    above, own, scale = _against_others(peers)
    t, _ = _moderated_t(above, own, scale, peers)
    p = np.ones(len(above))
    for place in np.flatnonzero(t > _NOTABLE):
        tail = _tail(float(above[place]), own[place], float(scale[place]), peers)
        p[place] = min(1.0, len(above) * tail / SINGLE_SHARE)
    return p


def deviations(peers: Peers, reference: Bools | None = None) -> tuple[Floats, Floats]:
    """Each rank's t against the others (those of `reference`) by the usual prior, and its degrees of freedom."""
    return _moderated_t(*_against_others(peers, reference), peers)


def _moderated_t(above: Floats, own: list[Spread], scale: Floats, peers: Peers) -> tuple[Floats, Floats]:
    ((_, usual), *_) = peers.priors
    spread = [_moderated(of, usual, peers) for of in own]
    t = above / (np.sqrt([of.variance for of in spread]) * scale)
    return t, np.array([of.df for of in spread])


def _against_others(peers: Peers, reference: Bools | None = None) -> tuple[Floats, list[Spread], Floats]:
    """Per rank (its distance from the others, their own spread, the deviation of that distance in spreads).

    Of few ranks mean and standard deviation of the others use them best; of many, median and MAD of all shrug off
    several that are slow.
    """
    values = peers.values
    reference = np.ones(len(values), dtype=bool) if reference is None else reference
    count = len(values)
    if np.count_nonzero(reference) >= SMALL_SAMPLE:
        known = values[reference]
        own = Spread((MAD_TO_SIGMA * mad(known)) ** 2, max(8.0, 0.37 * (len(known) - 1)))
        return values - median(known), [own] * count, np.full(count, math.sqrt(1 + 1 / len(known)))
    above, scale, variance, df = np.zeros(count), np.ones(count), np.zeros(count), np.zeros(count)
    known = values[reference]
    for places, others in ((reference, known[_all_but_each(len(known))]), (~reference, known[None])):
        size = others.shape[1]
        if size and places.any():
            above[places], scale[places] = values[places] - others.mean(axis=1), math.sqrt(1 + 1 / size)
            variance[places], df[places] = others.var(axis=1, ddof=1) if size > 1 else 0.0, size - 1
    return above, list(map(Spread, variance.tolist(), df.tolist())), scale


@cache
def _all_but_each(count: int) -> Ints:
    """Per place (a row) all other places in ascending order."""
    everyone = np.arange(count)
    return np.array([np.delete(everyone, place) for place in everyone], dtype=int).reshape(count, max(count - 1, 0))


def _tail(above: float, own: Spread, scale: float, peers: Peers) -> float:
    """P that a healthy rank lies so far above others of that spread: the mean over the priors, by their weights."""
    weights = _weights(own, peers)
    spreads = [_moderated(own, variance, peers) for _, variance in peers.priors]
    tails = [student_t_tail(above / (math.sqrt(spread.variance) * scale), spread.df) for spread in spreads]
    return sum(weight * tail for weight, tail in zip(weights, tails, strict=True))


def _weights(own: Spread, peers: Peers) -> list[float]:
    """How much each prior counts once the others' spread is known: by the density of F with `own.df` and PRIOR_DF.

    What other roles show counts with it: of a role of two the recording tells nothing else.
    """
    if (other := peers.elsewhere or peers.borrowed) is not None:
        df = own.df + other.df
        own = Spread((own.variance * own.df + other.variance * other.df) / df, df)
    log_weights = [
        math.log(weight)
        - own.df / 2 * math.log(variance)
        - (own.df + PRIOR_DF) / 2 * math.log1p(own.df * own.variance / (PRIOR_DF * variance))
        for weight, variance in peers.priors
    ]
    largest = max(log_weights)
    relative = [math.exp(one - largest) for one in log_weights]
    together = sum(relative)
    return [one / together for one in relative]


def pooled_spread(roles: list[Floats], most_df: float = BORROWED_DF) -> Spread | None:
    """What the spread within other roles tells about a role's: their median variance; None where there is none."""
    of_role = [float(values.var(ddof=1)) for values in roles if len(values) > 1]
    df = sum(len(values) - 1 for values in roles if len(values) > 1)
    return Spread(float(np.median(of_role)), min(float(df), most_df)) if of_role else None


def _moderated(own: Spread, prior_variance: float, peers: Peers) -> Spread:
    total = max(own.variance, peers.noise_ns**2) * own.df + prior_variance * PRIOR_DF
    df = own.df + PRIOR_DF
    if (other := peers.borrowed) is not None:
        total, df = total + other.variance * other.df, df + other.df
    # Never zero: a recording of one instant has no spread at all.
    return Spread(max(total / df, 1e-12), df)


def _part(peers: Peers, places: Ints) -> Peers:
    unit = None if peers.unit is None else peers.unit[places]
    return replace(peers, values=peers.values[places], unit=unit)


def _above_rest(values: Floats, members: Ints) -> float:
    rest = np.delete(values, members)
    return float(values[members].mean() - rest.mean()) if len(rest) else 0.0


def _promising_sizes(ordered: Floats, peers: Peers) -> list[int]:
    """Sizes from two to half of the ranks whose highest ones stand out most, by the density of t."""
    count = len(ordered)
    sizes = np.arange(2, count // 2 + 1)
    if not len(sizes):
        return []
    log_tests = _log_sets(count)
    usual = (_moderate(above, own, df, peers) for above, own, df in _apart(ordered, sizes))
    log_p = [log_tests - (df + 1) / 2 * np.log1p(np.maximum(t, 0) ** 2 / df) for t, df in usual]
    return [int(k) for k in sizes[np.argsort(np.minimum(*log_p), kind="stable")][:_CANDIDATES]]


def _apart(ordered: Floats, sizes: Ints | int) -> tuple[tuple[Floats, Floats, Floats], tuple[Floats, Floats, Floats]]:
    """(distance, in root mean squares of it; variance; degrees of freedom) of the `sizes` highest from the rest.

    `ordered` are values from the highest down. In two ways: the mean of the set, with the variance within both, for
    ranks that are slow alike; the lowest of the set, with the variance of the rest alone, for ranks that differ.
    """
    count = len(ordered)
    shifted = ordered - ordered.mean()
    sums, squares = np.cumsum(shifted), np.cumsum(shifted**2)
    rest = count - sizes
    upper, lower = sums[sizes - 1] / sizes, (sums[-1] - sums[sizes - 1]) / rest
    within_set = squares[sizes - 1] - sizes * (upper * upper)
    within_rest = squares[-1] - squares[sizes - 1] - rest * (lower * lower)
    alike, unlike = np.asarray(count - 2.0 + 0.0 * sizes), np.asarray(rest - 1.0)
    return (
        (
            (upper - lower) / np.sqrt(1 / sizes + 1 / rest),
            np.maximum(within_set + within_rest, 0.0) / np.maximum(alike, 1.0),
            alike,
        ),
        (
            (shifted[sizes - 1] - lower) / np.sqrt(1 + 1 / rest),
            np.maximum(within_rest, 0.0) / np.maximum(unlike, 1.0),
            unlike,
        ),
    )


def _moderate(above: Floats, own: Floats, df: Floats, peers: Peers) -> tuple[Floats, Floats]:
    """t of many sets at once by the usual prior, and its degrees of freedom."""
    own = np.maximum(own, peers.noise_ns**2)
    total, known = own * df + peers.priors[0][1] * PRIOR_DF, df + PRIOR_DF
    if peers.borrowed is not None:
        total, known = total + peers.borrowed.variance * peers.borrowed.df, known + peers.borrowed.df
    return above / np.sqrt(np.maximum(total / known, 1e-12)), known


@cache
def _log_sets(count: int) -> Floats:
    """ln of the number of sets of each size from two to half of `count`."""
    return np.array([log_binomial(count, size) for size in range(2, count // 2 + 1)])


def _set_p(peers: Peers, members: Ints) -> float:
    """p of a set, for all sets of its size; the false-alarm rate of sets is shared by the sizes up to half.

    Both ways of testing count: the smaller p, twice.
    """
    values, size = peers.values, len(members)
    if peers.unit is not None:
        units = np.unique(peers.unit)
        chosen = np.unique(peers.unit[members])
        if np.count_nonzero(np.isin(peers.unit, chosen)) == size and len(units) < len(values):
            values = np.array([peers.values[peers.unit == unit].mean() for unit in units])
            size = len(chosen)
    count = len(values)
    if size >= count:
        return 1.0
    tests = _apart(np.sort(values)[::-1], size)
    p = 2 * min(_tail(float(above), Spread(float(own), float(df)), 1.0, peers) for above, own, df in tests)
    sizes = max(count // 2 - (1 if count == len(peers.values) else 0), 1)
    log_tests = log_binomial(count, size) + math.log(sizes / (1 - SINGLE_SHARE))
    return min(1.0, math.exp(min(log_tests, 700.0)) * p)
