"""One clock for the job, from the one thing all members of a collective do together: leaving it."""

from dataclasses import dataclass

import numpy as np

from kair_engine.arrays import Floats
from kair_engine.collectives import Collectives, disagreement_ns
from kair_engine.operations import COLLECTIVE


@dataclass(frozen=True)
class Clocks:
    """What to subtract from each rank's times, and how well that works.

    `offset_ns` has one entry per position in the step's ranks. `residual_ns` is the median distance of a
    member's end from its collective's median end after the correction; None without a collective to tell.
    """

    offset_ns: Floats
    residual_ns: float | None


def align(collectives: Collectives, ranks: int) -> Clocks:
    """Offset of a rank: the median over collectives of (its end − the collective's median end)."""
    offset = np.zeros(ranks)
    if not len(collectives):
        return Clocks(offset, None)
    # A send may end long before its receive: only true collectives tell the time.
    together = collectives.ops.kind[collectives.row] == COLLECTIVE
    if not together.any():
        return Clocks(offset, None)
    difference = disagreement_ns(collectives, offset)[together]
    member = collectives.ops.rank[collectives.row][together]
    for rank in np.unique(member):
        offset[rank] = np.median(difference[member == rank])
    return Clocks(offset, float(np.median(np.abs(disagreement_ns(collectives, offset)[together]))))
