"""Takes a job's noise apart: what all ranks share, what each differs by for good, what hosts share, and the rest."""

from statistics import NormalDist

import numpy as np

from kair_engine.arrays import Floats, Ints, present
from kair_engine.forecast.growth import Noise
from kair_engine.forecast.meetings import Meetings
from kair_engine.forecast.tails import fitted
from kair_engine.frozen import dataclass
from kair_engine.localize.noise import inflation
from kair_engine.stats import MAD_TO_SIGMA, median

TOGETHER_BY_CHANCE = 0.01
"""Ranks count as late together where any two of a job's would be by less than this chance."""
_FEWEST_FOR_Z = 4
_OF_MEDIAN = np.pi / 2
"""The variance of a median of normal values over that of their mean."""


@dataclass(frozen=True)
class Parts:
    """Of each meeting, in ns."""

    own: Floats
    """(steps × meetings × ranks): what a rank has alone in a step."""
    shared: Floats | None
    """(steps × meetings × hosts): what its host's ranks have in common; None: nothing, or it is not known."""
    lasting: Floats
    """(meetings × ranks): what it differs by in every step, as far as that is more than the steps' noise makes it."""
    block: int
    """Steps that depend on one another."""

    @property
    def recorded_together(self) -> float:
        """How many ranks have noise in common, as recorded; 1 where none do."""
        return 1.0 if self.shared is None else self.own.shape[2] / self.shared.shape[2]

    @property
    def spread(self) -> Floats:
        """(meetings): the standard deviation between ranks of what they differ by for good."""
        return np.asarray(self.lasting.std(axis=1, ddof=1))

    def noise(self, steps: Ints, ranks: Ints, heavier: float = 0.0) -> list[Noise]:
        """How it is distributed in those steps and on those ranks, of each meeting; `heavier` as in `fitted`."""
        chosen = self.own[np.ix_(steps, np.arange(self.own.shape[1]), ranks)]
        own = fitted([chosen[:, at].ravel() for at in range(chosen.shape[1])], heavier)
        if self.shared is None:
            return [Noise(one) for one in own]
        shared = fitted([self.shared[steps, at].ravel() for at in range(chosen.shape[1])], heavier)
        return [Noise(one, other) for one, other in zip(own, shared, strict=True)]


def taken_apart(of: Meetings) -> Parts:
    """Medians, where a few late ranks must not count: late ones are what is asked about."""
    late = of.late_ns - _common(of)
    lasting = median(late, axis=0)
    own = late - lasting
    per_step = own.sum(axis=1)
    inflated = inflation(per_step)
    noise = (MAD_TO_SIGMA * median(np.abs(own), axis=0)) ** 2 * (_OF_MEDIAN * inflated / len(own))
    lasting = lasting - lasting.mean(axis=1, keepdims=True)
    seen = lasting.var(axis=1, ddof=1).sum()
    kept = 0.0 if seen <= 0 else max(0.0, 1 - float(median(noise, axis=1).sum()) / float(seen))
    own, shared = _of_hosts(own, of.host if of.has_hosts else together(per_step, inflated))
    return Parts(own, shared, lasting * np.sqrt(kept), max(1, round(inflated)))


def _common(of: Meetings) -> Floats:
    """Return (steps × meetings × 1): what all ranks share.

    For ranks' own times, the common part is how much the ranks' middle varies beyond what independent noise would make
    it vary; otherwise all of the middle counts as common.
    """
    middle = median(of.late_ns, axis=2)[:, :, None]
    if not of.absolute:
        return np.asarray(middle)
    from_middle = middle - median(middle, axis=0)
    within = (of.late_ns - of.late_ns.mean(axis=2, keepdims=True)).var(axis=0, ddof=1).sum() / (of.late_ns.shape[2] - 1)
    between = of.late_ns.mean(axis=2).var(axis=0, ddof=1).sum()
    part = 0.0 if between <= 0 else max(0.0, 1 - float(within) / of.late_ns.shape[2] / float(between))
    return np.asarray(median(middle, axis=0) + part * from_middle)


def together(per_step: Floats, inflated: float) -> Ints:
    """Return a number per rank, equal for those late in the same steps beyond chance, as if they shared a core.

    If fewer than two hosts are known, that shows who has noise in common. Correlations (Spearman) are compared by
    Fisher's z with −1 / (ranks − 1), the correlation that values measured from their middle have anyway.
    """
    steps, ranks = per_step.shape
    codes = np.arange(ranks)
    ordered = np.argsort(np.argsort(per_step, axis=0), axis=0).astype(float)
    if ranks < 4 or steps / inflated <= _FEWEST_FOR_Z or (ordered.std(axis=0) == 0).any():
        return codes
    z = np.arctanh(np.clip(np.corrcoef(ordered, rowvar=False), -0.999, 0.999))
    from_chance = (z - np.arctanh(-1 / (ranks - 1))) * np.sqrt(steps / inflated - 3)
    limit = NormalDist().inv_cdf(1 - TOGETHER_BY_CHANCE / (ranks * (ranks - 1) / 2))
    for one, other in np.argwhere(np.triu(from_chance > limit, 1)).tolist():
        codes[codes == codes[other]] = codes[one]
    return np.unique(codes, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _of_hosts(own: Floats, host: Ints | None) -> tuple[Floats, Floats | None]:
    """Return (what each rank has alone, what hosts share): the latter as far as hosts vary beyond what their ranks'
    noise makes them.
    """
    if host is None:
        return own, None
    members = [np.flatnonzero(host == code) for code in present(host)]
    sizes = np.array([len(one) for one in members])
    if len(members) < 2 or (sizes < 2).all():
        return own, None
    means = np.stack([own[:, :, of].mean(axis=2) for of in members], axis=2)
    within = np.array([own[:, :, of].var(axis=2, ddof=1).mean() for of in members if len(of) > 1]).mean()
    between = means.var(axis=2, ddof=1).mean()
    noise = within * float((1 / sizes).mean())
    part = 0.0 if between <= 0 else max(0.0, 1 - float(noise) / float(between))
    # The chance that so much is by noise alone: 2 / (values) is the relative variance of a variance.
    if part * between <= 2 * noise * np.sqrt(2 / means[..., 0].size / (len(members) - 1)):
        return own, None
    middles = np.stack([median(own[:, :, of], axis=2) for of in members], axis=2)
    shared = np.sqrt(part) * (middles - median(middles, axis=2)[:, :, None])
    result = own.copy()
    for at, of in enumerate(members):
        result[:, :, of] -= shared[:, :, at : at + 1]
    return result, shared
