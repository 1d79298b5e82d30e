"""Prices of scenarios, as means over steps."""

import numpy as np

from kair_engine.arrays import Floats
from kair_engine.whatif.operators.batches import StepPrices


def saved_ns(prices: StepPrices) -> Floats:
    """Per scenario the mean over steps of what it saves."""
    return np.asarray((prices.replayed_ns - prices.scenario_ns).mean(axis=1))
