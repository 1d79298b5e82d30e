"""Host pauses between the collectives of one step: the sample where too few steps were recorded."""

from dataclasses import dataclass

import numpy as np

from kair_engine.arrays import NONE, Floats, Ints
from kair_engine.trace.operations import Operations

EVENT_SHARE = 0.01
"""Of the step: idle time between two collectives that counts as an event."""


@dataclass(frozen=True)
class Pauses:
    """Per rank of the step: how many of its stretches between two collectives its host held up, and for how long."""

    count: Ints
    lost_ns: Floats


def pauses(ops: Operations, gap_ns: Floats, role: Ints) -> Pauses:
    """Counts the stretches of a rank's program in which its host alone kept it idle.

    A stretch lies between the issue of two collectives, so that one pause is one event, however many collectives
    it makes the rank late for. Where half of the role pauses, the program does.
    """
    idle = np.flatnonzero(gap_ns > 0)
    ranks = len(ops.ranks)
    if not len(idle):
        return Pauses(np.zeros(ranks, dtype=np.int64), np.zeros(ranks))
    stretch = _stretch(ops, idle)
    width = int(stretch.max()) + 1
    cells, of_row = np.unique(ops.rank[idle] * width + stretch, return_inverse=True)
    total = np.bincount(of_row.reshape(-1), weights=gap_ns[idle])
    long = total > EVENT_SHARE * ops.step_time_ns
    cells, total = cells[long], total[long]
    rank = cells // width
    same, peers = np.unique(role[rank] * width + cells % width, return_inverse=True)
    together = np.bincount(peers.reshape(-1), minlength=len(same))[peers.reshape(-1)]
    alone = 2 * together < np.bincount(role)[role[rank]]
    return Pauses(
        np.bincount(rank[alone], minlength=ranks).astype(np.int64),
        np.bincount(rank[alone], weights=total[alone], minlength=ranks).astype(float),
    )


def _stretch(ops: Operations, rows: Ints) -> Ints:
    """How many collectives each row's rank had issued before it."""
    issued = np.where(ops.launch == NONE, ops.start_ns, ops.start_ns[ops.launch])
    communication = np.flatnonzero(ops.communication)
    low = int(issued.min())
    span = int(issued.max()) - low + 1
    key = np.sort(ops.rank[communication] * span + (issued[communication] - low), kind="stable")
    before = np.searchsorted(key, ops.rank[rows] * span + (issued[rows] - low), side="left")
    return np.asarray(before - np.searchsorted(key, ops.rank[rows] * span, side="left"))
