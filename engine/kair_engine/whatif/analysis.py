"""The what-if analysis of a pipeline-parallel job, put together."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints
from kair_engine.errors import UsageError
from kair_engine.results.whatif import FixPrice, Remedy, StepPrice, WhatifResult
from kair_engine.trace.model import Notice, Trace
from kair_engine.whatif.attribution import (
    Attribution,
    Key,
    attribute,
    explained,
    largest_first,
    of_each_step,
    ratio,
    slowest_workers,
)
from kair_engine.whatif.fixes import Fix
from kair_engine.whatif.pipeline.choices import Choice, of_stage
from kair_engine.whatif.pipeline.irregular import irregular_causes
from kair_engine.whatif.pipeline.launches import LaunchSteps, launch_steps, replayed_with_delays
from kair_engine.whatif.pipeline.microbatches import forward_backward, microbatches
from kair_engine.whatif.pipeline.remedies import last_stage_excess, remedies
from kair_engine.whatif.pipeline.replayable import ranks_at, replayable
from kair_engine.whatif.pipeline.rows import TRANSFERS, TYPES, PipelineRows, is_pipeline, is_type
from kair_engine.whatif.pipeline.timeline import timeline
from kair_engine.whatif.pipeline.times import PipelineTimes, recorded_steps
from kair_engine.whatif.prices import ERROR_GATE, price, prices, require_cost
from kair_engine.whatif.replay.trace_events import write_events
from kair_engine.whatif.verdict import causes_of, pattern_of, verdict_of


def whatif(trace: Trace, fixes: Sequence[Fix] = (), *, gpu_cost: float | None = None) -> WhatifResult:
    """S, waste, attributions, M_W and M_S, and the price of each fix.

    Of recordings with operation types and pipeline stages by the published model, of all others operator by operator.

    Raises UsageError where no step is chosen, a fix fits nothing, or a GPU's cost is none, InputError where no step can
    be replayed.
    """
    if not trace.steps:
        raise UsageError("no complete step to analyse")
    require_cost(gpu_cost)
    if not is_pipeline(trace):
        from kair_engine.whatif.operators.analysis import whatif_of_execution  # few need both

        return whatif_of_execution(trace, fixes, gpu_cost)
    times, left_out = replayable(trace)
    rows = times.rows
    of = attribute(times)
    measured = recorded_steps(rows)
    rank_of = ranks_at(trace, rows)
    approximate = of.approximate()
    slowest = slowest_workers(approximate, rank_of)
    of_slowest, of_last = explained(times, of, [_of_ranks(rank_of, slowest), of_stage(rows.pp_size - 1)])
    # Of one worker nothing can be told apart.
    of_slowest, of_last = of_slowest if len(rank_of) > 1 else None, of_last if rows.pp_size > 1 else None
    m_w, m_s = (None if part is None else part.share_removed for part in (of_slowest, of_last))
    delayed = replayed_with_delays(times)
    exact = None if of.workers is None else of.slowdowns(of.workers)
    by_stage = largest_first({stage: of.slowdown(steps) for stage, steps in enumerate(of.stages)})
    by_rank = {} if exact is None else largest_first({rank: float(exact[at]) for at, rank in rank_of.items()})
    by_rank_approximate = largest_first({rank: float(approximate[at]) for at, rank in rank_of.items()})
    slowdown = of.slowdown(of.replayed)
    pattern = pattern_of(slowdown, approximate if exact is None else exact)
    launches = launch_steps(times, of.replayed, measured)
    replayed_ns = float(of.replayed.mean())
    ideal_ns = float(of.ideal.mean())
    lost = price("", replayed_ns, ideal_ns, devices=trace.job.world_size, gpu_cost=gpu_cost)
    batches = microbatches(rows)
    alike = forward_backward(rows, batches, times.own_ns)
    irregular = irregular_causes(times, batches, rank_of, replayed_ns=replayed_ns, ideal_ns=ideal_ns)
    causes = causes_of(
        slowdown,
        effects=(of_slowest, of_last),
        alike=alike,
        slowest=slowest,
        steps=len(rows.steps),
        stage_excess=last_stage_excess(times),
        irregular=irregular,
    )
    return WhatifResult(
        slowdown=slowdown,
        waste=1 - 1 / slowdown,
        step_time_us=replayed_ns / 1e3,
        measured_step_time_us=float(measured.mean()) / 1e3,
        ideal_step_time_us=ideal_ns / 1e3,
        by_operator_type=largest_first({name: of.slowdown(steps) for name, steps in of.types.items()}),
        by_dp_rank=largest_first({dp: of.slowdown(steps) for dp, steps in enumerate(of.dp_ranks)}),
        by_stage=by_stage,
        by_rank=by_rank,
        by_rank_approximate=by_rank_approximate,
        heatmap=tuple(map(tuple, (approximate if exact is None else exact).T.tolist())),
        m_w=m_w,
        slowest_ranks=slowest,
        slowest_workers=of_slowest,
        m_s=m_s,
        last_stage=of_last,
        forward_backward_correlation=alike[0],
        forward_variation=alike[1],
        simulation_error=abs(ratio(float(delayed.mean()), float(measured.mean())) - 1),
        delay_share=1 - ratio(replayed_ns, float(measured.mean())),
        launch_slowdown=ratio(float(measured.mean()), float(of.replayed.mean())),
        launch_by_operator_type=_over(launches.types, replayed_ns) if launches else None,
        launch_by_dp_rank=_over(launches.dp_ranks, replayed_ns) if launches else None,
        launch_by_stage=_over(launches.stages, replayed_ns) if launches else None,
        pattern=pattern,
        causes=causes,
        verdict=verdict_of(slowdown, pattern, causes, by_rank=by_rank or by_rank_approximate, by_stage=by_stage),
        fixes=prices(trace.job, times, rank_of, fixes, replayed_ns=replayed_ns, gpu_cost=gpu_cost),
        remedies=tuple(remedies(times, of.replayed)),
        per_step=_steps(rows, of, measured, rank_of, launches),
        steps=rows.steps,
        warnings=(*left_out, *replay_notices(times, delayed, measured, exact is None)),
        gpu_hours_per_day=lost.gpu_hours_per_day,
        cost_per_day=lost.cost_per_day,
    )


def price_pipeline(
    trace: Trace, fixes: Sequence[Fix], gpu_cost: float | None
) -> tuple[tuple[FixPrice, ...], tuple[Remedy, ...]]:
    """Fixes (each by itself, and where there are several all together) and remedies alone, without what else costs.

    Raises UsageError and InputError as `whatif` does.
    """
    times, _ = replayable(trace)
    replayed = times.steps_with(times.own_ns)
    rank_of, mean = ranks_at(trace, times.rows), float(replayed.mean())
    found = prices(trace.job, times, rank_of, fixes, replayed_ns=mean, gpu_cost=gpu_cost)
    return found, tuple(remedies(times, replayed))


def write_timeline(trace: Trace, path: Path) -> None:
    """Writes the chosen steps' timelines, as recorded and ideal.

    Raises UsageError where the file cannot be written, InputError where no step can be replayed.
    """
    if is_pipeline(trace):
        times, _ = replayable(trace)
        write_events(path, timeline(times, ranks_at(trace, times.rows)))
    else:
        from kair_engine.whatif.operators.timeline import operator_timeline  # few need both

        write_events(path, operator_timeline(trace))


def _of_ranks(rank_of: dict[tuple[int, int], int], ranks: Sequence[int]) -> Choice:
    def choose(rows: PipelineRows) -> Bools:
        chosen = np.zeros((rows.dp_size, rows.pp_size), dtype=bool)
        for place, rank in rank_of.items():
            chosen[place] = rank in ranks
        return np.asarray(chosen[rows.dp, rows.stage])

    return choose


def _over(of_parts: Mapping[Key, Floats], base_ns: float) -> dict[Key, float]:
    """Every part's mean step over the base, the largest first."""
    return largest_first({part: ratio(float(np.mean(steps)), base_ns) for part, steps in of_parts.items()})


