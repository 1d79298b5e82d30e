"""Inventory of a recording: its ranks, steps, layout and clocks."""

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from kair_engine.arrays import Floats, Ints
from kair_engine.localize.by_rank import StepByRank, summed_steps
from kair_engine.localize.unnamed_collectives import unnamed_collective_warnings, with_collectives_marked
from kair_engine.ranks import Rank
from kair_engine.results.views import ClockInfo, InfoResult, OperatorUse, RankRecord, StepsResult, StepSummary, StepTime
from kair_engine.timeline.clocks import Clocks, synchronise
from kair_engine.timeline.coverage import COUNTED, coverage, recorded
from kair_engine.timeline.roles import role_codes, roles
from kair_engine.timeline.self_time import step_time_ns
from kair_engine.timeline.step_parts import timed_on
from kair_engine.trace.large_steps import of_steps, texts_counted
from kair_engine.trace.model import Job, KairWarning, Trace, usual_queue
from kair_engine.trace.operations import Operations

if TYPE_CHECKING:
    from kair_engine.trace.queries import OperationsByKind

SLOW_STEP = 1.1
"""Times the median step above which a step is called slow."""

MOST_ROWS = 500_000
"""Steps times ranks of the history that are listed, the last ones."""
_CLOCK_STEPS = 3
"""Steps looked at for the clocks: offsets hardly move within a recording."""


def info(trace: Trace, *, operators: bool = False) -> InfoResult:
    """World size, ranks, layout, steps, counts by kind, matched collectives and clock quality.

    With `operators` also how often each ran, the profiler's own scopes left out.
    """
    from kair_engine.trace.queries import operations_by_kind  # the other view needs no query

    if trace.job.is_recorded_only or trace.job.is_log:
        return _without_operations(trace)
    trace = with_collectives_marked(trace)
    job = trace.job
    role_of = roles(trace)
    ranks = np.array(job.ranks, dtype=np.int64)
    code = role_codes(ranks, role_of)
    found, matched, covered, clocks = 0, 0, list[Floats](), list[Clocks]()

    def count(step: StepByRank) -> None:
        nonlocal found, matched
        sync, times = step.sync, step.times
        found += len(sync.collectives) + sync.collectives.rejected
        matched += len(sync.collectives)
        place = np.searchsorted(ranks, sync.collectives.ops.ranks)
        covered.append(np.full((len(COUNTED), len(ranks)), np.nan))
        covered[-1][:, place] = recorded(
            times.counted, sync, code[place], computed_ns=times.compute_ns, idle_ns=times.host_ns
        )
        clocks.extend([sync.clocks][: _CLOCK_STEPS - len(clocks)])

    deque(map(count, summed_steps(trace)), maxlen=0)
    operations_of = operations_by_kind(trace)
    kinds = operations_of.per("kind").items()
    by_role: dict[str, list[int]] = defaultdict(list)
    # The ranks that could not be compared, as triage reports them.
    odd = tuple(coverage(ranks, code, np.stack(covered, axis=1))) if covered and len(ranks) > 1 else ()
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
        operations=sum(count for _, count in kinds),
        operations_by_kind=dict(sorted(kinds, key=lambda of: (of[1], of[0]), reverse=True)),
        collectives=found,
        matched_collectives=matched,
        clock=_clock(job, clocks),
        warnings=(*odd, *unnamed_collective_warnings(trace)),
        operators=_operators(trace) if operators else (),
        by_rank=_by_rank(trace, operations_of, odd),
        timed_on=timed_on(job),
        launch_queue_depth={rank: queue.depth for rank, queue in sorted(job.launch_queue.items())},
        launch_queue_per_stream=usual_queue(job.launch_queue.values()).per_stream if job.launch_queue else None,
        identities=tuple(job.identity[rank] for rank in sorted(job.identity)),
    )


def _without_operations(trace: Trace) -> InfoResult:
    """Return what is known of a job of which steps were recorded, and nothing was sampled."""
    job = trace.job
    return InfoResult(
        format=job.format,
        world_size=job.world_size,
        ranks=job.ranks,
        missing_ranks=() if job.is_log else job.missing_ranks,
        hosts=_by_host(job),
        layout=None,
        roles={},
        device=None,
        steps=trace.steps,
        operations=0,
        operations_by_kind={},
        collectives=0,
        matched_collectives=0,
        clock=ClockInfo("none", None, 0.0),
        warnings=(),
    )


