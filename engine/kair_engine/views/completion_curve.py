"""Completion curves of a step's operations: their distance is the paper's stage 1."""

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints
from kair_engine.trace.operations import SCOPE, Operations

POINTS = 200
"""Times at which a curve is known: two in each of the paper's windows."""
BAND = (0.1, 0.9)
"""Quantiles of the peers' curves."""


def completed(ops: Operations, chosen: Bools, width_ns: float) -> Floats:
    """(ranks of the step × POINTS): the share of a rank's operations that ended before (k + 1) · `width_ns`.

    Counted from the rank's own begin of the step; 1 from the last point on. Rows of ranks that are not `chosen` are 0.
    Where hosts run ahead, it is the device's operations: most of what a host does for a step is over before it begins.
    """
    counted = chosen[ops.rank] & (ops.kind != SCOPE)
    rows = np.flatnonzero(counted & ops.on_stream if ops.runs_ahead else counted)
    rank = ops.rank[rows]
    point = ((ops.end_ns[rows] - ops.begin_ns[rank]) // width_ns).clip(0, POINTS - 1).astype(np.int64)
    counts = np.bincount(rank * POINTS + point, minlength=len(ops.ranks) * POINTS).reshape(-1, POINTS)
    total = counts.sum(axis=1, keepdims=True)
    return np.asarray(counts.cumsum(axis=1) / np.maximum(total, 1))


def distances(curve: Floats, peers: Floats) -> tuple[Floats, Ints]:
    """The Kolmogorov–Smirnov distance max |F − F_B| of a curve (POINTS) from each peer's, and the points where it lies.

    `peers` is (peers × POINTS); of equal distances the first point counts.
    """
    apart = np.abs(peers - curve)
    at = apart.argmax(axis=1)
    return np.take_along_axis(apart, at[:, None], axis=1)[:, 0], at
