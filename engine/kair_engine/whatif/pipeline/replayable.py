"""Makes a pipeline recording ready for replay, and says what of it the replay cannot take."""

from collections.abc import Iterator

import numpy as np

from kair_engine.arrays import Floats, Ints
from kair_engine.errors import InputError
from kair_engine.trace.model import KairWarning, Trace
from kair_engine.trace.warning_texts import short_warning
from kair_engine.whatif.inexact_replay import inexact_replay, step_errors
from kair_engine.whatif.pipeline.rows import TRANSFERS, TYPES, PipelineRows, is_type, read_pipeline
from kair_engine.whatif.pipeline.times import PipelineTimes, pipeline_times, recorded_steps


def replayable(trace: Trace) -> tuple[PipelineTimes, tuple[KairWarning, ...]]:
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
    warnings = []
    if circular.any():
        text = f"{int(circular.sum())} of {len(took)} steps are left out: operations wait for one another in a circle"
        warnings.append(short_warning("circular_dependencies", f"{text} ({kinds})"))
    if empty.any():
        warnings.append(
            short_warning("empty_steps", f"{int(empty.sum())} of {len(took)} steps are left out: they took no time")
        )
    kept = [step for step, left_out in zip(rows.steps, circular | empty, strict=True) if not left_out]
    rows = read_pipeline(trace.select(kept))
    return pipeline_times(rows), tuple(warnings)


def ranks_of_workers(trace: Trace, rows: PipelineRows) -> dict[tuple[int, int], int]:
    """(dp rank, stage) → rank, of the workers in the chosen steps."""
    layout = trace.job.layout
    if layout is None:
        return {}
    recorded = np.zeros((rows.dp_size, rows.pp_size), dtype=bool)
    recorded[rows.dp, rows.stage] = True
    # The last worker of all may be in none of these steps, or in none of their operations that are known.
    present = set(zip(*(place.tolist() for place in np.nonzero(recorded)), strict=True))
    places = {(layout.dp_rank.get(rank, 0), layout.pipeline_stage.get(rank, 0)): rank for rank in trace.job.ranks}
    return {place: rank for place, rank in places.items() if place in present}


def replay_warnings(times: PipelineTimes, delayed: Floats, measured: Floats) -> Iterator[KairWarning]:
    """What of the recording the replay could not take as it should, and how far it is off."""
    rows = times.rows
    if rows.unknown:
        listed = ", ".join(rows.unknown[:5])
        yield KairWarning("unknown_operation_types", f"operations of unknown types are left out: {listed}")
    if times.unpaired:
        text = f"{times.unpaired} sends and receives have no other end in the recording: they wait for nobody"
        yield KairWarning("unpaired_transfers", text)
    partly = _lacking_members(times)
    if len(partly):
        kinds = ", ".join(sorted({TYPES[code] for code in rows.type[partly].tolist()}))
        text = (
            f"{len(partly)} operations ({kinds}) lack members that others of their type have: only those recorded meet"
        )
        yield KairWarning("incomplete_groups", text)
    yield from inexact_replay(rows.steps, delayed, measured, float(step_errors(delayed, measured).mean()))


def _lacking_members(times: PipelineTimes) -> Ints:
    """Of collectives: sends and receives without their other end are counted by the model."""
    kind = times.rows.type
    partly = np.flatnonzero((times.members > 0) & ~times.whole & ~is_type(kind, *TRANSFERS))
    several = np.zeros(len(TYPES), dtype=bool)
    several[kind[times.whole]] = True
    return partly[several[kind[partly]]]