def _by_rank(trace: Trace, operations_of: "OperationsByKind", odd: Sequence[KairWarning]) -> tuple[RankRecord, ...]:
    whole, held = operations_of.steps_of_ranks, operations_of.per("rank")
    calls = operations_of.per("rank", ("collective", "send", "recv"))
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
    used = texts_counted(trace, ("name", "phase"))
    counts: Counter[str] = Counter()
    phases: dict[str, list[str]] = defaultdict(list)
    for (name, phase), count in used.items():
        counts[name] += count
        if phase:
            phases[name].append(phase)
    names = sorted(counts, key=lambda name: (-counts[name], name))
    return tuple(OperatorUse(name, counts[name], tuple(sorted(phases[name]))) for name in names)


def steps(trace: Trace, only_rank: int | None = None) -> StepsResult:
    """Return the time of every recorded step on every rank, and over the ranks; of one rank alone where it is named."""
    times, marks = trace.job.step_times, trace.job.host_times or trace.job.step_times
    chosen, usable = set(trace.steps), set(trace.job.steps)
    origin = min(times.begin_ns, default=0)
    columns = (times.rank, times.step, times.begin_ns, times.duration_ns, times.operations, marks.duration_ns)
    rows = [
        StepTime(
            step,
            Rank(rank),
            (begin - origin) / 1e3,
            length / 1e3,
            operations,
            step in usable,
            host_us=None if marks is times else on_host / 1e3,
        )
        for rank, step, begin, length, operations, on_host in zip(*columns, strict=True)
        # An incomplete step belongs to the answer only where every step was asked for.
        if (step in chosen or (step not in usable and chosen == usable)) and only_rank in (None, rank)
    ]
    rows.sort(key=lambda row: (row.step, row.rank))
    by_step: dict[int, list[StepTime]] = defaultdict(list)
    for row in rows:
        by_step[row.step].append(row)
    slowest = [max(of_step, key=lambda row: row.duration_us) for of_step in by_step.values()]
    usual = float(np.median([row.duration_us for row in slowest if row.complete] or [0.0]))
    summaries = (_summary(of_step, last, usual) for of_step, last in zip(by_step.values(), slowest, strict=True))
    of_rank = [row.duration_us for row in rows if row.complete] or [0.0]
    mean_us = float(np.mean(of_rank))
    if only_rank is None:
        meets = _synchronises(trace) or _synchronises(with_collectives_marked(trace))
        mean_us = step_time_ns(trace, synchronised=meets) / 1e3
    return StepsResult(tuple(summaries), tuple(rows), mean_us, (), timed_on=timed_on(trace.job))


def steps_of_rows(
    rank: Ints, step: Ints, us: Mapping[str, Floats], warnings: tuple[KairWarning, ...] = ()
) -> StepsResult:
    """Return the same of the rows that capture recorded: `us` has `begin`, `step` and `self` of each, by step."""
    begin = us["begin"] - us["begin"].min(initial=np.inf)
    columns = (step.tolist(), rank.tolist(), begin.tolist(), us["step"].tolist(), us["self"].tolist())
    rows = [
        StepTime(at, Rank(of), began, took, 0, True, own_us=own)
        for at, of, began, took, own in zip(*columns, strict=True)
    ]
    by_step = [list(some) for _, some in groupby(rows, key=lambda row: row.step)]
    slowest = [max(some, key=lambda row: row.duration_us) for some in by_step]
    usual = float(np.median([row.duration_us for row in slowest] or [0.0]))
    summary = []
    for some, last in zip(by_step, slowest, strict=True):
        longest = max(some, key=lambda row: row.own_us or 0.0)
        summary.append(replace(_summary(some, last, usual), own_us=longest.own_us, own_rank=longest.rank))
    mean_us = float(np.mean([one.median_us for one in summary])) if summary else 0.0
    return StepsResult(tuple(summary), tuple(rows), mean_us, warnings)


def _synchronises(trace: Trace) -> bool:
    first = trace.select(trace.steps[:1])
    return any(of_steps(first, _meets, lambda _: None, lambda step, _: _meets(step.operations())))


def _meets(ops: Operations) -> bool:
    return len(synchronise(ops).collectives) > 0


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


def _clock(job: Job, clocks: list[Clocks]) -> ClockInfo:
    residuals = [one.residual_ns for one in clocks if one.residual_ns is not None]
    if len(job.ranks) > 1 and len({job.clock_of.get(rank, -1 - rank) for rank in job.ranks}) == 1:
        return ClockInfo("file", float(np.median(residuals)) / 1e3 if residuals else None, 0.0)
    if not residuals:
        return ClockInfo("none", None, 0.0)
    offset = max(float(np.abs(one.offset_ns).max()) for one in clocks)
    return ClockInfo("collectives", float(np.median(residuals)) / 1e3, offset / 1e3)
