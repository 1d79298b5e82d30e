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


def latest_of_begun(ops: Operations, rows: Ints, others: Ints, by: Ints) -> Ints:
    """The same by a time per row, of those that had begun before the row's start."""
    if not len(rows) or not len(others):
        return np.full(len(rows), NONE)
    low, high = int(min(ops.start_ns[others].min(), by.min())), int(max(ops.end_ns[others].max(), by.max()))
    span = high - low + 1
    ends = ops.rank[others] * span + (ops.end_ns[others] - low)
    order = np.argsort(ends, kind="stable")
    begun = ops.rank[others[order]] * span + (ops.start_ns[others[order]] - low)
    place = np.searchsorted(ends[order], ops.rank[rows] * span + (by - low), side="right")
    wanted = ops.rank[rows] * span + (ops.start_ns[rows] - low)
    # The least begin of so many, up to each one: what began later is skipped by powers of two, the largest first.
    least = [begun]
    while (size := 1 << (len(least) - 1)) * 2 <= len(begun):
        least.append(np.minimum(least[-1], np.concatenate((least[-1][:size], least[-1][:-size]))))
    for power in range(len(least) - 1, -1, -1):
        skipped = (place >= 1 << power) & (least[power][np.maximum(place, 1) - 1] >= wanted)
        place = np.where(skipped, place - (1 << power), place)
    found = others[order[np.maximum(place, 1) - 1]]
    return np.where((place > 0) & (ops.rank[found] == ops.rank[rows]), found, NONE)
