"""Pairs the forward and the backward computation of each microbatch."""

from dataclasses import dataclass

import numpy as np

from kair_engine.arrays import NONE, Floats, Ints, dense
from kair_engine.whatif.pipeline.rows import BACKWARD, FORWARD_BACKWARD, PipelineRows, is_type


@dataclass(frozen=True)
class Microbatches:
    """Per microbatch of a chunk on a worker-step the rows of its computations; NONE for what is not recorded."""

    forward: Ints
    backward: Ints


def microbatches(rows: PipelineRows) -> Microbatches:
    """In the order of worker-steps, chunks and numbers."""
    computes = rows.of_type(*FORWARD_BACKWARD)
    batch = dense(np.stack((rows.worker_step[computes], rows.chunk[computes], numbers(rows, computes))))
    row = np.full((2, int(batch.max(initial=NONE)) + 1), NONE)
    # Backwards, so that the first of several stays.
    back = is_type(rows.type[computes], BACKWARD).astype(np.int64)
    row[back[::-1], batch[::-1]] = computes[::-1]
    return Microbatches(row[0], row[1])


def numbers(rows: PipelineRows, computes: Ints) -> Ints:
    """The number of each computation's microbatch; where the recording does not tell it, its turn."""
    return np.where(rows.microbatch[computes] == NONE, rows.turn[computes], rows.microbatch[computes])


def forward_backward(rows: PipelineRows, of: Microbatches, own_ns: Floats) -> tuple[float | None, float | None]:
    """Correlation of forward and backward time per microbatch, and the forward's variation: medians over workers."""
    both = (of.forward != NONE) & (of.backward != NONE)
    f, b = of.forward[both], of.backward[both]
    worker = rows.dp[f] * rows.pp_size + rows.stage[f]
    count = np.maximum(np.bincount(worker), 1)

    def mean(values: Floats) -> Floats:
        return np.asarray(np.bincount(worker, weights=values) / count)

    x, y = own_ns[f], own_ns[b]
    mean_x = mean(x)
    x, y = x - mean_x[worker], y - mean(y)[worker]
    deviation_x, deviation_y = np.sqrt(mean(x * x)), np.sqrt(mean(y * y))
    known = (count > 2) & (deviation_x > 0) & (deviation_y > 0)
    if not known.any():
        return None, None
    correlations = mean(x * y)[known] / (deviation_x * deviation_y)[known]
    return float(np.median(correlations)), float(np.median((deviation_x / np.maximum(mean_x, 1e-9))[known]))
