"""Counts of what had finished by a given time."""

import numpy as np

from kair_engine.arrays import NONE, Ints
from kair_engine.trace.operations import Operations


def latest_ended(ops: Operations, rows: Ints, others: Ints, by: Ints | None = None, ends: Ints | None = None) -> Ints:
    """For each row the one of `others` on its rank that ended last, not after the row's start; NONE if none did.

    `by` (one time per row) replaces the rows' starts, `ends` (one per operation) the operations' ends.
    """
    if not len(rows) or not len(others):
        return np.full(len(rows), NONE, dtype=np.int64)
    ends = ops.end_ns if ends is None else ends
    by = ops.start_ns[rows] if by is None else by
    low = min(int(ends[others].min()), int(by.min()))
    span = max(int(ends[others].max()), int(by.max())) - low + 1
    key = ops.rank[others] * span + (ends[others] - low)
    order = np.argsort(key, kind="stable")
    place = np.searchsorted(key[order], ops.rank[rows] * span + (by - low), side="right") - 1
    found = others[order[np.maximum(place, 0)]]
    return np.where((place >= 0) & (ops.rank[found] == ops.rank[rows]), found, NONE)
