"""A pipeline recording made ready for replay, without the steps that cannot be replayed."""

import numpy as np

from kair_engine.errors import InputError
from kair_engine.trace.model import Notice, Trace
from kair_engine.trace.notices import notice
from kair_engine.whatif.pipeline.rows import TYPES, PipelineRows, read_pipeline
from kair_engine.whatif.pipeline.times import PipelineTimes, pipeline_times, recorded_steps


def replayable(trace: Trace) -> tuple[PipelineTimes, tuple[Notice, ...]]:
    """The chosen steps, and what of them is left out: steps that wait in a circle, and those that took no time.

    Raises InputError where none is left, or the recording has no operation of a known type.
    """
    rows = read_pipeline(trace)
    if not len(rows):
        raise InputError("the recording has none of the operation types of a training step")
    times = pipeline_times(rows)
    stuck, took = times.stuck, recorded_steps(rows)
    circular, empty = np.zeros(len(took), dtype=bool), (took == 0) & took.any()
    circular[rows.step[stuck]] = True
    if not (circular | empty).any():
        return times, ()
    kinds = ", ".join(sorted({TYPES[code] for code in rows.type[stuck].tolist()})[:5])
    if (circular | empty).all():
        raise InputError(
            f"no step of the recording can be replayed: its operations wait for one another in a circle ({kinds})"
        )
    notices = []
    if circular.any():
        text = f"{int(circular.sum())} of {len(took)} steps are left out: operations wait for one another in a circle"
        notices.append(notice("circular_dependencies", f"{text} ({kinds})"))
    if empty.any():
        notices.append(
            notice("empty_steps", f"{int(empty.sum())} of {len(took)} steps are left out: they took no time")
        )
    kept = [step for step, left_out in zip(rows.steps, circular | empty, strict=True) if not left_out]
    rows = read_pipeline(trace.select(kept))
    return pipeline_times(rows), tuple(notices)


def ranks_at(trace: Trace, rows: PipelineRows) -> dict[tuple[int, int], int]:
    """(dp rank, stage) → rank, of the workers in the chosen steps."""
    layout = trace.job.layout
    if layout is None:
        return {}
    recorded = np.zeros((rows.dp_size, rows.pp_size), dtype=bool)
    recorded[rows.dp, rows.stage] = True
    places = {(layout.dp_rank.get(rank, 0), layout.pipeline_stage.get(rank, 0)): rank for rank in trace.job.ranks}
    return {place: rank for place, rank in places.items() if recorded[place]}
