"""The contrast of moments: what a few steps cost, on one rank, on another one each time, or on all ranks alike."""

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Final

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints, zero_for_nan
from kair_engine.causes import Cause
from kair_engine.frozen import dataclass
from kair_engine.localize.anomalies import FALSE_ALARM_RATE, FEWEST_STEPS
from kair_engine.localize.excess import CLASSES, PASSES, JobExcess
from kair_engine.localize.large_delays import OUT_OF_NOISE, STALL_SHARE, stalls
from kair_engine.ranks import Position, as_positions
from kair_engine.stats import MAD_TO_SIGMA, TRIM, binomial_tail, median, trimmed_mean

UNEVEN_SHARE: Final = 0.05
"""Of the step, what waiting for whoever is longest must cost where that is another rank each time: as much as a verdict
of no straggler may leave open."""
STEP_NOISE: Final = 0.025
"""Of the step, by how much a healthy rank's own time varies from step to step: with more ranks the longest of them is
farther out, by √(2 ln ranks) of it."""
EVENT_SHARE: Final = 0.01
"""A single moment is listed if it costs this share of the recording: the smallest share that is reported of a rank."""
FEWEST_CHANGING: Final = 3
"""Pauses fall on changing ranks if they are on this many, in this many steps."""
FORWARD_ONLY: Final = 0.8
"""Idle time is garbage collection if this part of it is in the forward pass: the thread that runs Python collects [W].
"""
_OWN = [row for row, name in enumerate(CLASSES) if name != "communication"]


@dataclass(frozen=True)
class Moment:
    """A few steps that took a rank, or all ranks, much longer than the others."""

    positions: tuple[Position, ...]
    """Empty where all ranks took longer alike."""
    class_index: int
    hit: tuple[int, ...]
    """Its steps, as places among the job's."""
    lost_ns: float
    """The mean over all steps."""

    def every(self) -> int | None:
        """Return the distance between its steps, where they come at equal ones."""
        apart = {after - before for before, after in zip(self.hit, self.hit[1:], strict=False)}
        return apart.pop() if len(self.hit) >= FEWEST_STEPS and len(apart) == 1 else None


@dataclass(frozen=True)
class AnotherRank:
    """All wait for whoever takes longest, and that is another rank each time."""

    cause: Cause
    positions: tuple[Position, ...]
    """The ranks that were longest in some step."""
    steps: tuple[int, ...]
    lost_ns: float
    """The mean over all steps."""
    figures: Mapping[str, float]
    operator: str | None = None
    """That makes up most of it; None where no single one does."""


