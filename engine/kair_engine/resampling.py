"""Recordings that could have been made of the same job, drawn from one that was.

What a rank differs in for good stays; what changes from step to step is drawn again (bootstrap over steps). Without
that separation a longer recording would seem to hold the first one's noise for good.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints
from kair_engine.stats import TRIM, trimmed_mean


@dataclass(frozen=True)
class Redraws:
    """Drawn recordings: `counts` (draws × recorded steps) says how often each recorded step occurs in each."""

    counts: Ints

    @cached_property
    def steps(self) -> int:
        """How many each recording has."""
        return int(self.counts[0].sum())


@dataclass(frozen=True)
class Parts:
    """A quantity per rank, taken apart: what lasts, and what changes from step to step."""

    standing: Floats
    """(draws × ranks)."""
    moments: Floats
    """(ranks × recorded steps)."""

    def per_step(self, ranks: Ints) -> Floats:
        """(draws × recorded steps) of one rank per draw."""
        return self.standing[np.arange(len(ranks)), ranks][:, None] + self.moments[ranks]

    def means(self, drawn: Redraws) -> Floats:
        """(draws × ranks): the trimmed mean over each drawn recording."""
        return np.asarray(self.standing + _noise(self.moments, drawn))


def redraw(recorded: int, multiples: Sequence[int], draws: int, random: np.random.Generator) -> list[Redraws]:
    """For each multiple (in ascending order) `draws` recordings of that many times the recorded steps.

    A longer recording begins with the shorter one's steps, so that they differ by what the further steps bring.
    """
    result, counts = [], np.zeros((draws, recorded), dtype=np.int64)
    for before, multiple in zip((0, *multiples), multiples, strict=False):
        counts = counts + random.multinomial((multiple - before) * recorded, np.full(recorded, 1 / recorded), draws)
        result.append(Redraws(counts))
    return result


def take_apart(values: Floats, family: Ints, known: Bools, drawn: Redraws, random: np.random.Generator) -> Parts:
    """`values` (steps × ranks) as what lasts and what changes; ranks of one `family` are compared with each other.

    The variance between the ranks' means is what lasts plus the noise of a mean, which the bootstrap `drawn` (of as
    many steps as recorded) shows: the ranks' distances from their family's mean are shrunk by the root of the
    lasting share. A rank that is not `known` (a fault was taken out of it) lasts, in each draw, as another one of
    its family does.
    """
    steps = len(values)
    mean = trimmed_mean(values, TRIM, axis=0)
    # Deviations from their own mean are too small by this factor.
    moments = np.ascontiguousarray((values - mean).T) * math.sqrt(steps / max(steps - 1, 1))
    total, of_noise = _within(mean[None], family, known), _within(_noise(moments, drawn), family, known)
    lasting = math.sqrt(max(0.0, 1 - of_noise / total)) if total > 0 else 0.0
    standing = np.tile(mean, (len(drawn.counts), 1))
    for code in np.unique(family):
        peers = np.flatnonzero((family == code) & known)
        if not len(peers):
            continue
        centre = mean[peers].mean()
        standing[:, peers] = centre + lasting * (mean[peers] - centre)
        others = np.flatnonzero((family == code) & ~known)
        standing[:, others] = standing[0, random.choice(peers, (len(standing), len(others)))]
    return Parts(standing, moments)


def counted_mean(values: Floats, counts: Ints, cut: int) -> Floats:
    """Mean along the last axis of values that occur `counts` times each, the `cut` lowest and highest left out."""
    order = np.argsort(values, axis=-1, kind="stable")
    of_value = np.take_along_axis(np.broadcast_to(counts, values.shape), order, axis=-1)
    return _ordered_mean(np.take_along_axis(values, order, axis=-1), of_value, cut)


def counted_median(values: Floats, counts: Ints) -> Floats:
    """The median along the last axis of values that occur `counts` times each, as often in all in every row."""
    return counted_mean(values, counts, (int(counts[..., :].reshape(-1, counts.shape[-1])[0].sum()) - 1) // 2)


def cut_of(steps: int) -> int:
    """How many values a trimmed mean leaves out at each end."""
    return int(steps * TRIM)


def _ordered_mean(values: Floats, counts: Ints, cut: int) -> Floats:
    upto = np.cumsum(counts, axis=-1)
    total = upto[..., -1:]
    kept = np.clip(np.minimum(upto, total - cut) - np.maximum(upto - counts, cut), 0, None)
    return np.asarray((kept * values).sum(axis=-1) / (total[..., 0] - 2 * cut))


def _noise(moments: Floats, drawn: Redraws) -> Floats:
    order = np.argsort(moments, axis=-1, kind="stable")
    ordered, cut = np.take_along_axis(moments, order, axis=-1), cut_of(drawn.steps)
    return np.stack([_ordered_mean(ordered, counts[order], cut) for counts in drawn.counts])


def _within(values: Floats, family: Ints, known: Bools) -> float:
    """Variance between the known ranks of a family, pooled over families and averaged over draws."""
    squares, df = 0.0, 0
    for code in np.unique(family[known]):
        of_family = values[:, known & (family == code)]
        squares += float(((of_family - of_family.mean(axis=1, keepdims=True)) ** 2).sum(axis=1).mean())
        df += of_family.shape[1] - 1
    return squares / df if df else 0.0
