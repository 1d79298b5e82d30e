"""What ranks gave their models in a step, as capture tells it: the size of their batches."""

import numpy as np

from kair_engine.arrays import Floats, Ints
from kair_engine.trace.model import NOT_TOLD, Trace


def batch_bytes(trace: Trace, steps: Ints, ranks: Ints) -> Floats | None:
    """(steps × ranks), both in ascending order; NaN where it is not told. None where it is told of none."""
    times = trace.job.step_times
    if not times.given_bytes:
        return None
    of = np.array([times.step, times.rank, times.given_bytes], np.int64)
    of = of[:, np.isin(of[0], steps) & np.isin(of[1], ranks) & (of[2] != NOT_TOLD)]
    if not of.size:
        return None
    found = np.full((len(steps), len(ranks)), np.nan)
    found[np.searchsorted(steps, of[0]), np.searchsorted(ranks, of[1])] = of[2]
    return found
