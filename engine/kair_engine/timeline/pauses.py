"""Host pauses between the collectives of one step: the sample where too few steps were recorded."""

import numpy as np

from kair_engine.arrays import NONE, Floats, Ints
from kair_engine.frozen import dataclass
from kair_engine.trace.operations import Operations

EVENT_SHARE = 0.01
"""Idle time between two collectives counts as an event from this share of the step on."""


@dataclass(frozen=True)
class Pauses:
    """Per rank of the step: how many of its stretches between two collectives its host held up, and for how long."""

    count: Ints
    lost_ns: Floats


@dataclass(frozen=True)
class Stretches:
    """Those in which a host kept its device idle, of some ranks: entries of one length, in order."""

    rank: Ints
    """A position among the ranks that they are of."""
    number: Ints
    idle_ns: Floats

    @classmethod
    def of(cls, ops: Operations, gap_ns: Floats) -> "Stretches":
        """A stretch lies between the issue of two collectives; `gap_ns` says how long each operation was held up."""
        idle = np.flatnonzero(gap_ns > 0)
        if not len(idle):
            return cls(idle, idle, np.zeros(0))
        stretch = _stretch(ops, idle)
        width = int(stretch.max()) + 1
        cells, of_row = np.unique(ops.rank[idle] * width + stretch, return_inverse=True)
        total = np.bincount(of_row.reshape(-1), weights=gap_ns[idle])
        return cls(cells // width, cells % width, total.astype(float))


def pauses(stretches: Stretches, step_time_ns: float, role: Ints) -> Pauses:
    """Counts the stretches of a rank's program in which its host alone kept it idle; `role` has a code per rank.

    One pause is one event, however many collectives it makes the rank late for. Where half of the role pauses, the
    program does.
    """
    long = stretches.idle_ns > EVENT_SHARE * step_time_ns
    rank, number, total = stretches.rank[long], stretches.number[long], stretches.idle_ns[long]
    width = int(number.max(initial=0)) + 1
    same, peers = np.unique(role[rank] * width + number, return_inverse=True)
    together = np.bincount(peers.reshape(-1), minlength=len(same))[peers.reshape(-1)]
    alone = 2 * together < np.bincount(role)[role[rank]]
    return Pauses(
        np.bincount(rank[alone], minlength=len(role)).astype(np.int64),
        np.bincount(rank[alone], weights=total[alone], minlength=len(role)).astype(float),
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
