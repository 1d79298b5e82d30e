"""Outlier tests for the ranks of a role: sets of one or several, with p-values that hold for all that was tried.

Spreads of a handful of ranks are little known. They are moderated (Smyth 2004): a prior deviation counts as
PRIOR_DF further observations, and what other roles show as a few more, so that eight ranks are enough for a verdict.
"""

import math
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints
from kair_engine.stats import MAD_TO_SIGMA, log_binomial, mad, student_t_tail

PRIOR_DF = 4.0
BORROWED_DF = 6.0
"""What other roles' spread counts for at most."""
FEWEST_DF = 2.0
"""Degrees of freedom that the recording itself must give: with less, the answer would be the prior's."""
SINGLE_SHARE = 0.6
"""Of the false-alarm rate: sets of one rank; all larger sets share the rest."""
SMALL_SAMPLE = 20
"""Below this many ranks mean and standard deviation are used, from it on median and MAD."""
_CANDIDATES = 3
_NOTABLE = 1.0
"""t below which no rank stands out (its p would be 1 after correction, or near it)."""


@dataclass(frozen=True)
class Spread:
    """A variance and the degrees of freedom it is known with."""

    variance: float
    df: float


@dataclass(frozen=True)
class Peers:
    """What the ranks of one role are compared in: `values` has an entry for each, in ns.

    `prior_ns` is the deviation expected of healthy ranks, `borrowed` the one that other roles show. `noise_ns` is what
    each value is uncertain by, from the steps behind it: rare large delays are in it, and not in a robust spread of few
    values. `unit` numbers ranks that share their work (a tensor-parallel group computes one batch): as a set they count
    as one.
    """

    values: Floats
    prior_ns: float
    noise_ns: float = 0.0
    borrowed: Spread | None = None
    unit: Ints | None = None

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
    t, df = deviations(peers)
    p = np.ones(len(t))
    for place in np.flatnonzero(t > _NOTABLE):
        p[place] = min(1.0, len(t) * student_t_tail(float(t[place]), float(df[place])) / SINGLE_SHARE)
    return p


def deviations(peers: Peers, reference: Bools | None = None) -> tuple[Floats, Floats]:
    """Each rank's t against the others (those of `reference`), and its degrees of freedom.

    Of few ranks mean and standard deviation of the others use them best; of many, median and MAD of all shrug off
    several that are slow.
    """
    values = peers.values
    reference = np.ones(len(values), dtype=bool) if reference is None else reference
    if np.count_nonzero(reference) >= SMALL_SAMPLE:
        known = values[reference]
        spread = _moderated(Spread((MAD_TO_SIGMA * mad(known)) ** 2, max(8.0, 0.37 * (len(known) - 1))), peers)
        scale = math.sqrt(spread.variance * (1 + 1 / len(known)))
        return (values - np.median(known)) / scale, np.full(len(values), spread.df)
    t, df = np.zeros(len(values)), np.full(len(values), PRIOR_DF)
    for place in range(len(values)):
        others = values[reference & (np.arange(len(values)) != place)]
        if len(others):
            variance = float(others.var(ddof=1)) if len(others) > 1 else 0.0
            spread = _moderated(Spread(variance, len(others) - 1.0), peers)
            t[place] = (values[place] - others.mean()) / math.sqrt(spread.variance * (1 + 1 / len(others)))
            df[place] = spread.df
    return t, df


def pooled_spread(roles: list[Floats]) -> Spread | None:
    """What the spread within other roles tells about a role's: their median variance; None where there is none."""
    of_role = [float(values.var(ddof=1)) for values in roles if len(values) > 1]
    df = sum(len(values) - 1 for values in roles if len(values) > 1)
    return Spread(float(np.median(of_role)), min(float(df), BORROWED_DF)) if of_role else None


def _moderated(own: Spread, peers: Peers) -> Spread:
    own = Spread(max(own.variance, peers.noise_ns**2), own.df)
    parts = [own, Spread(peers.prior_ns**2, PRIOR_DF), *([peers.borrowed] if peers.borrowed is not None else [])]
    df = sum(part.df for part in parts)
    # Never zero: a recording of one instant has no spread at all.
    return Spread(max(sum(part.variance * part.df for part in parts) / df, 1e-12), df)


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
    log_p = [log_tests - (df + 1) / 2 * np.log1p(np.maximum(t, 0) ** 2 / df) for t, df in _set_t(ordered, sizes, peers)]
    return [int(k) for k in sizes[np.argsort(np.minimum(*log_p), kind="stable")][:_CANDIDATES]]


def _set_t(ordered: Floats, sizes: Ints, peers: Peers) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
    """t and degrees of freedom of the `sizes` highest against the rest (values from the highest down), in two ways.

    The mean of the set, with the variance within both: for ranks that are slow alike. The lowest of the set, with the
    variance of the rest alone: for ranks that differ among themselves.
    """
    count = len(ordered)
    shifted = ordered - ordered.mean()
    sums, squares = np.cumsum(shifted), np.cumsum(shifted**2)
    rest = count - sizes
    upper, lower = sums[sizes - 1] / sizes, (sums[-1] - sums[sizes - 1]) / rest
    within_set = squares[sizes - 1] - sizes * upper**2
    within_rest = squares[-1] - squares[sizes - 1] - rest * lower**2
    alike = _moderate(within_set + within_rest, np.full(len(sizes), count - 2.0), peers)
    unlike = _moderate(within_rest, (rest - 1).astype(float), peers)
    return (
        ((upper - lower) / np.sqrt(alike[0] * (1 / sizes + 1 / rest)), alike[1]),
        ((shifted[sizes - 1] - lower) / np.sqrt(unlike[0] * (1 + 1 / rest)), unlike[1]),
    )


def _moderate(sum_of_squares: Floats, df: Floats, peers: Peers) -> tuple[Floats, Floats]:
    """`_moderated` of many sets at once."""
    own = np.maximum(np.maximum(sum_of_squares, 0.0) / np.maximum(df, 1.0), peers.noise_ns**2)
    total, known = own * df + peers.prior_ns**2 * PRIOR_DF, df + PRIOR_DF
    if peers.borrowed is not None:
        total, known = total + peers.borrowed.variance * peers.borrowed.df, known + peers.borrowed.df
    return np.maximum(total / known, 1e-12), known


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
    tests = _set_t(np.sort(values)[::-1], np.array([size]), peers)
    p = 2 * min(student_t_tail(float(t[0]), float(df[0])) for t, df in tests)
    sizes = max(count // 2 - (1 if count == len(peers.values) else 0), 1)
    log_tests = log_binomial(count, size) + math.log(sizes / (1 - SINGLE_SHARE))
    return min(1.0, math.exp(min(log_tests, 700.0)) * p)
