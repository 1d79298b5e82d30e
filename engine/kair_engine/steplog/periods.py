"""Finds steps that are slow at regular distances: evaluation, checkpoints, a loader that falls behind."""

from collections.abc import Iterator
from math import erfc, sqrt
from typing import Final

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints
from kair_engine.cancelling import checkpoint
from kair_engine.frozen import dataclass
from kair_engine.stats import binomial_tail
from kair_engine.steplog.cleaning import NORMAL, running_median

LONGEST: Final = 2000
"""Steps."""
_WORK: Final = 100_000_000
"""Steps times periods that are folded: of longer logs long periods are looked for among steps that stand out alone."""
_WIDTH: Final = 25
_WINSOR: Final = 4.0
_BARS: Final = (1.5, 4.0, 8.0, 16.0)
"""MADs by which a step stands out."""
_FEW: Final = 20
"""Repeats, below which noise with long tails is counted out one by one."""
_CHANCE: Final = 1e-3
_OF_REPEATS: Final = 0.7
_FEWEST: Final = 4
_MOST: Final = 4
"""Periods of one log."""
_SMALLEST: Final = 1e-3


@dataclass(frozen=True)
class Found:
    """A period among the places of steps."""

    length: int
    at: Ints
    """All places of it."""
    p_value: float
    extra: float
    """How much longer such a step takes, as a logarithm."""
    shown: int
    """In how many of `at` it shows."""


def periods(y: Floats, place: Ints) -> tuple[list[Found], Floats]:
    """Return the periods of steps at `place`s (ascending numbers, which may have gaps), and the times without them."""
    found: list[Found] = []
    while len(found) < _MOST:
        usual = running_median(y, _WIDTH)
        rest = y - usual
        mad = float(np.median(np.abs(rest))) / NORMAL
        one = _period(rest, place, max(mad, _SMALLEST))
        if one is None:
            break
        found.append(one)
        y = y.copy()
        y[one.at] = usual[one.at]
    return found, y


def _period(rest: Floats, place: Ints, mad: float) -> Found | None:
    """Return the clearest period; None where none is beyond chance."""
    folded = np.clip(rest, -_WINSOR * mad, _WINSOR * mad)
    folded = folded - folded.mean()
    spread = float(folded.std())
    if spread <= 0 or len(rest) < 2 * _FEWEST:
        return None
    span = int(place[-1] - place[0]) + 1
    longest = min(span // _FEWEST, LONGEST)
    best = (0.0, 0, 0)
    for length, rows in _lengths(longest, rest, place, mad):
        phase = place[rows] % length
        sums = np.bincount(phase, folded[rows], length)
        counts = np.bincount(phase if len(rows) == len(place) else place % length, minlength=length)
        z = np.where(counts >= _FEWEST, sums / np.sqrt(np.maximum(counts, 1)), 0.0)
        top = int(z.argmax())
        best = max(best, (float(z[top]) / spread, length, top))
    z_best, length, phase_best = best
    if not length:
        return None
    at = np.flatnonzero(place % length == phase_best)
    return _tested(rest, at, mad, z_best, (length, longest))


def _lengths(longest: int, rest: Floats, place: Ints, mad: float) -> Iterator[tuple[int, Ints]]:
    """Each length to try, with the rows to fold: of long logs beyond some length those alone that stand out."""
    every = np.arange(len(place))
    few = every[rest > _WINSOR * mad]
    whole = max(_WORK // len(place), _WIDTH)
    for length in range(2, longest + 1):
        if not length % 64:
            checkpoint()
        yield length, every if length <= whole else few


def _tested(rest: Floats, at: Ints, mad: float, z: float, lengths: tuple[int, int]) -> Found | None:
    length, longest = lengths
    tried = longest**2 / 2
    values = rest[at]
    p_value = normal_tail(z) * tried
    if len(at) < _FEW:
        others = np.delete(rest, at)
        p_value = max(p_value, min(_by_count(values, others, bar * mad) for bar in _BARS) * len(_BARS) * tried)
    typical = max(float(np.median(values)) / 2, 1.5 * mad)
    shown: Bools = values > min(typical, 4 * mad)
    if p_value > _CHANCE or shown.mean() < _OF_REPEATS:
        return None
    extra = float(np.median(values))
    return Found(length, at, min(p_value, 1.0), extra, int(shown.sum()))


def _by_count(values: Floats, others: Floats, bar: float) -> float:
    """How likely as many of them stand out as far by chance, given how often others do."""
    share = (int((others > bar).sum()) + 1) / (len(others) + 1)
    return binomial_tail(int((values > bar).sum()), len(values), min(share, 1.0))


def normal_tail(z: float) -> float:
    """Return how likely a normal number is larger than `z`."""
    return 0.5 * erfc(z / sqrt(2))
