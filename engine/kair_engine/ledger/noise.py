"""Estimates the error of the middle of step times: neighbouring steps are correlated, so they count by blocks."""

from collections.abc import Callable
from typing import Final

import numpy as np

from kair_engine.arrays import Floats
from kair_engine.stats import MAD_TO_SIGMA

_BLOCKS: Final = 10
_FEWEST: Final = 5
_OF_MEDIAN: Final = 1.2533
"""√(π/2): the standard error of a median over that of a mean, for normal values."""


def median_noise(values: Floats) -> float | None:
    """Return the standard error of the median of consecutive values; None for fewer than five."""
    return noise_of(values, np.median)


def noise_of(values: Floats, middle: Callable[[Floats], object]) -> float | None:
    """Return the standard error of a middle (NumPy's median or mean) of consecutive values; None for fewer than five.

    Each of ten blocks of neighbours has a middle: these vary √10 times as much as the middle of all would from run to
    run (batch means; Law, Simulation Modeling and Analysis, 9.5). For fewer than 20 values, the spread of single ones
    counts.
    """
    if len(values) < _FEWEST:
        return None
    if len(values) < 2 * _BLOCKS:
        spread = MAD_TO_SIGMA * float(np.median(np.abs(values - np.median(values))))
        return _OF_MEDIAN * spread / float(np.sqrt(len(values)))
    of_blocks = np.array([middle(block) for block in np.array_split(values, _BLOCKS)], np.float64)
    return float(of_blocks.std(ddof=1)) / float(np.sqrt(_BLOCKS))
