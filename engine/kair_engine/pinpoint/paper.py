"""Stage 2 as the paper states it: z-scores of start and duration over all ranks, outliers beyond 3."""

import math

import numpy as np

from kair_engine.arrays import Floats
from kair_engine.pinpoint.outliers import identify, outlier
from kair_engine.ranks import Rank
from kair_engine.results.common import StepClock
from kair_engine.results.pinpoint import Outlier, PinpointResult
from kair_engine.timeline.peers import PeerGroups, logical_keys
from kair_engine.timeline.step_start import begin_ns
from kair_engine.trace.model import KairWarning, Trace
from kair_engine.trace.operations import SCOPE, Operations
from kair_engine.trace.steps.loading import each_step

PAPER_THRESHOLD = 3.0
"""The empirical 3-sigma rule [K]."""


def pinpoint_paper(trace: Trace, *, rank: int, limit: int, clock: StepClock = "rank") -> PinpointResult:
    """[K] stage 2: a = max(|z_start|, |z_duration|), population SD over all ranks, outlier when a > 3.

    The start counts from the step's begin on each rank, so no common clock is needed; of the `clock` job from the first
    rank's, so that a rank that begins late starts late.
    """
    outliers: list[Outlier] = []
    tested = 0
    for ops in each_step(trace):
        found, compared = _step_outliers(ops, rank, clock)
        outliers += found
        tested += compared
    outliers.sort(key=lambda o: (-o.score, o.step, o.start_us))
    return PinpointResult(
        rank=Rank(rank),
        method="paper",
        outliers=tuple(outliers[:limit]),
        tested=tested,
        total_outliers=len(outliers),
        warnings=paper_limits(len(trace.job.ranks)),
    )


def z_scores(values: Floats) -> Floats:
    """(operators × ranks) → how many population SDs each value lies from its row's mean; 0 where all agree."""
    mean = values.mean(axis=1, keepdims=True)
    sigma = values.std(axis=1, keepdims=True)
    return np.asarray(np.divide(values - mean, sigma, out=np.zeros_like(values), where=sigma > 0))


def _step_outliers(ops: Operations, rank: int, clock: StepClock) -> tuple[list[Outlier], int]:
    rows = np.flatnonzero(ops.kind != SCOPE)
    keys = logical_keys(ops, np.zeros(len(ops.ranks), dtype=np.int64))
    start = (ops.start_ns - begin_ns(ops, clock)[ops.rank]).astype(float) if len(ops) else np.zeros(0)
    duration = ops.duration_ns.astype(float)
    found: list[Outlier] = []
    compared = 0
    for block in PeerGroups.of(keys, rows).blocks(smallest=2):
        z_start, z_duration = z_scores(start[block]), z_scores(duration[block])
        mine = ops.ranks[ops.rank[block]] == rank
        compared += int(mine.sum())
        score = np.maximum(np.abs(z_start), np.abs(z_duration))
        expected = np.broadcast_to(duration[block].mean(axis=1, keepdims=True), block.shape)
        found += [
            outlier(
                identify(ops, int(block[cell])),
                z=(float(z_start[cell]), float(z_duration[cell])),
                score=float(score[cell]),
                p_value=None,
                duration_ns=float(duration[block[cell]]),
                expected_ns=float(expected[cell]),
            )
            for cell in zip(*np.nonzero(mine & (score > PAPER_THRESHOLD)), strict=True)
        ]
    return found, compared


def paper_limits(ranks: int) -> tuple[KairWarning, ...]:
    """The warning that z > 3 cannot fire among so few ranks; nothing where it can."""
    highest = highest_z(ranks)
    if highest > PAPER_THRESHOLD:
        return ()
    figures = {"ranks": ranks, "highest_z": highest, "threshold": PAPER_THRESHOLD}
    return (KairWarning("z_cannot_fire", figures=figures),)


def highest_z(ranks: int) -> float:
    """max |z| = √(N − 1): no value among N can lie further from their mean, in population SDs."""
    return math.sqrt(max(ranks - 1, 0))