def _steps(
    rows: PipelineRows,
    of: Attribution,
    measured: Floats,
    rank_of: dict[tuple[int, int], int],
    launches: LaunchSteps | None,
) -> tuple[StepPrice, ...]:
    workers = {} if of.workers is None else {rank: of.workers[place] for place, rank in rank_of.items()}
    types = of_each_step(of.types, of.ideal)
    dp_ranks, stages = (of_each_step(dict(enumerate(part)), of.ideal) for part in (of.dp_ranks, of.stages))
    ranks = of_each_step(workers, of.ideal)
    delays = [of_each_step(part, of.replayed) for part in vars(launches).values()] if launches else None
    result = []
    for at, step in enumerate(rows.steps):
        ideal, replayed = float(of.ideal[at]), float(of.replayed[at])
        result.append(
            StepPrice(
                step=step,
                measured_us=float(measured[at]) / 1e3,
                replayed_us=replayed / 1e3,
                ideal_us=ideal / 1e3,
                slowdown=ratio(replayed, ideal),
                by_operator_type=types[at],
                by_dp_rank=dp_ranks[at],
                by_stage=stages[at],
                by_rank=ranks[at],
                launch_by_operator_type=delays[0][at] if delays else None,
                launch_by_dp_rank=delays[1][at] if delays else None,
                launch_by_stage=delays[2][at] if delays else None,
            )
        )
    return tuple(result)


def _lacking_members(times: PipelineTimes) -> Ints:
    """Of collectives: sends and receives without their other end are counted by the model."""
    kind = times.rows.type
    partly = np.flatnonzero((times.members > 0) & ~times.whole & ~is_type(kind, *TRANSFERS))
    several = np.zeros(len(TYPES), dtype=bool)
    several[kind[times.whole]] = True
    return partly[several[kind[partly]]]


def replay_notices(
    times: PipelineTimes, delayed: Floats, measured: Floats, too_many: bool = False
) -> tuple[Notice, ...]:
    """What of the recording the replay could not take as it should, and how far it is off."""
    rows, result = times.rows, []
    if rows.unknown:
        listed = ", ".join(rows.unknown[:5])
        result.append(Notice("unknown_operation_types", f"operations of unknown types are left out: {listed}"))
    if times.unpaired:
        text = f"{times.unpaired} sends and receives have no other end in the recording: they wait for nobody"
        result.append(Notice("unpaired_transfers", text))
    partly = _lacking_members(times)
    if len(partly):
        kinds = ", ".join(sorted({TYPES[code] for code in rows.type[partly].tolist()}))
        text = (
            f"{len(partly)} operations ({kinds}) lack members that others of their type have: only those recorded meet"
        )
        result.append(Notice("incomplete_groups", text))
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
