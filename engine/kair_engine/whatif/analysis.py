"""The what-if analysis of a pipeline-parallel job, put together."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from kair_engine.arrays import Bools, Floats
from kair_engine.errors import UsageError
from kair_engine.model import Notice, Trace
from kair_engine.whatif.attribution import (
    Attribution,
    attribute,
    explained,
    forward_backward,
    largest_first,
    ratio,
    slowest_workers,
)
from kair_engine.whatif.fixes import Fix
from kair_engine.whatif.launches import launch_prices, replayed_with_delays
from kair_engine.whatif.pipeline_model import pipeline_model
from kair_engine.whatif.pipeline_rows import TYPES, PipelineRows, is_pipeline, read_pipeline
from kair_engine.whatif.pipeline_times import PipelineTimes, pipeline_times, recorded_steps, step_times
from kair_engine.whatif.prices import ERROR_GATE, prices, require_cost
from kair_engine.whatif.remedies import remedies
from kair_engine.whatif.replay import replay
from kair_engine.whatif.result import FixPrice, Remedy, StepPrice, WhatifResult
from kair_engine.whatif.timeline import timeline
from kair_engine.whatif.verdict import pattern_of, verdict_of


def whatif(trace: Trace, fixes: Sequence[Fix] = (), *, gpu_cost: float | None = None) -> WhatifResult:
    """S, waste, attributions, M_W and M_S, and the price of each fix.

    Of recordings with operation types and pipeline stages by the published model, of all others operator by operator.

    Raises UsageError where no step can be analysed, a fix fits nothing, or a GPU's cost is none.
    """
    if not trace.steps:
        raise UsageError("no complete step to analyse")
    require_cost(gpu_cost)
    if not is_pipeline(trace):
        from kair_engine.whatif.execution_analysis import whatif_of_execution  # few need both

        return whatif_of_execution(trace, fixes, gpu_cost)
    times = _times(trace)
    rows = times.rows
    of = attribute(times)
    measured = recorded_steps(rows)
    rank_of = _ranks(trace, rows)
    approximate = of.approximate()
    slowest = slowest_workers(approximate, rank_of)
    last_stage = rows.stage == rows.pp_size - 1
    m_w, m_s = explained(times, of, [_of_ranks(rows, rank_of, slowest), last_stage])
    m_s = m_s if rows.pp_size > 1 else None
    correlation, variation = forward_backward(rows, times.own_ns)
    delayed = replayed_with_delays(times)
    exact = None if of.workers is None else np.array([[of.slowdown(one) for one in row] for row in of.workers])
    slowdown = of.slowdown(of.replayed)
    pattern = pattern_of(slowdown, approximate if exact is None else exact)
    launches = launch_prices(times, of.replayed, measured)
    return WhatifResult(
        slowdown=slowdown,
        waste=1 - 1 / slowdown,
        step_time_us=float(of.replayed.mean()) / 1e3,
        measured_step_time_us=float(measured.mean()) / 1e3,
        ideal_step_time_us=float(of.ideal.mean()) / 1e3,
        by_operator_type=largest_first({name: of.slowdown(steps) for name, steps in of.types.items()}),
        by_dp_rank=largest_first({dp: of.slowdown(steps) for dp, steps in enumerate(of.dp_ranks)}),
        by_stage=largest_first({stage: of.slowdown(steps) for stage, steps in enumerate(of.stages)}),
        by_rank={} if exact is None else largest_first({rank: float(exact[at]) for at, rank in rank_of.items()}),
        by_rank_approximate=largest_first({rank: float(approximate[at]) for at, rank in rank_of.items()}),
        heatmap=tuple(map(tuple, (approximate if exact is None else exact).T.tolist())),
        m_w=m_w,
        slowest_ranks=slowest,
        m_s=m_s,
        forward_backward_correlation=correlation,
        forward_variation=variation,
        simulation_error=abs(ratio(float(delayed.mean()), float(measured.mean())) - 1),
        launch_slowdown=ratio(float(measured.mean()), float(of.replayed.mean())),
        launch_by_operator_type=launches.types if launches else None,
        launch_by_dp_rank=launches.dp_ranks if launches else None,
        launch_by_stage=launches.stages if launches else None,
        pattern=pattern,
        verdict=verdict_of(
            slowdown,
            pattern,
            m_w=m_w,
            m_s=m_s,
            correlation=correlation,
            variation=variation,
            slowest=slowest,
        ),
        fixes=prices(trace.job, times, rank_of, fixes, replayed_ns=float(of.replayed.mean()), gpu_cost=gpu_cost),
        remedies=tuple(remedies(times, of.replayed)),
        per_step=_steps(rows, of, measured, rank_of),
        steps=rows.steps,
        warnings=_notices(times, delayed, measured, exact is None),
    )


def price_pipeline(
    trace: Trace, fixes: Sequence[Fix], gpu_cost: float | None
) -> tuple[tuple[FixPrice, ...], tuple[Remedy, ...]]:
    """Fixes (each by itself, and where there are several all together) and remedies alone, without what else costs.

    Raises UsageError as `whatif` does.
    """
    times = _times(trace)
    replayed = step_times(times.rows, replay(times.order, times.own_ns[:, None]))[0]
    rank_of, mean = _ranks(trace, times.rows), float(replayed.mean())
    found = prices(trace.job, times, rank_of, fixes, replayed_ns=mean, gpu_cost=gpu_cost)
    return found, tuple(remedies(times, replayed))


def _times(trace: Trace) -> PipelineTimes:
    rows = read_pipeline(trace)
    if not len(rows):
        raise UsageError("the recording has none of the operation types of a training step")
    return pipeline_times(rows, pipeline_model(rows))


def write_timeline(trace: Trace, path: Path) -> None:
    """Writes the chosen steps' timelines, as recorded and ideal.

    Raises UsageError where the file cannot be written, or the recording has no operation types.
    """
    if not is_pipeline(trace):
        raise UsageError("--timeline needs a recording with operation types (a what-if Parquet file)")
    rows = read_pipeline(trace)
    events = timeline(pipeline_times(rows, pipeline_model(rows)), _ranks(trace, rows))
    try:
        path.write_bytes(msgspec.json.encode(events))
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error


def _ranks(trace: Trace, rows: PipelineRows) -> dict[tuple[int, int], int]:
    """(dp rank, stage) → rank, of the workers in the chosen steps."""
    layout = trace.job.layout
    if layout is None:
        return {}
    recorded = {divmod(place, rows.pp_size) for place in np.unique(rows.dp * rows.pp_size + rows.stage).tolist()}
    places = {(layout.dp_rank.get(rank, 0), layout.pipeline_stage.get(rank, 0)): rank for rank in trace.job.ranks}
    return {place: rank for place, rank in places.items() if place in recorded}


def _of_ranks(rows: PipelineRows, rank_of: dict[tuple[int, int], int], ranks: Sequence[int]) -> Bools:
    chosen = np.zeros((rows.dp_size, rows.pp_size), dtype=bool)
    for place, rank in rank_of.items():
        chosen[place] = rank in ranks
    return np.asarray(chosen[rows.dp, rows.stage])


def _steps(
    rows: PipelineRows, of: Attribution, measured: Floats, rank_of: dict[tuple[int, int], int]
) -> tuple[StepPrice, ...]:
    result = []
    for at, step in enumerate(rows.steps):
        ideal = float(of.ideal[at])
        workers = {} if of.workers is None else {rank: of.workers[place][at] for place, rank in rank_of.items()}
        result.append(
            StepPrice(
                step=step,
                measured_us=float(measured[at]) / 1e3,
                replayed_us=float(of.replayed[at]) / 1e3,
                ideal_us=ideal / 1e3,
                slowdown=ratio(float(of.replayed[at]), ideal),
                by_operator_type=largest_first({name: ratio(float(t[at]), ideal) for name, t in of.types.items()}),
                by_dp_rank=largest_first({dp: ratio(float(t[at]), ideal) for dp, t in enumerate(of.dp_ranks)}),
                by_stage=largest_first({stage: ratio(float(t[at]), ideal) for stage, t in enumerate(of.stages)}),
                by_rank=largest_first({rank: ratio(float(t), ideal) for rank, t in workers.items()}),
            )
        )
    return tuple(result)


def _notices(times: PipelineTimes, delayed: Floats, measured: Floats, too_many: bool) -> tuple[Notice, ...]:
    rows, model, result = times.rows, times.model, []
    if rows.unknown:
        listed = ", ".join(rows.unknown[:5])
        result.append(Notice("unknown_operation_types", f"operations of unknown types are left out: {listed}"))
    if model.unpaired:
        text = f"{model.unpaired} sends and receives have no other end in the recording: they wait for nobody"
        result.append(Notice("unpaired_transfers", text))
    if len(times.order.stuck):
        kinds = ", ".join(sorted({TYPES[code] for code in rows.type[times.order.stuck].tolist()})[:5])
        text = f"{len(times.order.stuck)} operations wait for one another in a circle and are left out ({kinds})"
        result.append(Notice("circular_dependencies", text))
    error = np.abs(delayed - measured) / np.maximum(measured, 1.0)
    if abs(ratio(float(delayed.mean()), float(measured.mean())) - 1) > ERROR_GATE:
        worst = int(np.argmax(error))
        text = (
            f"the replay is {error.mean():.0%} off the recording, most in step {rows.steps[worst]} "
            f"({delayed[worst] / 1e6:.1f} instead of {measured[worst] / 1e6:.1f} ms): read the figures with care"
        )
        result.append(Notice("simulation_error", text))
    if too_many:
        result.append(Notice("too_many_workers", "ranks do not run alike and are too many for a replay of each"))
    return tuple(result)
