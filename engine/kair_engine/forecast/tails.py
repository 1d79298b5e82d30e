"""How a sort of noise is distributed: as it was seen, and beyond the largest values by a generalised Pareto tail.

Peaks over a threshold (Pickands 1975); scale and shape by L-moments (Hosking & Wallis 1987), which few values suffice
for and a single large one does not upset.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from kair_engine.arrays import Floats
from kair_engine.frozen import dataclass

LARGEST_SHARE, FEWEST_ABOVE, SMALLEST_SHARE = 0.25, 20, 0.05
"""The tail is fitted to a quarter of the values at most, to 20 of them where that is less, to a twentieth at least."""
WEIGHT_OF_EXPONENTIAL = 10.0
"""An exponential tail counts as this many further values above the threshold when the shape is estimated."""
LEAST_SHAPE, LARGEST_SHAPE = -0.5, 0.9
"""The shape is limited to this range: at 1 there is no mean, and no forecast."""


@dataclass(frozen=True)
class Tail:
    """One distribution, in the unit of its values."""

    ordered: Floats
    """The values, in order."""
    share_above: float
    """Of them, the part that the tail stands for."""
    scale: float
    """Of the tail, in the values' unit."""
    shape: float
    """0 is exponential; above 0 it falls as a power."""

    @cached_property
    def _levels(self) -> Floats:
        return (np.arange(len(self.ordered)) + 0.5) / len(self.ordered)

    @cached_property
    def threshold(self) -> float:
        """Where the tail begins."""
        return float(np.interp(1 - self.share_above, self._levels, self.ordered))

    @cached_property
    def mean(self) -> float:
        """Of the values as far as they lie below the threshold, and of the tail above."""
        below = float(np.minimum(self.ordered, self.threshold).mean())
        return below + self.share_above * self.scale / (1 - self.shape)

    def below(self, at: Floats) -> Floats:
        """Return the share of values below each of these."""
        seen = np.interp(at, self.ordered, self._levels, left=0.0)
        return np.where(at > self.threshold, 1 - self.share_above * self._beyond(at), seen)

    def at_level(self, beyond: Floats) -> Floats:
        """Return what such a share of the values exceeds."""
        in_tail = np.minimum(beyond, self.share_above) / self.share_above
        reach = -np.log(in_tail) if abs(self.shape) < _FLAT else (in_tail**-self.shape - 1) / self.shape
        seen = np.interp(1 - beyond, self._levels, self.ordered)
        return np.where(beyond < self.share_above, self.threshold + self.scale * reach, seen)

    def mean_beyond(self, at: float) -> float:
        """Return the integral of the share above t, from `at` on, which lies in the tail."""
        left = max(1 + self.shape * (at - self.threshold) / max(self.scale, _NOTHING), 0.0)
        return self.share_above * float(self._beyond(np.array([at]))[0]) * self.scale * left / (1 - self.shape)

    def _beyond(self, at: Floats) -> Floats:
        reach = np.maximum(at - self.threshold, 0.0) / max(self.scale, _NOTHING)
        if abs(self.shape) < _FLAT:
            return np.asarray(np.exp(-reach))
        return np.asarray(np.maximum(1 + self.shape * reach, 0.0) ** (-1 / self.shape))


_FLAT, _NOTHING = 1e-6, 1e-12


def share_above(values: int) -> float:
    """Which part of so many values a tail is fitted to."""
    return float(min(LARGEST_SHARE, max(SMALLEST_SHARE, FEWEST_ABOVE / max(values, 1))))


def fitted(samples: Sequence[Floats], heavier: float = 0.0) -> list[Tail]:
    """One distribution per sample; their tails share a shape, which is estimated from all of them together.

    `heavier` is added to the shape: by how much it may be otherwise than estimated.
    """
    parts = [_peaks(np.sort(one)) for one in samples]
    weights = np.array([len(above) for _, _, above in parts], dtype=float)
    shapes = np.array([2 - 1 / max(_l_ratio(above), _NOTHING) if above.sum() > 0 else 0.0 for _, _, above in parts])
    count = float(weights.sum())
    pooled = float((weights * shapes).sum()) / (count + WEIGHT_OF_EXPONENTIAL) + heavier
    shape = min(max(pooled, LEAST_SHAPE), LARGEST_SHAPE)
    return [
        Tail(ordered, share, float(above.mean()) * (1 - shape) if len(above) else 0.0, shape)
        for ordered, share, above in parts
    ]


def _peaks(ordered: Floats) -> tuple[Floats, float, Floats]:
    """Return (the values, the tail's share, by how much those of the tail exceed its threshold)."""
    share = share_above(len(ordered))
    levels = (np.arange(len(ordered)) + 0.5) / len(ordered)
    above = ordered - np.interp(1 - share, levels, ordered)
    return ordered, share, above[above > 0]


def _l_ratio(above: Floats) -> float:
    """Return the second L-moment over the first, of ordered values."""
    count = len(above)
    if count < 2:
        return 0.5
    rank = np.arange(count)
    second = 2 * float((rank * above).sum()) / (count * (count - 1)) - float(above.mean())
    return second / max(float(above.mean()), _NOTHING)
