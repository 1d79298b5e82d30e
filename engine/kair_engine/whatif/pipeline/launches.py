"""Replays launch delays: what an operation waits for beyond all that the model knows of, mostly its host."""

import numpy as np

from kair_engine.arrays import Floats
from kair_engine.whatif.pipeline.choices import (
    Choice,
    all_but,
    both,
    first_operations,
    of_dp_rank,
    of_stage,
    of_types,
)
from kair_engine.whatif.pipeline.rows import TYPES
from kair_engine.whatif.pipeline.times import PipelineTimes, launch_delays
from kair_engine.whatif.ratios import OfParts, ratio

THRESHOLD = 1.03
"""Below this launch delays are not taken apart [W]."""
_LARGEST = 300_000_000
"""Operations × scenarios."""


def replayed_with_delays(times: PipelineTimes) -> Floats:
    """Each step's time, replayed as recorded, with launch delays: what was measured, if the model holds."""
    delays = launch_delays(times)
    return times.steps_with(times.own_ns, delays)


def launch_steps(times: PipelineTimes, replayed: Floats, measured: Floats) -> OfParts[Floats] | None:
    """Step times (steps), ns, with the launch delays of one part alone, all durations as recorded.

    None where launch delays cost too little, or taking them apart takes too long.
    """
    rows = times.rows
    scenarios = rows.dp_size + rows.pp_size + len(TYPES)
    if ratio(float(measured.mean()), float(replayed.mean())) < THRESHOLD or scenarios * len(rows) > _LARGEST:
        return None
    delays = launch_delays(times)

    def steps(choice: Choice) -> Floats:
        return times.steps_with(times.own_ns, np.where(choice(rows), delays, 0.0))

    others = all_but(first_operations)
    types = {name: both(choice, others) for name, choice in of_types(rows).items()} | {"first-op": first_operations}
    return OfParts(
        kinds={name: steps(choice) for name, choice in types.items() if choice(rows).any()},
        stages={stage: steps(of_stage(stage)) for stage in range(rows.pp_size)},
        dp_ranks={dp: steps(of_dp_rank(dp)) for dp in range(rows.dp_size)},
        hosts={},
        ranks={},
    )
