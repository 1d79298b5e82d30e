"""Launch delays: what an operation waits for beyond all that the model knows of, mostly its host."""

from dataclasses import dataclass

import numpy as np

from kair_engine.arrays import Bools, Floats
from kair_engine.whatif.attribution import ratio, type_masks
from kair_engine.whatif.pipeline_rows import FORWARD, TYPES, PipelineRows
from kair_engine.whatif.pipeline_times import PipelineTimes, launch_delays, step_times
from kair_engine.whatif.replay import replay

THRESHOLD = 1.03
"""Below this launch delays are not taken apart [W]."""
_LARGEST = 300_000_000
"""Operations × scenarios."""


@dataclass(frozen=True)
class LaunchSteps:
    """Step times (steps, ns) with the launch delays of one part alone, all durations as recorded."""

    types: dict[str, Floats]
    dp_ranks: dict[int, Floats]
    stages: dict[int, Floats]


def replayed_with_delays(times: PipelineTimes) -> Floats:
    """Each step's time, replayed as recorded, with launch delays: what was measured, if the model holds."""
    delays = launch_delays(times.rows, times.model.graph)
    return np.asarray(step_times(times.rows, replay(times.order, times.own_ns[:, None], delays=delays[:, None]))[0])


def launch_steps(times: PipelineTimes, replayed: Floats, measured: Floats) -> LaunchSteps | None:
    """None where launch delays cost too little, or taking them apart takes too long."""
    rows = times.rows
    scenarios = rows.dp_size + rows.pp_size + len(TYPES)
    if ratio(float(measured.mean()), float(replayed.mean())) < THRESHOLD or scenarios * len(rows) > _LARGEST:
        return None
    delays = launch_delays(rows, times.model.graph)

    def steps(mask: Bools) -> Floats:
        with_delays = np.where(mask, delays, 0.0)[:, None]
        return np.asarray(step_times(rows, replay(times.order, times.own_ns[:, None], delays=with_delays))[0])

    first = _first_operations(rows)
    types = {name: mask & ~first for name, mask in type_masks(rows).items()} | {"first-op": first}
    return LaunchSteps(
        {name: steps(mask) for name, mask in types.items() if mask.any()},
        {dp: steps(rows.dp == dp) for dp in range(rows.dp_size)},
        {stage: steps(rows.stage == stage) for stage in range(rows.pp_size)},
    )


def _first_operations(rows: PipelineRows) -> Bools:
    """What a step begins with: the first stage's first forward computation, the other stages' first receive."""
    computes = (rows.type == TYPES.index(FORWARD)) & (rows.stage == 0)
    receives = (rows.type == TYPES.index("forward-recv")) & (rows.stage > 0)
    return np.asarray((computes | receives) & (rows.turn == 0))
