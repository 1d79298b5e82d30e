"""Inventory of a recording: its ranks, steps, layout and clocks."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from kair_engine.arrays import Ints
from kair_engine.ranks import Rank
from kair_engine.results.info import ClockInfo, InfoResult, OperatorUse, RankRecord
from kair_engine.results.steps import StepsResult, StepSummary, StepTime
from kair_engine.timeline.clocks import Clocks
from kair_engine.timeline.coverage import COUNTED, coverage
from kair_engine.timeline.roles import Role, role_codes, roles
from kair_engine.timeline.step_time import step_time_ns
from kair_engine.timeline.synchronisation import synchronise
from kair_engine.trace.loading import each_step, load_step
from kair_engine.trace.model import Job, KairWarning, Trace
from kair_engine.trace.operations import COLLECTIVE, KIND_NAMES, RECV, SCOPE, SEND, STEP_SCOPE

SLOW_STEP = 1.1
"""Times the median step above which a step is called slow."""

_COMMUNICATION = [KIND_NAMES[kind] for kind in (COLLECTIVE, SEND, RECV)]
_CLOCK_STEPS = 3
"""Steps looked at for the clocks: offsets hardly move within a recording."""


def info(trace: Trace, *, operators: bool = False) -> InfoResult:
    """World size, ranks, layout, steps, counts by kind, matched collectives and clock quality.

    With `operators` also how often each ran, the profiler's own scopes left out.
    """
    job = trace.job
    counted = _counted(trace)
    kinds = counted.group_by("kind").agg(pl.col("len").sum()).sort("len", "kind", descending=True)
    found, matched, met, clocks = 0, 0, list[tuple[Ints, Ints]](), list[Clocks]()
    for sync in map(synchronise, each_step(trace)):
        found += len(sync.collectives) + sync.collectives.rejected
        of = sync.collectives.ops
        met.append((of.ranks, np.bincount(of.rank[sync.collectives.row], minlength=len(of.ranks))))
        matched += len(sync.collectives)
        clocks += [sync.clocks][: _CLOCK_STEPS - len(clocks)]
    by_role: dict[str, list[int]] = defaultdict(list)
    role_of = roles(trace)
    odd = _odd(trace, counted, met, role_of)
    for rank, role in role_of.items():
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
        warnings=odd,
        operators=_operators(trace) if operators else (),
        by_rank=_by_rank(trace, counted, odd),
    )


def _counted(trace: Trace) -> pl.DataFrame:
    """How many operations of each kind every rank has in every step, on its device and on its threads."""
    text = {name: pl.col(name).cast(pl.String) for name in ("kind", "lane")}
    return (
        trace.scan()
        # The row that marks a step on its rank is no operation.
        .filter(pl.col("name").cast(pl.String) != STEP_SCOPE)
        .group_by("rank", "step", *text.values())
        .len()
        .group_by("rank", "step", "kind", on_stream=pl.col("lane").str.starts_with("stream "))
        .agg(pl.col("len").sum())
        .collect(engine="streaming")
    )


def _odd(
    trace: Trace, counted: pl.DataFrame, met: Sequence[tuple[Ints, Ints]], role_of: Mapping[int, Role]
) -> tuple[KairWarning, ...]:
    """Who could not be compared, as triage tells it."""
    if len(trace.job.ranks) < 2 or not trace.steps:
        return ()
    ranks, steps = np.array(trace.job.ranks, dtype=np.int64), list(trace.steps)
    counts = np.full((len(COUNTED), len(steps), len(ranks)), np.nan)
    on_device = pl.col("on_stream") if trace.job.has_device else pl.col("kind") != KIND_NAMES[SCOPE]
    of_kind = (on_device, pl.col("kind").is_in(_COMMUNICATION))
    of_step = counted.group_by("rank", "step").agg(
        *(pl.col("len").filter(which).sum().alias(str(at)) for at, which in enumerate(of_kind))
    )
    step, rank = np.searchsorted(steps, of_step["step"].to_numpy()), np.searchsorted(ranks, of_step["rank"].to_numpy())
    for at in range(len(of_kind)):
        counts[at, step, rank] = of_step[str(at)].to_numpy()
    for at, (of_ranks, collectives) in enumerate(met):
        counts[-1, at, np.searchsorted(ranks, of_ranks)] = collectives
    return tuple(coverage(ranks, role_codes(ranks, role_of), counts))


def _by_rank(trace: Trace, counted: pl.DataFrame, odd: Sequence[KairWarning]) -> tuple[RankRecord, ...]:
    whole = dict(counted.group_by("rank").agg(pl.col("step").n_unique()).iter_rows())
    held = dict(counted.group_by("rank").agg(pl.col("len").sum()).iter_rows())
    communication = counted.filter(pl.col("kind").is_in(_COMMUNICATION))
    calls = dict(communication.group_by("rank").agg(pl.col("len").sum()).iter_rows())
    records = (
        RankRecord(
            rank=rank,
            files=trace.job.files.get(rank, 0),
            steps=whole.get(rank, 0),
            operations=held.get(rank, 0),
            collectives=calls.get(rank, 0),
            odd=tuple(warning.code for warning in odd if rank in warning.ranks),
        )
        for rank in trace.job.ranks
    )
    return tuple(sorted(records, key=lambda one: (not one.odd, one.rank)))


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
