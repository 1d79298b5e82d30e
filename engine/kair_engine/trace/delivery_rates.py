"""One rate for all steps in which something was sent."""

from collections.abc import Sequence
from typing import Final

FEW_STEPS: Final = 8
"""Fewer steps may all have been slow by chance, as what waits for a receiver is."""
UPPER: Final = 0.75
"""Of few steps: as fast as in so many of them at most."""


def usual_rate(rates: Sequence[float], steps: Sequence[float]) -> float:
    """The median of `rates`, each of so many `steps`; of fewer than FEW_STEPS in all the upper quartile.

    What is sent to somebody who does not read yet goes slowly now and then on any network.
    """
    return reached(rates, steps, UPPER if sum(steps) < FEW_STEPS else 0.5)


def reached(values: Sequence[float], weights: Sequence[float], share: float) -> float:
    """The least value such that more than `share` of the weight lies at or below it."""
    left = share * sum(weights)
    for value, weight in sorted(zip(values, weights, strict=True)):
        left -= weight
        if left < 0:
            return value
    return max(values)  # what rounding left over
