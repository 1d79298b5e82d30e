"""The contrast of moments: what a few steps cost, on one rank, on another one each time, or on all ranks alike."""

import math
from collections.abc import Collection, Iterator
from typing import Final

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints, zero_for_nan
from kair_engine.frozen import dataclass
from kair_engine.localize.anomalies import FALSE_ALARM_RATE, FEWEST_STEPS
from kair_engine.localize.excess import CLASSES, JobExcess
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
"""Of the recording, what a single moment must cost to be listed: the smallest share that is told of a rank."""
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
class ChangingWork:
    """All wait for whoever has most to do, and that is another rank each time."""

    class_index: int
    operator: str | None
    """That makes up most of it; None where no single one does."""
    positions: tuple[Position, ...]
    """The ranks that were longest in some step."""
    lost_ns: float
    """By how much the longest exceeds the mean rank, the trimmed mean over steps: a few large delays are none of it."""


def shared_moments(job: JobExcess) -> Iterator[Moment]:
    """Yield for input and for hosts the few steps in which half of the ranks spend far more than in the others."""
    for row in _OWN[1:] if len(job.steps) >= FEWEST_STEPS else ():
        # Of two ranks the median is halfway to the one that alone has it.
        spent = np.sort(job.every_work_ns[:, row], axis=1)[:, (len(job.ranks) - 1) // 2]
        # Half of the steps may have it: the other half tells what is usual.
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


def changing_work(job: JobExcess, steady_ns: Floats, explained: Collection[Position]) -> ChangingWork | None:
    """Return what uneven work costs where another rank is longest each time; None where it costs little, or is one's.

    `steady_ns` (ranks) is what each takes longer for good, which is told otherwise; so is all of those `explained`.
    """
    steps = len(job.steps)
    if steps < FEWEST_STEPS or len(np.unique(job.role)) > 1 or len(job.ranks) < 2:
        return None
    of_class = zero_for_nan(job.by_step_ns)[:, _OWN]
    own = of_class.sum(axis=1) - steady_ns
    own[:, list(explained)] = 0.0
    longest = own.argmax(axis=1)
    lost = float(trimmed_mean(own.max(axis=1) - own.mean(axis=1), TRIM))
    noise = STEP_NOISE * math.sqrt(2 * math.log(len(job.ranks)))
    if lost < max(UNEVEN_SHARE, noise) * job.step_time_ns or _is_of_one(longest, len(job.ranks)):
        return None
    at = np.arange(steps), longest
    row = _OWN[int(np.argmax([of_class[:, row][at].sum() for row in range(len(_OWN))]))]
    named = {name: float(job.operator_ns(name)[0][at].mean()) for name in job.operators}
    operator = max(named, key=lambda name: named[name], default=None)
    if operator is not None and named[operator] < lost / 2:
        operator = None
    return ChangingWork(row, operator, as_positions(np.unique(longest)), lost)


def _is_of_one(longest: Ints, ranks: int) -> bool:
    """Return whether one rank is longest more often than chance has it."""
    most = int(np.bincount(longest).max())
    return ranks * binomial_tail(most, len(longest), 1 / ranks) < FALSE_ALARM_RATE
