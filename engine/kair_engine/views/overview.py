"""Inventory of a recording: its ranks, steps, layout and clocks."""

from collections import defaultdict

import numpy as np
import polars as pl

from kair_engine.ranks import Rank
from kair_engine.results.info import ClockInfo, InfoResult, OperatorUse
from kair_engine.results.steps import StepsResult, StepSummary, StepTime
from kair_engine.timeline.clocks import Clocks
from kair_engine.timeline.roles import roles
from kair_engine.timeline.step_time import step_time_ns
from kair_engine.timeline.synchronisation import synchronise
from kair_engine.trace.loading import each_step, load_step
from kair_engine.trace.model import Job, Trace
from kair_engine.trace.operations import KIND_NAMES, SCOPE, STEP_SCOPE

SLOW_STEP = 1.1
"""Times the median step above which a step is called slow."""

_CLOCK_STEPS = 3
"""Steps looked at for the clocks: offsets hardly move within a recording."""


def info(trace: Trace, *, operators: bool = False) -> InfoResult:
    """World size, ranks, layout, steps, counts by kind, matched collectives and clock quality.

    With `operators` also how often each ran, the profiler's own scopes left out.
    """
    job = trace.job
    # The row that marks a step on its rank is no operation.
    rows = trace.scan().filter(pl.col("name").cast(pl.String) != STEP_SCOPE)
    kinds = rows.group_by(pl.col("kind").cast(pl.String)).len().sort("len", "kind", descending=True).collect()
    found, matched, clocks = 0, 0, list[Clocks]()
    for sync in map(synchronise, each_step(trace)):
        found += len(sync.collectives) + sync.collectives.rejected
        matched += len(sync.collectives)
        clocks += [sync.clocks][: _CLOCK_STEPS - len(clocks)]
    by_role: dict[str, list[int]] = defaultdict(list)
    for rank, role in roles(trace).items():
        by_role[role.name].append(rank)
    return InfoResult(
        format=job.format,
        world_size=job.world_size,
        ranks=job.ranks,
        missing_ranks=job.missing_ranks,
        hosts=_by_host(job),
        layout=job.layout,
        roles={role: tuple(ranks) for role, ranks in by_role.items()},
        device=job.device,
        steps=trace.steps,
        operations=int(kinds["len"].sum()),
        operations_by_kind=dict(zip(kinds["kind"].to_list(), kinds["len"].to_list(), strict=True)),
        collectives=found,
        matched_collectives=matched,
        clock=_clock(clocks),
        warnings=(),
        operators=_operators(trace) if operators else (),
    )


def _operators(trace: Trace) -> tuple[OperatorUse, ...]:
    used = (
        trace.scan()
        .filter(pl.col("kind").cast(pl.String) != KIND_NAMES[SCOPE])
        .group_by("name", "phase")
        .len()
        .group_by(pl.col("name").cast(pl.String))
        .agg(pl.col("len").sum(), pl.col("phase").cast(pl.String).drop_nulls().sort())
        .sort("len", "name", descending=[True, False])
        .collect(engine="streaming")
    )
    return tuple(OperatorUse(name, count, tuple(phases)) for name, count, phases in used.iter_rows())


def steps(trace: Trace) -> StepsResult:
    """The time of every recorded step on every rank, and over the ranks."""
    times = trace.job.step_times
    chosen, usable = set(trace.steps), set(trace.job.steps)
    origin = min(times.begin_ns, default=0)
    rows = [
        StepTime(step, Rank(rank), (begin - origin) / 1e3, length / 1e3, operations, step in usable)
        for rank, step, begin, length, operations in zip(
            times.rank, times.step, times.begin_ns, times.duration_ns, times.operations, strict=True
        )
        # An incomplete step belongs to the answer only where every step was asked for.
        if step in chosen or (step not in usable and chosen == usable)
    ]
    rows.sort(key=lambda row: (row.step, row.rank))
    by_step: dict[int, list[StepTime]] = defaultdict(list)
    for row in rows:
        by_step[row.step].append(row)
    slowest = [max(of_step, key=lambda row: row.duration_us) for of_step in by_step.values()]
    usual = float(np.median([row.duration_us for row in slowest if row.complete] or [0.0]))
    summaries = (_summary(of_step, last, usual) for of_step, last in zip(by_step.values(), slowest, strict=True))
    return StepsResult(tuple(summaries), tuple(rows), _step_time_us(trace), ())


def _step_time_us(trace: Trace) -> float:
    synchronised = any(len(synchronise(load_step(trace, step)).collectives) for step in trace.steps[:1])
    return step_time_ns(trace, synchronised=synchronised) / 1e3


def _summary(rows: list[StepTime], slowest: StepTime, usual_us: float) -> StepSummary:
    return StepSummary(
        step=slowest.step,
        ranks=len(rows),
        median_us=float(np.median([row.duration_us for row in rows])),
        max_us=slowest.duration_us,
        slowest_rank=slowest.rank,
        complete=slowest.complete,
        slow=slowest.complete and slowest.duration_us > SLOW_STEP * usual_us,
    )


def _by_host(job: Job) -> dict[str, tuple[int, ...]]:
    hosts: dict[str, list[int]] = defaultdict(list)
    for rank in job.ranks:
        if rank in job.hosts:
            hosts[job.hosts[rank]].append(rank)
    return {host: tuple(ranks) for host, ranks in hosts.items()}


def _clock(clocks: list[Clocks]) -> ClockInfo:
    residuals = [one.residual_ns for one in clocks if one.residual_ns is not None]
    if not residuals:
        return ClockInfo("none", None, 0.0)
    offset = max(float(np.abs(one.offset_ns).max()) for one in clocks)
    return ClockInfo("collectives", float(np.median(residuals)) / 1e3, offset / 1e3)
