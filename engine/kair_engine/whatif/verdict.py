"""Concludes from prices what the cause is: one machine, a stage, uneven batches, or nothing worth acting on."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from kair_engine.arrays import Floats
from kair_engine.results.whatif import PartEffect, SlowdownCause, SlowdownPattern

SLOWEST_SHARE = 0.03
"""M_W measures what fixing this share of the workers saves, rounded up [W]."""
SLOW = 1.05
"""Jobs whose S is below lose too little to look for a cause."""
MIN_EXPLAINED = 0.5
"""Fixing who is to blame must take away this part of the slowdown [W]."""
CORRELATED, VARIES = 0.9, 0.05
"""Forward and backward time of a microbatch, and the forward time's variation: batches of different length [W]."""
MIN_NAMED = 0.2
"""Pauses and flapping transfers that cost less than this part of the slowdown are not what the job suffers from."""
LONGER_STAGE = 0.05
"""What the last stage computes above the mean of the stages: of two alike ones each takes half of any slowdown."""
FEW_STEPS = 3
"""In fewer a worker's microbatches need not even out."""
_HOT = 0.5
"""Workers stand out of the heatmap if they cost this part of what the costliest one does."""
_STANDS_OUT = 0.1
"""No worker stands out of the heatmap where none costs this part of the slowdown by itself."""
_MOST_OF_STAGE = 0.75


def pattern_of(slowdown: float, workers: Floats) -> SlowdownPattern:
    """What the heatmap (dp ranks × stages, S of each worker) shows: single cells, one column, or no structure.

    An empty one, of a job with too many workers to price each, shows nothing.
    """
    if slowdown < SLOW:
        return "none"
    if not workers.size:
        return "unknown"
    cost = workers - 1
    if cost.max() < _STANDS_OUT * (slowdown - 1):
        return "diffuse"
    hot = cost >= _HOT * cost.max()
    count = int(hot.sum())
    if workers.size > 1 and count <= math.ceil(workers.size * SLOWEST_SHARE):
        return "one_worker" if count == 1 else "few_workers"
    per_stage = hot.mean(axis=0)
    stages = np.flatnonzero(per_stage > 0)
    if workers.shape[1] > 1 and len(stages) == 1 and per_stage[stages[0]] >= _MOST_OF_STAGE:
        return "one_stage"
    return "diffuse"


def causes_of(
    slowdown: float,
    *,
    effects: Sequence[PartEffect | None],
    alike: tuple[float | None, float | None] = (None, None),
    slowest: Sequence[int],
    steps: int,
    stage_excess: float | None = None,
    irregular: Iterable[SlowdownCause] = (),
) -> tuple[SlowdownCause, ...]:
    """The causes that the figures of a job slower than SLOW speak for [W §5], of several the first one first.

    `effects` are those of the slowest workers and of the last stage, which computes longer than the mean of the stages
    by the share `stage_excess` (None where that is not known). Long sequences are looked for only where no worker is to
    blame: `alike` are the forward's correlation with the backward, and its variation. In one step or two, though, who
    has them looks like a slow worker: then both are said.
    """
    if slowdown < SLOW:
        return ()
    of_slowest, of_last = (0.0 if part is None else part.share_removed for part in effects)
    uneven = _sequence_imbalance(*alike, steps)
    first, rest = [], []
    if of_slowest >= MIN_EXPLAINED and (uneven is None or steps >= FEW_STEPS):
        first.append(SlowdownCause("slow_workers", tuple(slowest), of_slowest))
    elif uneven is not None:
        first.append(replace(uneven, or_slow_ranks=tuple(slowest) if of_slowest >= MIN_EXPLAINED else ()))
    if of_last >= MIN_EXPLAINED and (stage_excess is None or stage_excess >= LONGER_STAGE):
        rest.append(SlowdownCause("stage_imbalance", share=of_last))
    rest += [one for one in irregular if one.share is not None and one.share >= MIN_NAMED]
    return (*first, *sorted(rest, key=lambda cause: -(cause.share or 0.0)))


def _sequence_imbalance(correlation: float | None, variation: float | None, steps: int) -> SlowdownCause | None:
    if correlation is None or variation is None or correlation < CORRELATED or variation < VARIES:
        return None
    figures = {"forward_backward_correlation": correlation, "forward_variation_share": variation, "steps": steps}
    return SlowdownCause("sequence_imbalance", figures=figures)


def slow_host(
    slowdown: float, host: str | None, ranks: tuple[int, ...], effect: PartEffect | None
) -> tuple[SlowdownCause, ...]:
    """A host all of whose ranks together explain what none of them does alone."""
    if host is None or effect is None or slowdown < SLOW or effect.share_removed < MIN_EXPLAINED:
        return ()
    return (SlowdownCause("slow_workers", ranks, effect.share_removed, host=host),)
