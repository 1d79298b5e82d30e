"""One clock for the job, from what all members of a collective do together: leaving it; else from transfers."""

import numpy as np

from kair_engine.arrays import Floats, Ints, dense, present
from kair_engine.frozen import dataclass
from kair_engine.stats import median, median_by
from kair_engine.timeline.collectives import Collectives, disagreement_ns
from kair_engine.trace.operations import COLLECTIVE, RECV

_SWEEPS = 500
_SETTLED_NS = 100.0
"""Kernels' own timestamps are no better than this."""
_TOLERANCE_NS = 50_000.0
"""50 µs by which a receive may end before its send began: timestamps, and drift within a step."""


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
    in it. Of a pair each would take half of the other's. What no collective connects, transfers do: see `_connected`.
    """
    offset = np.zeros(ranks)
    if not len(collectives):
        return Clocks(offset, None)
    # A send may end long before its receive: only true collectives tell the time.
    together = collectives.ops.kind[collectives.row] == COLLECTIVE
    if not together.any():
        return Clocks(_connected(collectives, offset, np.arange(ranks)), None)
    member = collectives.ops.rank[collectives.row]
    difference = disagreement_ns(collectives, offset)
    community = collectives.community[collectives.instance]
    pair = dense(np.stack((community, member)))[together]
    _, first = np.unique(pair, return_index=True)
    seen = median_by(pair, difference[together])[first]
    of_community, of_rank = community[together][first], member[together][first]
    offset = _fit(of_community, of_rank, seen, ranks)
    offset = _connected(collectives, offset, _joined_by(of_community, of_rank, ranks))
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


def _joined_by(community: Ints, rank: Ints, ranks: int) -> Ints:
    """Per rank a number, equal for those that collectives connect, directly or over others."""
    part = np.arange(ranks)
    while True:
        lowest = np.full(int(community.max()) + 1, ranks)
        np.minimum.at(lowest, community, part[rank])
        joined = part.copy()
        np.minimum.at(joined, rank, lowest[community])
        joined = joined[joined]
        if (joined == part).all():
            return part
        part = joined


def _connected(collectives: Collectives, offset: Floats, part: Ints) -> Floats:
    """The offsets with those parts of the job on one clock that only transfers connect: no receive ends before its send
    began.

    That bounds by how much one part's clock is ahead of another's, from both sides where they send both ways. A clock
    within the bounds is believed; else it is in their middle, as NTP has it.
    """
    ops, first = collectives.ops, collectives.starts
    transfers = first[ops.kind[collectives.row[first]] != COLLECTIVE]
    if not len(transfers) or (part == part[0]).all():
        return offset
    rows = collectives.row[transfers[:, None] + np.arange(2)]
    rows = np.where((ops.kind[rows[:, :1]] == RECV), rows[:, ::-1], rows)
    (sender, receiver), (sent, received) = ops.rank[rows].T, rows.T
    at_most = ops.end_ns[received] - offset[receiver] - ops.start_ns[sent] + offset[sender]
    bounds: dict[tuple[int, int], float] = {}
    links = zip(part[sender].tolist(), part[receiver].tolist(), at_most.tolist(), strict=True)
    for one, other, most in links:
        if one != other:
            bounds[one, other] = min(most, bounds.get((one, other), np.inf))
    ahead = _along(bounds, part)
    return np.asarray(offset + [ahead.get(one, 0.0) for one in part.tolist()])


def _along(bounds: dict[tuple[int, int], float], part: Ints) -> dict[int, float]:
    """Per part how much its clock is ahead, from the largest part on along the transfers between them."""
    beside: dict[int, list[int]] = {}
    for one, other in bounds:
        beside.setdefault(one, []).append(other)
        beside.setdefault(other, []).append(one)
    numbers, sizes = np.unique(part, return_counts=True)
    ahead: dict[int, float] = {}
    for root in numbers[np.argsort(-sizes, kind="stable")].tolist():
        waiting = [root] if root in beside and root not in ahead else []
        for one in waiting:
            ahead.setdefault(one, 0.0)
            for other in beside[one]:
                if other not in ahead:
                    ahead[other] = ahead[one] + _ahead(
                        -bounds.get((other, one), np.inf), bounds.get((one, other), np.inf)
                    )
                    waiting.append(other)
    return ahead


def _ahead(least: float, most: float) -> float:
    """0 where that is within the bounds, else their middle, or the one that is known."""
    if least - _TOLERANCE_NS <= 0 <= most + _TOLERANCE_NS:
        return 0.0
    return (least + most) / 2 if np.isfinite(least + most) else least if np.isfinite(least) else most
