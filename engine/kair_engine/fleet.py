"""All jobs of a store together: how often stragglers occur, what they cost, and on which hosts.

Puts the costs of all jobs together: the share that is slow, the distribution of S, sizes, weeks, causes, and hosts that
come up again.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, Literal

import numpy as np

from kair_engine.causes import CAUSES
from kair_engine.errors import InputError
from kair_engine.ranks import Rank
from kair_engine.results.store import (
    SLOWED,
    FleetGroup,
    FleetHost,
    FleetJob,
    FleetResult,
    ShareOfJobs,
    StragglerCost,
)
from kair_engine.results.triage import Finding, TriageResult
from kair_engine.results.whatif import ERROR_GATE, WhatifResult
from kair_engine.stats import wilson
from kair_engine.step_bar import bar_of_jobs
from kair_engine.trace.model import Job, KairWarning, Trace, hosts_of
from kair_engine.whatif.analysis import model_asked_of, price_fixes
from kair_engine.whatif.prices import HOURS_PER_DAY

RECURS: Final = 0.01
"""Chance of a host's being accused as often as it is, in any of them, below which that is no chance."""
SIZES: Final = (8, 64, 512)
"""Ranks: the most of each group of jobs by size, but for the largest jobs."""
_DRAWS: Final = 2000


def fleet_of(store: str, jobs: Sequence[FleetJob], warnings: Sequence[KairWarning]) -> FleetResult:
    """Return the fleet of `jobs`, which are priced."""
    jobs = [replace(job, slow=_is_slow(job), within_noise=job.verdict == "no_straggler") for job in jobs]
    known = _slowdowns(jobs)
    priced = [job for job in jobs if job.cause is None or not CAUSES[job.cause].stops_job]
    causes = [*_groups("cause", priced, lambda job: (0, job.cause or "none")), *_hangs(jobs)]
    costs = [job.cost_per_day for job in jobs if job.cost_per_day is not None]
    return FleetResult(
        store=store,
        jobs=tuple(sorted(jobs, key=lambda job: (-job.gpu_hours_per_day, job.name))),
        replayed=len(known),
        inexact=sum(map(is_inexact, jobs)),
        slowdown_90=_quantile(known, 0.9),
        **_figures(jobs),
        cost_per_day=sum(costs) if costs else None,
        currency=next((job.currency for job in jobs if job.cost_per_day is not None), None),
        distribution=distribution(known),
        groups=(
            *_groups("size", jobs, _size),
            *_groups("week", jobs, lambda job: (0, job.week)),
            *sorted(causes, key=lambda group: -group.gpu_hours_per_day),
        ),
        hosts=recurring(jobs),
        warnings=tuple(warnings),
        bar=bar_of_jobs([(job.bar, job.world_size) for job in jobs if job.bar is not None]),
    )


def week_of(moment: str) -> str:
    """Return the ISO week of a time in ISO 8601: `2026-W30`."""
    year, week, _ = datetime.fromisoformat(moment).isocalendar()
    return f"{year}-W{week:02}"


def distribution(slowdowns: Sequence[float]) -> tuple[ShareOfJobs, ...]:
    """Return the empirical distribution function, a point for each value that there is."""
    values, times = np.unique(np.asarray(slowdowns, dtype=np.float64), return_counts=True)
    shares = np.cumsum(times) / max(len(slowdowns), 1)
    return tuple(ShareOfJobs(float(value), float(share)) for value, share in zip(values, shares, strict=True))


def recurring(jobs: Sequence[FleetJob]) -> tuple[FleetHost, ...]:
    """Every host, with how likely chance alone would accuse it as often.

    Under chance each job that ran on `h` hosts and accuses `a` of them picks any `a`: the number of jobs in which a
    host is picked is a sum of independent events of probabilities a/h (Poisson-binomial).
    """
    ran_on: dict[str, list[FleetJob]] = defaultdict(list)
    for job in jobs:
        for host in job.job_hosts:
            ran_on[host].append(job)
    hosts = [_host(name, there, len(ran_on)) for name, there in ran_on.items()]
    return tuple(sorted(hosts, key=lambda one: (-one.accused, -one.accused / one.jobs, one.host)))


def _host(name: str, there: Sequence[FleetJob], hosts: int) -> FleetHost:
    accused_in = tuple(job.name for job in there if name in job.accused_hosts)
    p_value = None
    if accused_in:
        chances = [len(job.accused_hosts) / len(job.job_hosts) for job in there]
        p_value = min(1.0, _at_least(len(accused_in), chances) * hosts)
    recurs = p_value is not None and len(accused_in) > 1 and p_value < RECURS
    return FleetHost(name, len(there), len(accused_in), accused_in, p_value, recurs)


def _at_least(times: int, chances: Sequence[float]) -> float:
    """How likely so many of independent events come about, or more."""
    exactly = np.array([1.0])
    for chance in chances:
        exactly = np.convolve(exactly, [1 - chance, chance])
    return float(exactly[times:].sum())


def _groups(
    by: Literal["size", "week", "cause"], jobs: Sequence[FleetJob], key: Callable[[FleetJob], tuple[int, str]]
) -> list[FleetGroup]:
    """In the order of what `key` gives first; they are called by what it gives second."""
    members: dict[tuple[int, str], list[FleetJob]] = defaultdict(list)
    for job in jobs:
        members[key(job)].append(job)
    return [FleetGroup(by=by, group=of[1], jobs=len(its), **_figures(its)) for of, its in sorted(members.items())]


