"""Jobs under `kair confirm`, simulated: a step ends when the last of what it waits for has ended (max-plus).

What is the slowest, by how much and what a fix is worth is known here. Times are in microseconds. The delays are those
of `kair_capture.delays`, step by step, with the overshoot of a sleep and turns that a rank missed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from kair_capture.delays import Arm, Order, arm_of, dose_of, renewed
from kair_engine.arrays import Floats
from kair_engine.confirm.estimate import Recorded
from kair_engine.ranks import Rank

STEP_US = 200_000.0
NETWORK = 0.15
"""Of the step: the all-reduce that nothing hides."""
MICRO_BATCHES = 8
SYNC_EVERY = 100
"""Steps after which a host that runs ahead waits for its device."""


class Shape(StrEnum):
    """What a step waits for."""

    DATA_PARALLEL = "data parallel"
    NETWORK_BOUND = "network-bound"
    """The gradients' exchange begins with the first of them, and takes longer than the rest of the backward."""
    LOADER_BOUND = "loader-bound"
    """One rank's next batch is there later than it could begin."""
    PIPELINE = "pipeline"
    HOST_AHEAD = "host ahead"
    """Hosts launch steps long before the devices begin them; delays are on the hosts."""
    AFTER_SYNC = "before the optimizer"
    """Data parallel, with the delay behind the all-reduce."""


@dataclass(frozen=True)
class Noise:
    """Standard deviations as shares of the step."""

    white: float = 0.02
    """Of each rank in each step."""
    drift: float = 0.02
    """Of the whole job, over some 100 steps."""
    spells: float = 1 / 400
    """Chance that a rank is 10 % slower from here on, for 5 to 20 steps."""
    network: float = 0.01
    hiccups: float = 1 / 400
    """Chance that the network stops for a half up to five steps."""


@dataclass(frozen=True)
class Job:
    """One that can be run with delays and without."""

    shape: Shape = Shape.DATA_PARALLEL
    ranks: int = 8
    excess: Mapping[int, float] = field(default_factory=dict)
    """By how much of the step a rank is slower, in each step."""
    noise: Noise = Noise()
    missed: float = 0.003
    """Chance that a rank misses its turn to be delayed."""
    overshoot_us: float = 60.0


def run(job: Job, order: Order | None, steps: int, seed: int) -> Recorded:
    """What is recorded of `steps` steps while the order, if any, and those that renew it, are followed."""
    rng = np.random.default_rng(seed)
    work, network = _work(job, steps, rng)
    planned = planned_us(order, job.ranks, steps) if order else np.zeros(work.shape)
    measured = np.where(planned > 0, planned + rng.exponential(job.overshoot_us, planned.shape), 0.0)
    measured[rng.random(planned.shape) < job.missed] = 0.0
    ends = _STEPS[job.shape](work, network, measured)
    own = work * (1 + 0.002 * rng.standard_normal(work.shape))
    ranks = tuple(map(Rank, range(job.ranks)))
    # What a rank spends itself includes its delay.
    return Recorded(ranks, ends, own + measured, planned, measured, tuple(map(Rank, order.accused)) if order else ())


def planned_us(order: Order, ranks: int, steps: int) -> Floats:
    """Every rank's doses in steps from the order's first one on, with the order renewed as often as it takes."""
    doses = np.zeros((ranks, steps))
    first = order.first_step
    accused = np.isin(np.arange(ranks), order.accused)
    for at in range(steps):
        if first + at > order.last_step:
            order = renewed(order)
        arm = arm_of(order, first + at)
        if arm is Arm.HALF:
            doses[:, at] = [dose_of(order, first + at, rank) / 1e3 for rank in range(ranks)]
        elif arm is not Arm.NONE:
            # All but the accused get the same.
            doses[accused, at] = dose_of(order, first + at, order.accused[0]) / 1e3
            doses[~accused, at] = dose_of(order, first + at, int(np.argmin(accused))) / 1e3
    return doses


def mean_step_us(job: Job, steps: int, seed: int, dose_us: float = 0.0, delayed: Sequence[int] = ()) -> float:
    """The mean of the same steps, with some ranks delayed in each."""
    work, network = _work(job, steps, np.random.default_rng(seed))
    dose = np.zeros(work.shape)
    dose[list(delayed)] = dose_us
    ends = _STEPS[job.shape](work, network, dose)
    return float(np.median(ends[:, -1] - ends[:, 0])) / (steps - 1)


def worth_us(job: Job, rank: int, steps: int, seed: int) -> float:
    """By how much the mean step is shorter where `rank` has no excess, all else equal."""
    without = replace(job, excess={other: more for other, more in job.excess.items() if other != rank})
    return mean_step_us(job, steps, seed) - mean_step_us(without, steps, seed)


def true_effects(job: Job, rank: int, dose_us: float, steps: int, seed: int) -> tuple[float, float]:
    """Of `rank` delayed in every step and of all others, over the dose, all else equal."""
    free = mean_step_us(job, steps, seed)
    others = [one for one in range(job.ranks) if one != rank]
    alone, rest = (mean_step_us(job, steps, seed, dose_us, who) for who in ([rank], others))
    return (alone - free) / dose_us, (rest - free) / dose_us


