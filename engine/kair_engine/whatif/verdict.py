"""From the workers' prices to a cause: one machine, a stage, uneven batches, or nothing worth acting on."""

import math
from collections.abc import Sequence

import numpy as np

from kair_engine.arrays import Floats
from kair_engine.whatif.attribution import SLOWEST_SHARE
from kair_engine.whatif.result import SlowdownPattern

SLOW = 1.05
"""Jobs whose S is below lose too little to look for a cause."""
EXPLAINS = 0.5
"""Of the slowdown: fixing who is to blame takes away this much [W]."""
CORRELATED, VARIES = 0.9, 0.05
"""Forward and backward time of a microbatch, and the forward time's variation: batches of different length [W]."""
_HOT = 0.5
"""Of the largest cost of a worker: those that stand out of the heatmap."""
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
    hot = cost >= _HOT * cost.max()
    count = int(hot.sum())
    if workers.size > 1 and count <= math.ceil(workers.size * SLOWEST_SHARE):
        return "one_worker" if count == 1 else "few_workers"
    per_stage = hot.mean(axis=0)
    stages = np.flatnonzero(per_stage > 0)
    if workers.shape[1] > 1 and len(stages) == 1 and per_stage[stages[0]] >= _MOST_OF_STAGE:
        return "one_stage"
    return "diffuse"


def verdict_of(
    slowdown: float,
    pattern: SlowdownPattern,
    *,
    m_w: float | None,
    m_s: float | None,
    correlation: float | None,
    variation: float | None,
    slowest: Sequence[int],
) -> str:
    """One sentence: the cause that the figures speak for, a second one behind it, and the heatmap's pattern."""
    if pattern == "none":
        return f"no straggler worth fixing: the job is {slowdown - 1:.1%} slower than without any"
    causes = []
    if m_w is not None and m_w >= EXPLAINS:
        ranks = ", ".join(map(str, slowest[:8])) + (" …" if len(slowest) > 8 else "")
        who, them = ("worker (rank", "it") if len(slowest) == 1 else ("workers (ranks", "them")
        causes.append(f"slow {who} {ranks}: fixing {them} takes {m_w:.0%} of the slowdown away)")
    elif correlation is not None and variation is not None and correlation >= CORRELATED and variation >= VARIES:
        causes.append(
            f"sequence-length imbalance (forward and backward correlate by {correlation:.2f} within a rank, the "
            f"forward varies by {variation:.0%})"
        )
    if m_s is not None and m_s >= EXPLAINS:
        causes.append(f"stage imbalance (an ideal last stage takes {m_s:.0%} of the slowdown away)")
    seen = {
        "one_worker": "one worker stands out of the heatmap",
        "few_workers": "a few workers stand out of the heatmap",
        "one_stage": "one stage stands out of the heatmap",
        "diffuse": "the cost is spread over all workers",
        "unknown": "workers were not priced one by one",
    }[pattern]
    cause = ", and second ".join(causes) if causes else "no single cause"
    return f"{slowdown:.2f} times slower than without stragglers: {cause}; {seen}"