def _hangs(jobs: Sequence[FleetJob]) -> list[FleetGroup]:
    """Return the group of jobs that hang, without a price: what they waste has other causes."""
    its = [job for job in jobs if job.hangs]
    figures = {**_figures([]), "with_straggler": sum(job.verdict == "straggler" for job in its)}
    return [FleetGroup(by="cause", group="hang", jobs=len(its), **figures)] if its else []


def _figures(jobs: Sequence[FleetJob]) -> dict[str, Any]:
    """Return what is said of all jobs, and of some; of waste every device's time counts alike."""
    known, slow = _slowdowns(jobs), sum(job.slow for job in jobs)
    least, most = wilson(slow, len(jobs)) if jobs else (None, None)
    return {
        "with_straggler": sum(job.verdict == "straggler" for job in jobs),
        "slow": slow,
        "slow_share": slow / len(jobs) if jobs else None,
        "slow_share_least": least,
        "slow_share_most": most,
        "median_slowdown": _quantile(known, 0.5),
        "worst_slowdown": max(known, default=None),
        "gpu_hours_per_day": sum(job.gpu_hours_per_day for job in jobs),
        **_waste(jobs),
    }


def _waste(jobs: Sequence[FleetJob]) -> dict[str, float | None]:
    """Return the wasted share of all devices' time, and its range where the jobs are drawn again (bootstrap)."""
    count = len(jobs)
    devices = np.array([job.world_size for job in jobs], dtype=np.float64)
    wasted = devices * [job.waste for job in jobs]
    least = most = None
    if count > 1:
        drawn = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=_DRAWS)
        least, most = map(float, np.quantile(drawn @ wasted / (drawn @ devices), (0.025, 0.975)))
    waste = float(wasted.sum() / devices.sum()) if count else None
    return {"waste": waste, "waste_least": least, "waste_most": most}


def _size(job: FleetJob) -> tuple[int, str]:
    """Return where the group comes among the others, and its name: `9-64`, `>512`."""
    at = bisect_left(SIZES, job.world_size)
    return at, f"{(0, *SIZES)[at] + 1}-{SIZES[at]}" if at < len(SIZES) else f">{SIZES[-1]}"


def _is_slow(job: StragglerCost) -> bool:
    return (1 - job.waste) * SLOWED <= 1


def _slowdowns(jobs: Sequence[FleetJob]) -> list[float]:
    """Return S of each job that counts; S of a job without a straggler is its noise, and counts as 1."""
    return [
        1.0 if job.within_noise else job.slowdown for job in jobs if job.slowdown is not None and not is_inexact(job)
    ]


def is_inexact(job: StragglerCost) -> bool:
    """Whether the job's simulation is too far off for its S to count, as in the paper [W]."""
    return job.simulation_error is not None and job.simulation_error > ERROR_GATE


def _quantile(values: Sequence[float], share: float) -> float | None:
    return float(np.quantile(values, share, method="inverted_cdf")) if values else None


def cost_of(trace: Trace, triaged: TriageResult) -> StragglerCost:
    """Return the cost of all the trace's steps, whose triage is `triaged`: what undoing its findings saves."""
    replayed, share = None if trace.job.is_recorded_only else _replayed(trace), saved_share(triaged)
    accused = tuple(sorted({rank for finding in triaged.findings for rank in _accused(finding)}))
    # Hangs come first, and have no price.
    found = sorted(triaged.findings, key=lambda one: CAUSES[one.cause].stops_job)
    return StragglerCost(
        verdict=triaged.verdict,
        cause=found[0].cause if found else None,
        accused_ranks=accused,
        accused_hosts=hosts_of(trace.job, accused),
        job_hosts=hosts_of(trace.job, trace.job.ranks),
        slowdown=replayed.slowdown if replayed else None,
        simulation_error=replayed.simulation_error if replayed else None,
        waste=share,
        gpu_hours_per_day=share * trace.job.world_size * HOURS_PER_DAY,
        recorded_at=_recorded_at(trace.job),
        bar=None if triaged.bar is None else replace(triaged.bar, ranks=()),
        hangs=any(CAUSES[one.cause].stops_job for one in found),
    )


def saved_share(triaged: TriageResult) -> float:
    """Return what undoing all findings saves together, as a share of the job's time; 0 where triage found nothing.

    A gain in throughput of g makes a step 1/(1 + g) as long, which saves g/(1 + g) of it.
    """
    together = [] if triaged.together is None else [triaged.together.throughput_gain]
    gain = max((*together, *(finding.throughput_gain for finding in triaged.findings)), default=0.0)
    return gain / (1 + gain)


def _replayed(trace: Trace) -> WhatifResult | None:
    try:
        return price_fixes(model_asked_of(trace), ())
    except InputError:
        return None


def _accused(finding: Finding) -> Sequence[Rank]:
    return () if finding.pattern == "job_wide" else finding.ranks


def _recorded_at(job: Job) -> str | None:
    begins = job.step_times.begin_ns
    if not job.absolute_time or not begins or min(begins) <= 0:
        return None
    return datetime.fromtimestamp(min(begins) // 10**9, UTC).isoformat()
