"""Job-wide slowness without a guilty rank: uneven stages and uneven batches."""

from collections.abc import Collection

import numpy as np

from kair_engine.arrays import Floats, Ints
from kair_engine.frozen import dataclass
from kair_engine.localize.excess import CLASSES, JobExcess
from kair_engine.localize.noise import inflation
from kair_engine.ranks import Position, as_positions
from kair_engine.stats import MAD_TO_SIGMA, TRIM, known_median, trimmed_mean
from kair_engine.timeline.roles import Role

STAGE_SHARE, STAGE_RATIO = 0.05, 1.1
"""A stage is uneven where it costs this share of the step, and takes this much longer than the stages' mean."""
CORRELATED = 0.9
"""Batches of different length slow forward and backward passes of a rank alike: their times must correlate by this [W].
"""
VARIATION, BATCH_SHARE = 0.01, 0.03
"""Batches are uneven if the forward pass varies by this, and they cost this share of the step."""
_STEPS_TO_CORRELATE = 4
MAX_INFLATION = 2.0
"""Batches that are drawn anew for every step do not inflate variances of means beyond this: then the ranks' speed does.
"""
OPTIMIZER_VARIATION, OPTIMIZER_SHARE = 0.4, 0.01
"""An optimizer that takes OPTIMIZER_SHARE of the passes, and varies by OPTIMIZER_VARIATION of what they vary by, shows
that the speed does."""
_MOST_DEVIATIONS = 4.0
"""A step that lies more deviations out is a slow moment and no long batch. (One GPU slow now and then slows both
passes, too.)"""


@dataclass(frozen=True)
class UnevenStage:
    """A pipeline stage that computes longer than the others; times per step."""

    role: Role
    positions: tuple[Position, ...]
    of_role_ns: dict[Role, float]
    """Every stage's compute."""
    lost_ns: float


@dataclass(frozen=True)
class UnevenBatches:
    """Batches of different length: the step waits for the longest."""

    correlation: float
    """The median over ranks, of forward and backward time over steps."""
    variation: float
    lost_ns: float
    """What waiting for the rank with the longest sequences costs a step. In a pipeline each microbatch is awaited, and
    this is only a part of the cost: a replay shows all of it."""

    def are_costly(self, step_time_ns: float) -> bool:
        """Return whether that alone is worth reporting."""
        return self.lost_ns > BATCH_SHARE * step_time_ns


def uneven_stage(job: JobExcess, accused: Collection[Position]) -> UnevenStage | None:
    """Return the stage whose ranks, by their median, compute longest; None where stages are even or unknown.

    Its cost is what the step would save if all stages took their mean: all wait for the slowest, microbatch by
    microbatch. `accused` ranks are left out.
    """
    codes = np.unique(job.role)
    healthy = ~np.isin(np.arange(len(job.ranks)), list(accused))
    of_stage = [np.flatnonzero((job.role == code) & healthy) for code in codes]
    communication = job.work_ns[CLASSES.index("communication")]
    if len(codes) < 2 or not all(map(len, of_stage)):
        return None
    # Where transfers name no ends it is not known how long they take.
    if job.shows_waiting and any(np.median(communication[ranks]) <= 0 for ranks in of_stage):
        return None
    compute = trimmed_mean(np.nan_to_num(np.stack([step.work_ns[0] for step in job.steps])), TRIM, axis=0)
    own = np.array([np.median(compute[ranks]) for ranks in of_stage])
    slowest, mean = int(np.argmax(own)), float(own.mean())
    lost = float(own[slowest]) - mean
    if lost <= STAGE_SHARE * job.step_time_ns or own[slowest] <= STAGE_RATIO * mean:
        return None
    positions = as_positions(np.flatnonzero(job.role == codes[slowest]))
    roles = [job.role_of[int(job.ranks[ranks[0]])] for ranks in of_stage]
    return UnevenStage(roles[slowest], positions, dict(zip(roles, own.tolist(), strict=True)), lost)


