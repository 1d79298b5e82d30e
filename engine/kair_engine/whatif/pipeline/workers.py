"""What one data-parallel rank, or one worker, costs: all the others ideal, for all of them at once.

Ranks that are ideal and run the same program are alike. So beside each rank, recorded in part, a copy of it that is
wholly ideal stands for all the others: two lanes instead of as many as there are ranks.
"""

from dataclasses import dataclass

import numpy as np

from kair_engine.arrays import Floats
from kair_engine.whatif.pipeline.alike_steps import AlikeSteps
from kair_engine.whatif.pipeline.choices import Choice, both, everything, of_dp_rank, of_stage
from kair_engine.whatif.pipeline.times import AT_ONCE, PipelineTimes, parts_of, step_times

_LARGEST = 300_000_000
"""Operations × scenarios that are replayed one by one where ranks do not run alike."""


@dataclass(frozen=True)
class Parts:
    """Step times, ns, where only one part is as recorded."""

    dp_ranks: Floats
    """(dp ranks × steps)."""
    workers: Floats | None
    """(dp ranks × stages × steps); None where that takes too long."""


def by_part(times: PipelineTimes) -> Parts:
    """Every data-parallel rank, and every worker, as recorded among ideal others."""
    rows, dps, pps = times.rows, times.rows.dp_size, times.rows.pp_size
    dp_ranks, workers = np.empty((dps, len(rows.steps))), np.empty((dps, pps, len(rows.steps)))
    stages = [of_stage(stage) for stage in range(pps)]
    too_many = False
    for of in times.alike:
        if of.lanes > 1:
            found = _beside_ideal(times, of, [everything, *stages])
            dp_ranks[:, of.steps], workers[:, :, of.steps] = found[0], found[1:].transpose(1, 0, 2)
            continue
        each = [of_dp_rank(dp) for dp in range(dps)]
        dp_ranks[:, of.steps] = times.alike_steps_if(of, each)
        too_many |= dps * pps * len(of.rows) * len(of.steps) > _LARGEST
        if not too_many:
            single = [both(dp, stage) for dp in each for stage in stages]
            workers[:, :, of.steps] = times.alike_steps_if(of, single).reshape(dps, pps, -1)
    return Parts(dp_ranks, None if too_many else workers)


def _beside_ideal(times: PipelineTimes, of: AlikeSteps, recorded: list[Choice]) -> Floats:
    """(scenarios × dp ranks × steps): every rank with the chosen rows as recorded, beside an ideal one."""
    example, size = of.rows.take(slice(0, of.lane.nodes)), of.lane.nodes
    masks = np.stack([choice(example)[of.order.order] for choice in recorded], axis=1)[:, :, None, None]
    ideal = times.ideal_ns[of.at[:, 0, 0]][:, None, None, None]
    result = np.empty((len(recorded), of.lanes, len(of.steps)))
    for dps in parts_of(of.lanes, AT_ONCE // (2 * len(recorded) * size * len(of.steps))):
        own = times.own_ns[of.at[:, dps]][:, None]
        ends = np.empty((size, 2, len(recorded), *own.shape[2:]))
        ends[:, 0], ends[:, 1] = np.where(masks, own, ideal), ideal
        result[:, dps] = step_times(of, ends)
    return result
