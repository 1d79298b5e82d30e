"""Inventory of a recording: its ranks, steps, layout and clocks."""

from collections import Counter, defaultdict

import numpy as np

from kair_engine.ranks import Rank
from kair_engine.results.info import ClockInfo, InfoResult, OperatorUse
from kair_engine.results.steps import StepsResult, StepSummary, StepTime
from kair_engine.timeline.roles import roles
from kair_engine.timeline.synchronisation import Synchronisation, synchronise
from kair_engine.trace.counting import count_operations
from kair_engine.trace.loading import each_step
from kair_engine.trace.model import Job, Trace
from kair_engine.trace.operations import KIND_NAMES, SCOPE

SLOW_STEP = 1.1
"""Times the median step above which a step is called slow."""

_CLOCK_STEPS = 3
"""Steps looked at for the clocks: offsets hardly move within a recording."""


def info(trace: Trace, *, operators: bool = False) -> InfoResult:
    """World size, ranks, layout, steps, counts by kind, matched collectives and clock quality.

    With `operators` also how often each ran, the profiler's own scopes left out.
    """
    job = trace.job
    kinds = [(kind, count) for (kind,), count in count_operations(trace, ("kind",)).items()]
    looked_at = trace.select(trace.steps[:_CLOCK_STEPS])
    sync = [synchronise(ops) for ops in each_step(looked_at)]
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
        operations=sum(count for _, count in kinds),
        operations_by_kind=dict(sorted(kinds, key=lambda of: (of[1], of[0]), reverse=True)),
        collectives=sum(len(s.collectives) + s.collectives.rejected for s in sync),
        matched_collectives=sum(len(s.collectives) for s in sync),
        clock=_clock(sync),
        warnings=(),
        operators=_operators(trace) if operators else (),
    )


def _operators(trace: Trace) -> tuple[OperatorUse, ...]:
    used = count_operations(
        trace, ("name", "phase"), lambda rows: ~rows.is_any("kind", (KIND_NAMES[SCOPE],)), also=("kind",)
    )
    counts: Counter[str] = Counter()
    phases: dict[str, list[str]] = defaultdict(list)
    for (name, phase), count in used.items():
        counts[name] += count
        if phase:
            phases[name].append(phase)
    names = sorted(counts, key=lambda name: (-counts[name], name))
    return tuple(OperatorUse(name, counts[name], tuple(sorted(phases[name]))) for name in names)


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
    return StepsResult(tuple(summaries), tuple(rows), ())


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


def _clock(sync: list[Synchronisation]) -> ClockInfo:
    residuals = [s.clocks.residual_ns for s in sync if s.clocks.residual_ns is not None]
    if not residuals:
        return ClockInfo("none", None, 0.0)
    offset = max(float(np.abs(s.clocks.offset_ns).max()) for s in sync)
    return ClockInfo("collectives", float(np.median(residuals)) / 1e3, offset / 1e3)
