"""What ranks gave their models in a step, as capture tells it: the size of their batches."""

from collections.abc import Sequence

import numpy as np

from kair_engine.arrays import Floats, Ints
from kair_engine.trace.model import NOT_TOLD, Trace


def given_bytes(trace: Trace, steps: Sequence[int], ranks: Ints) -> Floats | None:
    """(steps × ranks), NaN where it is not told; None where it is told of none."""
    times = trace.job.step_times
    told = dict(zip(zip(times.step, times.rank, strict=True), times.given_bytes, strict=False))
    found = np.array([[told.get((step, rank), NOT_TOLD) for rank in ranks.tolist()] for step in steps], float)
    found[found == NOT_TOLD] = np.nan
    return None if np.isnan(found).all() else found