def _work(job: Job, steps: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """What each rank computes in each step (ranks × steps), and what the network takes (steps)."""
    shape = (job.ranks, steps)
    noise = job.noise
    work = 1 - NETWORK + noise.white * rng.standard_normal(shape)
    work += noise.drift * _walk(steps, rng) + noise.drift / 3 * np.stack([_walk(steps, rng) for _ in range(job.ranks)])
    for rank, at in np.argwhere(rng.random(shape) < noise.spells):
        work[rank, at : at + rng.integers(5, 21)] += 0.1
    for rank, more in job.excess.items():
        work[rank] += more
    network = NETWORK + noise.network * rng.standard_normal(steps)
    network += np.where(rng.random(steps) < noise.hiccups, rng.uniform(0.5, 5, steps), 0)
    return np.maximum(work, 0.1) * STEP_US, np.maximum(network, 0.01) * STEP_US


def _walk(steps: int, rng: np.random.Generator) -> Floats:
    """A wandering level of standard deviation 1, that forgets itself in some 100 steps."""
    values = np.empty(steps)
    level = rng.standard_normal()
    for at, change in enumerate(rng.standard_normal(steps)):
        level = 0.99 * level + np.sqrt(1 - 0.99**2) * change
        values[at] = level
    return values


def _data_parallel(work: Floats, network: Floats, dose: Floats) -> Floats:
    return np.tile(np.cumsum((work + dose).max(axis=0) + network), (len(work), 1))


def _network_bound(work: Floats, network: Floats, dose: Floats) -> Floats:
    """The delay is late in the backward: behind the first gradients, which are there after half of the work."""
    exchange = 0.5 * work.max(axis=0) + STEP_US * 0.7 + network
    return np.tile(np.cumsum(np.maximum((work + dose).max(axis=0), exchange)), (len(work), 1))


def _loader_bound(work: Floats, network: Floats, dose: Floats) -> Floats:
    """Rank 0's worker needs a quarter of the step more than a step for a batch, two of which can wait."""
    ends = np.zeros(work.shape)
    fetch = 1.25 * STEP_US * np.random.default_rng(len(work)).normal(1, 0.01, work.shape[1])
    loaded, now = 0.0, np.zeros(len(work))
    for at in range(work.shape[1]):
        # A worker fetches the next batch when one of the two places is free.
        loaded = max(loaded, ends[0, at - 2] if at >= 2 else 0.0) + fetch[at]
        begin = now.copy()
        begin[0] = max(begin[0], loaded)
        now = np.full(len(work), (begin + work[:, at] + dose[:, at]).max() + network[at])
        ends[:, at] = now
    return ends


def _pipeline(work: Floats, network: Floats, dose: Floats) -> Floats:
    """Each rank is a stage; the dose is divided among the micro-batches. All forward, then all backward."""
    each = (work + dose) / (3 * MICRO_BATCHES)
    lengths = np.empty(work.shape[1])
    for at in range(work.shape[1]):
        forward = _wave(each[:, at], np.zeros(MICRO_BATCHES))
        lengths[at] = _wave(2 * each[::-1, at], forward)[-1] + network[at]
    return np.tile(np.cumsum(lengths), (len(work), 1))


def _wave(each: Floats, arrived: Floats) -> Floats:
    """When each micro-batch leaves the last of the stages, which take `each` for one, in their order."""
    for takes in each:
        free = 0.0
        left = np.empty(len(arrived))
        for batch, there in enumerate(arrived):
            free = left[batch] = max(free, there) + takes
        arrived = left
    return arrived


def _host_ahead(work: Floats, network: Floats, dose: Floats) -> Floats:
    """Launching takes a host 60 % of the step, and it is two steps ahead at first."""
    ends = np.zeros(work.shape)
    host, device = np.full(len(work), -2.0 * STEP_US), np.zeros(len(work))
    for at in range(work.shape[1]):
        host = host + dose[:, at] + 0.6 * STEP_US
        if at % SYNC_EVERY == SYNC_EVERY - 1:
            host = np.maximum(host, device)
        # A queue of launches is bounded: no host is more than two steps ahead.
        host = np.maximum(host, device - 2 * STEP_US)
        device = np.full(len(work), (np.maximum(device, host) + work[:, at]).max() + network[at])
        ends[:, at] = device
    return ends


def _after_sync(work: Floats, network: Floats, dose: Floats) -> Floats:
    ends = np.zeros(work.shape)
    now = np.zeros(len(work))
    for at in range(work.shape[1]):
        now = (now + work[:, at]).max() + network[at] + dose[:, at]
        ends[:, at] = now
    return ends


_STEPS = {
    Shape.DATA_PARALLEL: _data_parallel,
    Shape.NETWORK_BOUND: _network_bound,
    Shape.LOADER_BOUND: _loader_bound,
    Shape.PIPELINE: _pipeline,
    Shape.HOST_AHEAD: _host_ahead,
    Shape.AFTER_SYNC: _after_sync,
}
