"""What stragglers cost one job."""

from collections.abc import Sequence
from datetime import UTC, datetime

from kair_engine.errors import InputError
from kair_engine.ranks import Rank
from kair_engine.results.runs.fleet import StragglerCost
from kair_engine.results.triage import Finding, TriageResult
from kair_engine.results.whatif import WhatifResult
from kair_engine.trace.hosts import hosts_of
from kair_engine.trace.model import Job, Trace
from kair_engine.whatif.analysis import price_fixes
from kair_engine.whatif.models import model_asked_of


def cost_of(trace: Trace, triaged: TriageResult) -> StragglerCost:
    """The cost of all the trace's steps, whose triage is `triaged`."""
    replayed = _replayed(trace)
    accused = tuple(sorted({rank for finding in triaged.findings for rank in _accused(finding)}))
    return StragglerCost(
        verdict=triaged.verdict,
        cause=triaged.findings[0].cause if triaged.findings else None,
        accused_ranks=accused,
        accused_hosts=hosts_of(trace.job, accused),
        job_hosts=hosts_of(trace.job, trace.job.ranks),
        slowdown=replayed.slowdown if replayed else None,
        waste=replayed.waste if replayed else None,
        gpu_hours_per_day=replayed.gpu_hours_per_day if replayed else None,
        recorded_at=_recorded_at(trace.job),
    )


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