def shared_moments(job: JobExcess) -> Iterator[Moment]:
    """Yield for input and for hosts the few steps in which half of the ranks spend far more than in the others."""
    for row in _OWN[1:] if len(job.steps) >= FEWEST_STEPS else ():
        # Of two ranks the median is halfway to the one that alone has it.
        spent = np.sort(job.every_work_ns[:, row], axis=1)[:, (len(job.ranks) - 1) // 2]
        # Half of the steps may have it: the other half shows what is usual.
        lower = np.sort(spent)[: (len(spent) + 1) // 2]
        usual = float(median(lower))
        beyond = spent - usual
        noise = MAD_TO_SIGMA * float(median(np.abs(lower - usual)))
        hit = beyond > max(STALL_SHARE * job.step_time_ns, OUT_OF_NOISE * noise)
        if 0 < np.count_nonzero(hit) <= len(spent) // 2:
            yield _moment((), row, hit, float(beyond[hit].sum()))


def events(job: JobExcess, accused: Collection[Position]) -> Iterator[Moment]:
    """Yield per rank that is not accused its steps with a large delay, where they cost something."""
    if len(job.steps) < FEWEST_STEPS:
        return
    of_class = zero_for_nan(job.by_step_ns)
    hit = stalls(job)
    for rank in as_positions(np.flatnonzero(hit.any(axis=0))):
        lost = of_class[hit[:, rank], :, rank].sum(axis=0)
        if rank not in accused and lost.sum() / len(job.steps) >= EVENT_SHARE * job.step_time_ns:
            yield _moment((rank,), int(np.argmax(lost)), hit[:, rank], float(lost.sum()))


def _moment(positions: tuple[Position, ...], row: int, hit: Bools, lost_ns: float) -> Moment:
    return Moment(positions, row, tuple(np.flatnonzero(hit).tolist()), lost_ns / len(hit))


def scattered(job: JobExcess, accused: Collection[Position]) -> AnotherRank | None:
    """Return large delays that fall on changing ranks, where together they cost the step; None otherwise."""
    if len(job.steps) < FEWEST_STEPS:
        return None
    hit = stalls(job)
    hit[:, list(accused)] = False
    ranks, steps = np.flatnonzero(hit.any(axis=0)), np.flatnonzero(hit.any(axis=1))
    per_step = zero_for_nan(job.by_step_ns)
    lost = float(np.where(hit, per_step.sum(axis=1), 0.0).max(axis=1).mean())
    if min(len(ranks), len(steps)) < FEWEST_CHANGING or lost <= UNEVEN_SHARE * job.step_time_ns:
        return None
    row = int(np.argmax((per_step * hit[:, None, :]).sum(axis=(0, 2))))
    is_garbage = CLASSES[row] == "host" and _is_garbage(job, np.argwhere(hit))
    return AnotherRank(
        "garbage_collection" if is_garbage else CLASSES[row],
        as_positions(ranks),
        tuple(job.steps[step].step for step in steps),
        lost,
        {"delays": float(hit.sum()), "rate": float(hit.mean())},
    )


def _is_garbage(job: JobExcess, events: Ints) -> bool:
    """Return whether pauses are garbage collection: seen as such, or in the forward pass alone."""
    idle, seen = np.zeros(len(PASSES)), 0.0
    for step, rank in events:
        idle += job.steps[step].idle_ns[:, rank]
        seen += float(job.steps[step].garbage_ns[rank])
    forward_only = job.on_device and idle.sum() > 0 and idle[0] > FORWARD_ONLY * idle.sum()
    return bool(seen > idle.sum() or forward_only)


@dataclass(frozen=True)
class Longest:
    """Who takes longest by itself in each step, where that is another rank each time."""

    of_class_ns: Floats
    """(steps × classes of own time × ranks), of steps that all ranks recorded."""
    on_all: Bools
    """Which of the job's steps these are."""
    rank: Ints
    """Per step."""
    lost_ns: float
    """By how much the longest exceeds the mean rank, the trimmed mean over steps: a few large delays are none of it."""

    @classmethod
    def of(cls, job: JobExcess, steady_ns: Floats, explained: Collection[Position]) -> "Longest | None":
        """Return it; None where it is one rank's more often than chance has it, or ranks are not of one role."""
        of_class = job.by_step_ns[:, _OWN]
        on_all: Bools = np.asarray(~np.isnan(of_class).any(axis=(1, 2)))
        of_class = of_class[on_all]
        if len(of_class) < FEWEST_STEPS or len(np.unique(job.role)) > 1 or len(job.ranks) < 2:
            return None
        # What a rank compiles is its own, and a large delay of it.
        own = of_class.sum(axis=1) - steady_ns - job.compiling_ns[on_all]
        own[:, list(explained)] = 0.0
        rank, lost = own.argmax(axis=1), _beyond_mean(own)
        if _is_of_one(rank, len(job.ranks)) or _is_mostly_of_one(own, rank, lost):
            return None
        return cls(of_class, on_all, rank, lost)


def changing_work(job: JobExcess, longest: Longest | None) -> AnotherRank | None:
    """Return what uneven work costs where another rank is longest each time; None where it costs little."""
    noise = STEP_NOISE * math.sqrt(2 * math.log(len(job.ranks)))
    if longest is None or longest.lost_ns < max(UNEVEN_SHARE, noise) * job.step_time_ns:
        return None
    lost, at = longest.lost_ns, (np.arange(len(longest.rank)), longest.rank)
    row = int(np.argmax([longest.of_class_ns[:, row][at].sum() for row in range(len(_OWN))]))
    named = {name: float(job.operator_ns(name)[0][longest.on_all][at].mean()) for name in job.operators}
    operator = max(named, key=lambda name: named[name], default=None)
    if operator is not None and named[operator] < lost / 2:
        operator = None
    positions, numbers = as_positions(np.unique(longest.rank)), tuple(step.step for step in job.steps)
    figures = {"ranks": float(len(positions)), "steps": float(len(numbers))}
    return AnotherRank("uneven_work" if row == 0 else CLASSES[_OWN[row]], positions, numbers, lost, figures, operator)


def _beyond_mean(own: Floats) -> float:
    """By how much the longest of the ranks exceeds the mean one, over (steps × ranks)."""
    return float(trimmed_mean(own.max(axis=1) - own.mean(axis=1), TRIM))


def _is_mostly_of_one(own: Floats, longest: Ints, lost_ns: float) -> bool:
    """Return whether most of what the longest cost is gone without the rank that costs most: few steps, long ones.

    Of ranks that take turns each is replaced by the next: without one of three 0.67 is left, of eight 0.94.
    """
    if own.shape[1] <= 2:
        return False
    of_rank = np.bincount(longest, weights=own.max(axis=1) - own.mean(axis=1), minlength=own.shape[1])
    return _beyond_mean(np.delete(own, int(of_rank.argmax()), axis=1)) < lost_ns / 2


def _is_of_one(longest: Ints, ranks: int) -> bool:
    """Return whether one rank is longest more often than chance has it."""
    most = int(np.bincount(longest).max())
    return ranks * binomial_tail(most, len(longest), 1 / ranks) < FALSE_ALARM_RATE