def uneven_batches(job: JobExcess, accused: Collection[Position]) -> UnevenBatches | None:
    """Batches whose length varies between ranks and steps, whatever that costs; None where none is seen.

    Within a rank forward and backward then vary together, around what is usual for it: a rank that is always slow
    shows no correlation here. Rare slow moments do not count as variation. Nor does a rank's speed: that is not the
    same in all stages of a pipeline; where there is one stage, the optimizer varies with it as the passes do, and one
    step resembles the next.
    """
    ranks = np.setdiff1d(np.arange(len(job.ranks)), np.array(list(accused), dtype=np.int64))
    if len(job.steps) < _STEPS_TO_CORRELATE or not len(ranks):
        return None
    passes, total = _relative(job, job.passes_ns), _relative(job, job.passes_ns.sum(axis=1, keepdims=True))[:, 0]
    variation = MAD_TO_SIGMA * float(np.median(np.abs(passes[:, 0, ranks])))
    usual = np.abs(passes).max(axis=1) <= _MOST_DEVIATIONS * max(variation, VARIATION)
    of_ranks = (passes[usual[:, rank], :, rank] for rank in ranks)
    known = [value for of in of_ranks if len(of) >= _STEPS_TO_CORRELATE and (value := _pearson(*of.T)) is not None]
    if not known:
        return None
    correlation = float(np.median(known))
    computed = np.median(job.passes_ns.sum(axis=1), axis=0)
    role = job.role[ranks]
    busiest = max(np.unique(role), key=lambda code: float(np.median(computed[ranks[role == code]])))
    members = ranks[role == busiest]
    lost = float(total[:, members].max(axis=1).mean() * np.median(computed[members]))
    if correlation < CORRELATED or variation < VARIATION:
        return None
    through_stages = _through_stages(job, np.where(usual, total, np.nan), ranks)
    if _wobbles(job, total[:, ranks], ranks) if through_stages is None else through_stages < CORRELATED:
        return None
    return UnevenBatches(correlation, variation, lost)


def _through_stages(job: JobExcess, total: Floats, ranks: Ints) -> float | None:
    """Return how much the passes of a stage vary together with those of the other stages.

    A batch goes through all stages, while a rank's speed stays with the rank. `total` is (steps × ranks), relative, NaN
    where a step is a slow moment. Ranks of one replica run the same batch; if the layout is unknown, ranks at the same
    position in their stages are taken as one replica. The result is Pearson's correlation, the median of the stages;
    None for a single stage, or for stages with different replicas.
    """
    of_stage = [ranks[job.role[ranks] == code] for code in np.unique(job.role[ranks])]
    found = [np.arange(len(stage)) if job.replica is None else job.replica[stage] for stage in of_stage]
    if len(of_stage) < 2 or len({tuple(np.unique(of).tolist()) for of in found}) > 1:
        return None
    by_replica = (
        [known_median(total[:, stage[of == one]].T) for one in np.unique(of)]
        for stage, of in zip(of_stage, found, strict=True)
    )
    values = np.array([np.concatenate(of) for of in by_replica])
    values = values[:, ~np.isnan(values).any(axis=0)]
    if values.shape[1] < _STEPS_TO_CORRELATE:
        return None
    others = (values.sum(axis=0) - values) / (len(values) - 1)
    known = [of for pair in zip(values, others, strict=True) if (of := _pearson(*pair)) is not None]
    return float(np.median(known)) if known else None


def _wobbles(job: JobExcess, total: Floats, ranks: Ints) -> bool:
    """Whether it is the ranks' speed that varies and not their batches; `total` is (steps × ranks), relative."""
    if inflation(total) > MAX_INFLATION:
        return True
    optimizer = job.optimizer_ns[:, ranks]
    if np.median(optimizer) < OPTIMIZER_SHARE * np.median(job.passes_ns.sum(axis=1)[:, ranks]):
        return False
    own = _relative(job, job.optimizer_ns[:, None])[:, 0, ranks]
    squares = float((total**2).sum())
    return bool(squares > 0 and float((own * total).sum()) / squares > OPTIMIZER_VARIATION)


def _relative(job: JobExcess, values: Floats) -> Floats:
    """Return each value over its role's median in the step, less the rank's usual one (steps × passes × ranks)."""
    result = np.zeros_like(values)
    for code in np.unique(job.role):
        members = np.flatnonzero(job.role == code)
        typical = np.median(values[:, :, members], axis=2, keepdims=True)
        result[:, :, members] = values[:, :, members] / np.maximum(typical, 1.0) - 1
    return np.asarray(result - np.median(result, axis=0, keepdims=True))


def _pearson(one: Floats, other: Floats) -> float | None:
    a, b = one - one.mean(), other - other.mean()
    scale = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return float((a * b).sum()) / scale if scale > 0 else None
