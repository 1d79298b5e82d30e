"""How many samples of a running step a rank claims next: ranks share a step out among themselves, without a forecast.

A counter gives each claim the next samples of the step, so that each is trained once whatever ranks believe of each
other. Speeds only guide how large a claim is, and who leaves the rest to the others. The loader (`claiming`) and the
simulation (`policy.claims`) decide by these functions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

Span = tuple[int, int]

SHARE = 0.5
"""A rank claims this share of what it should still do, as guided self-scheduling does; a STEADY one all of it."""
STEADY = 0.75
"""A rank is steady at this share of the fastest one's speed: its last part then takes little longer than another's."""
ALIKE = 0.1
"""Speeds that differ by a smaller share are noise: a calm job's ranks claim even parts, in as few batches as ever."""
SUDDEN = 0.25
"""A smaller change of a rank's speed is mostly noise, and counts by WEIGHT; a larger one, as a spell's, at once."""
WEIGHT = 0.3
SMALLEST = 4
"""A claim is at least the micro-batch divided by this: the cost of each claim would count in smaller ones."""

EASED = 0.9
"""A rank whose only batch of a step shows no speed is believed to take this much less time from step to step."""


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

    def forecast(self) -> tuple[list[list[Span]], int]:
        """Return each rank's first two parts of the step, which all ranks know, and how many samples these are.

        Nobody declines a first part.
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
        """Return what the rank claims as it begins a batch of `held` samples, where `left` are unclaimed.

        `speed` is the rank's own in this step. The rank assumes that others have as much before them as it would have
        itself at the speed known before. It leaves off, and claims 0, where its smallest claim would end after theirs.
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


def told_speeds(before: Sequence[float] | None, told: Sequence[float]) -> list[float] | None:
    """Return the speeds that ranks go by after a step in which each has told its own, 0 where none showed.

    A rank that showed none is believed a little faster than before, so that it claims more until it shows its speed.
    None while nobody has shown one.
    """
    known = [speed for speed in told if speed > 0]
    if not known:
        return None if before is None else list(before)
    mean, most = sum(known) / len(known), max(known)
    if before is None:
        return [speed if speed > 0 else mean for speed in told]
    return [
        _followed(speed, believed) if speed > 0 else min(believed / EASED, most)
        for speed, believed in zip(told, before, strict=True)
    ]


def _followed(speed: float, before: float) -> float:
    """Return the speed to go by where a rank has shown one after another."""
    return before + WEIGHT * (speed - before) if is_alike(speed, before, SUDDEN) else speed


def evened(speeds: Sequence[float]) -> list[float]:
    """Return the speeds, those that are like their mean as if they were that."""
    mean = sum(speeds) / len(speeds)
    return [mean if is_alike(speed, mean, ALIKE) else speed for speed in speeds]


def is_alike(speed: float, other: float, share: float) -> bool:
    """Whether a speed differs by less than a share of the other one."""
    return abs(speed - other) < share * other
