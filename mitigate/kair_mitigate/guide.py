"""Decides how many samples of the current step a rank claims next, without a forecast.

A counter gives each claim the next samples of the step, so each is trained once, whatever ranks assume of each other.
Speeds only affect how large a claim is, and which ranks leave the rest to others. The loader (`claiming`) and the
simulation (`policy.claims`) use these functions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

Span = tuple[int, int]

SHARE = 0.5
"""A rank claims this share of its remaining part, as in guided self-scheduling; a STEADY rank claims all of it."""
STEADY = 0.75
"""A rank is steady above this share of the fastest rank's speed: its last part is then little longer than another."""
ALIKE = 0.1
"""Smaller differences in speed are noise: a healthy job's ranks claim even parts, in the usual number of batches."""
SUDDEN = 0.25
"""A smaller change of a rank's speed is mostly noise and counts by WEIGHT; a larger one counts at once."""
WEIGHT = 0.3
SMALLEST = 4
"""Divisor of the micro-batch for the smallest claim: in smaller ones the cost of claiming would matter."""

EASED = 0.9
"""Factor per step on the assumed time of a rank whose only batch of a step shows no speed."""


@dataclass(frozen=True)
class Guide:
    """What all ranks know when a step begins."""

    speeds: Sequence[float]
    """Samples per second of each rank in the last step."""
    samples: int
    """Samples of the step."""
    most: int
    """Samples of the largest claim: the job's micro-batch, which fits into memory."""

    @cached_property
    def least(self) -> int:
        """Return the samples of the smallest claim, except for the last."""
        return max(self.most // SMALLEST, 1)

    @cached_property
    def total(self) -> float:
        """Return the sum of all ranks' speeds."""
        return sum(self.speeds)

    @cached_property
    def fastest(self) -> int:
        """Return the fastest rank, which never declines: otherwise no rank might train the rest."""
        return max(range(len(self.speeds)), key=self.speeds.__getitem__)

    def first(self, rank: int) -> int:
        """Return the rank's claim before it knows anything of the step; at least the smallest claim."""
        wanted = round(SHARE * self.samples * self.speeds[rank] / self.total)
        return min(max(wanted, self.least), self.most)

    def forecast(self) -> tuple[list[list[Span]], int]:
        """Return each rank's first two parts of the step, which all ranks know, and their total samples.

        No rank declines a first part.
        """
        parts, taken = list[list[Span]](), 0
        for rank in range(len(self.speeds)):
            end = min(taken + self.first(rank), self.samples)
            parts.append([(taken, end)])
            taken = end
        for rank, of_rank in enumerate(parts):
            (begin, end), left = of_rank[0], self.samples - taken
            if size := min(self.next(rank, left, end - begin, self.speeds[rank]), left):
                of_rank.append((taken, taken + size))
                taken += size
        return parts, taken

    def next(self, rank: int, left: int, held: int, speed: float) -> int:
        """Return the rank's next claim as it begins a batch of `held` samples, with `left` samples unclaimed.

        `speed` is the rank's own in this step. The rank assumes that others still have as much to do as it would have
        itself at its previously known speed. It declines (0) if its smallest claim would end after theirs.
        """
        believed = self.speeds[rank]
        others = self.total - believed
        if not left or (rank != self.fastest and self._ends_last(left, held, speed, believed, others)):
            return 0
        share = left * speed / (speed + others)
        is_steady = speed >= STEADY * self.speeds[self.fastest]
        return min(max(round(share) if is_steady else int(SHARE * share), self.least), self.most)

    def _ends_last(self, left: int, held: int, speed: float, believed: float, others: float) -> bool:
        own_s = (held + self.least) / speed
        return own_s > held / believed + left / others + self.least / self.speeds[self.fastest]


def next_speeds(before: Sequence[float] | None, reported: Sequence[float]) -> list[float] | None:
    """Return the speeds after a step in which each rank reported its own, 0 if it had none.

    A rank without a speed is assumed a little faster than before, so that it claims more until it shows its speed. None
    until some rank has shown one.
    """
    known = [speed for speed in reported if speed > 0]
    if not known:
        return None if before is None else list(before)
    mean, most = sum(known) / len(known), max(known)
    if before is None:
        return [speed if speed > 0 else mean for speed in reported]
    return [
        _followed(speed, believed) if speed > 0 else min(believed / EASED, most)
        for speed, believed in zip(reported, before, strict=True)
    ]


def _followed(speed: float, before: float) -> float:
    """Return the smoothed speed of a rank; a sudden change is taken at once."""
    return before + WEIGHT * (speed - before) if is_alike(speed, before, SUDDEN) else speed


def evened(speeds: Sequence[float]) -> list[float]:
    """Return the speeds, with those close to the mean replaced by it."""
    mean = sum(speeds) / len(speeds)
    return [mean if is_alike(speed, mean, ALIKE) else speed for speed in speeds]


def is_alike(speed: float, other: float, share: float) -> bool:
    """Return whether a speed differs by less than a share of the other one."""
    return abs(speed - other) < share * other
