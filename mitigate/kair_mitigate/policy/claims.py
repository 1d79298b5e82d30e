"""How many samples of a running step a rank claims next: ranks share a step out among themselves, without a forecast.

A counter gives each claim the next samples of the step, so that each is trained once whatever ranks believe of each
other. Speeds only guide how large a claim is, and who leaves the rest to the others. The simulation decides by these
functions; the loader has no claims yet.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heapreplace

SHARE = 0.5
"""A rank claims this share of what it should still do, as guided self-scheduling does."""
SMALLEST = 4
"""A claim is at least the micro-batch divided by this: the cost of each claim would count in smaller ones."""


@dataclass(frozen=True)
class Guide:
    """What all ranks know when a step begins."""

    speeds: Sequence[float]
    """Samples a second of each rank, as the last step has shown them."""
    samples: int
    """Samples of the step."""
    most: int
    """Samples of the largest claim: the job's micro-batch, which fits into memory."""

    @cached_property
    def least(self) -> int:
        """Return the samples of the smallest claim but the last."""
        return max(self.most // SMALLEST, 1)

    @cached_property
    def total(self) -> float:
        """Add up the speeds of all ranks."""
        return sum(self.speeds)

    @cached_property
    def fastest(self) -> int:
        """Return the rank that never leaves off: if all left the rest to each other, nobody would train it."""
        return max(range(len(self.speeds)), key=self.speeds.__getitem__)

    def first(self, rank: int) -> int:
        """Return what the rank claims before it knows anything of the step; at least the smallest claim."""
        wanted = round(SHARE * self.samples * self.speeds[rank] / self.total)
        return min(max(wanted, self.least), self.most)

    def next(self, rank: int, left: int, held: int, speed: float) -> int:
        """Return what the rank claims as it begins a batch of `held` samples, where `left` are unclaimed.

        `speed` is the rank's own in this step. The rank assumes that others have as much before them as it would have
        itself at the speed known before. It leaves off, and claims 0, where its smallest claim would end after theirs.
        """
        believed = self.speeds[rank]
        others = self.total - believed
        if not left or (rank != self.fastest and self._ends_last(left, held, speed, believed, others)):
            return 0
        return min(max(int(SHARE * left * speed / (speed + others)), self.least), self.most)

    def _ends_last(self, left: int, held: int, speed: float, believed: float, others: float) -> bool:
        own_s = (held + self.least) / speed
        return own_s > held / believed + left / others + self.least / self.speeds[self.fastest]


def claimed(
    guide: Guide, sample_s: Sequence[float], batch_s: Sequence[float], claim_s: float
) -> tuple[list[float], list[int]]:
    """Return the seconds that each rank is busy, and the samples it has done, in a step shared out by claims.

    Each rank takes `sample_s` for a sample, `batch_s` for a batch in addition, and `claim_s` for a claim. It claims the
    next batch as one begins, because DDP has to know then whether this one is the rank's last.
    """
    ranks = range(len(sample_s))
    held, done, busy_s, left = [0] * len(ranks), [0] * len(ranks), [0.0] * len(ranks), guide.samples
    for rank in ranks:
        held[rank] = min(guide.first(rank), left)
        left -= held[rank]
    speed, begins = list(guide.speeds), [(0.0, rank) for rank in ranks if held[rank]]
    heapify(begins)
    while begins:
        begin_s, rank = begins[0]
        batch, following = held[rank], min(guide.next(rank, left, held[rank], speed[rank]), left)
        left -= following
        busy_s[rank] = begin_s + batch * sample_s[rank] + batch_s[rank] + claim_s
        done[rank] += batch
        speed[rank], held[rank] = done[rank] / busy_s[rank], following
        if following:
            heapreplace(begins, (busy_s[rank], rank))
        else:
            heappop(begins)
    return busy_s, done


def shown_speeds(speeds: Sequence[float], compute_s: Sequence[float], done: Sequence[int]) -> list[float]:
    """Return the speeds that a step has shown; of a rank that trained nothing, the one before."""
    return [
        count / took_s if count and took_s > 0 and math.isfinite(took_s) else before
        for before, took_s, count in zip(speeds, compute_s, done, strict=True)
    ]
