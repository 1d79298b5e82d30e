"""Simulates a step that ranks share out by claims, as in the loader."""

import math
from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace

from kair_mitigate.guide import Guide


def claimed(
    guide: Guide, sample_s: Sequence[float], batch_s: Sequence[float], claim_s: float
) -> tuple[list[float], list[int]]:
    """Return each rank's busy seconds and its samples in a step shared out by claims.

    Each rank takes `sample_s` per sample, plus `batch_s` per batch and `claim_s` per claim. It claims the next batch
    when one begins, because DDP must know then whether this one is the rank's last.
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
    """Return the speeds measured in a step, or the previous one for a rank that trained nothing."""
    return [
        count / took_s if count and took_s > 0 and math.isfinite(took_s) else before
        for before, took_s, count in zip(speeds, compute_s, done, strict=True)
    ]
