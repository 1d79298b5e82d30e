"""What workers of a pipeline wait in the ideal job: the bubble that no straggler makes."""

from collections.abc import Mapping

import numpy as np

from kair_engine.timeline.spans import BETWEEN_RANKS_NS, Spans
from kair_engine.whatif.pipeline.times import PipelineTimes


def waits_in_ideal(times: PipelineTimes, rank_of: Mapping[tuple[int, int], int]) -> dict[int, float]:
    """Per rank, ns of the mean step: from the step's begin to its end, less when it computes or transfers anything."""
    rows, ideal = times.rows, times.ideal_ns
    end = times.ends(ideal)
    known = np.flatnonzero(~np.isnan(end))
    length = times.steps_with(ideal)
    worker_step = rows.worker_step[known].astype(np.int64)
    # One axis for all: worker-step after worker-step, each as long as the longest step.
    apart = int(np.nanmax(length, initial=0.0)) + BETWEEN_RANKS_NS
    over = np.rint(end[known]).astype(np.int64) + worker_step * apart
    busy = Spans.united(over - np.rint(ideal[known]).astype(np.int64), over)
    workers = rows.dp_size * rows.pp_size
    of_cell = np.bincount(busy.begin // apart, weights=busy.length_ns, minlength=len(rows.steps) * workers)
    present = np.zeros(len(rows.steps) * workers, dtype=bool)
    present[worker_step] = True
    idle = np.maximum(length[:, None] - of_cell.reshape(len(rows.steps), workers), 0.0)
    seen = present.reshape(len(rows.steps), workers)
    mean = np.where(seen, idle, 0.0).sum(axis=0) / np.maximum(seen.sum(axis=0), 1)
    return {rank: float(mean[dp * rows.pp_size + stage]) for (dp, stage), rank in rank_of.items()}
