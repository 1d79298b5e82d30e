"""One clock for the job, from the one thing all members of a collective do together: leaving it."""

import numpy as np

from kair_engine.arrays import Floats, Ints, dense, present
from kair_engine.frozen import dataclass
from kair_engine.stats import median, median_by
from kair_engine.timeline.collectives import Collectives, disagreement_ns
from kair_engine.trace.operations import COLLECTIVE

_SWEEPS = 500
_SETTLED_NS = 100.0
"""Kernels' own timestamps are no better than this."""


@dataclass(frozen=True)
class Clocks:
    """What to subtract from each rank's times, and how well that works.

    `offset_ns` has one entry per position in the step's ranks. `residual_ns` is the median distance of a
    member's end from its collective's median end after the correction; None without a collective to tell.
    """

    offset_ns: Floats
    residual_ns: float | None


def align(collectives: Collectives, ranks: int) -> Clocks:
    """Offset of a rank: the median over collectives of (its end − the collective's median end), per process group.

    Process groups that share ranks are fitted to one another: within one, an offset shows only against the others
    in it. Of a pair each would take half of the other's.
    """
    offset = np.zeros(ranks)
    if not len(collectives):
        return Clocks(offset, None)
    # A send may end long before its receive: only true collectives tell the time.
    together = collectives.ops.kind[collectives.row] == COLLECTIVE
    if not together.any():
        return Clocks(offset, None)
    member = collectives.ops.rank[collectives.row]
    difference = disagreement_ns(collectives, offset)
    community = collectives.community[collectives.instance]
    pair = dense(np.stack((community, member)))[together]
    _, first = np.unique(pair, return_index=True)
    seen = median_by(pair, difference[together])[first]
    offset = _fit(community[together][first], member[together][first], seen, ranks)
    return Clocks(offset, float(np.median(np.abs(disagreement_ns(collectives, offset)[together]))))


def _fit(community: Ints, rank: Ints, seen: Floats, ranks: int) -> Floats:
    """Offsets o with seen ≈ o[rank] − shift[community], least squares by alternating means; o has median 0."""
    offset, shift = np.zeros(ranks), np.zeros(int(community.max()) + 1)
    in_rank = np.maximum(np.bincount(rank, minlength=ranks), 1)
    in_community = np.maximum(np.bincount(community), 1)
    for _ in range(_SWEEPS):
        before = offset
        offset = np.bincount(rank, weights=seen + shift[community], minlength=ranks) / in_rank
        shift = np.bincount(community, weights=offset[rank] - seen) / in_community
        if np.abs(offset - before).max() < _SETTLED_NS:
            break
    known = present(rank)
    offset[known] -= median(offset[known])
    return offset
