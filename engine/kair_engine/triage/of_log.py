"""Ranks that their own lines in a job's log set apart, as findings: each has a price, and a ticket can name it."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from kair_engine.causes import Cause
from kair_engine.results.evidence_kinds import OwnLines
from kair_engine.results.steplog import LogOfSteps, LogRank
from kair_engine.results.triage import Finding
from kair_engine.trace.model import Job
from kair_engine.triage.findings import new_finding
from kair_engine.triage.pricing import with_price
from kair_engine.whatif.prices import price

_INPUT: Final = re.compile(r"(?i)data|load|input|batch|fetch")
"""Phases of fetching; what else comes before the first collective may be the device's or its host's."""

_STEP: Final = {"time": "a step", "step": "a step"}
"""Of a time that is no phase's."""


def findings_of_log(log: LogOfSteps, job: Job, gpu_cost: float | None = None) -> tuple[Finding, ...]:
    """Return a finding for each rank that the log sets apart, the costliest first; none where times have no unit."""
    found = sorted(_findings(log, job, gpu_cost), key=lambda one: -one.time_lost_us_per_step)
    return tuple(found)


def _findings(log: LogOfSteps, job: Job, gpu_cost: float | None) -> Iterator[Finding]:
    step_us = log.attempts[-1].step_us if log.attempts else None
    if step_us is None:
        return
    for one in log.ranks:
        lost_us, every = _lost(one, log)
        cause: Cause = "input" if _INPUT.search(one.phase) else "unknown"
        finding = new_finding(
            job,
            cause=cause,
            pattern="persistent" if one.contrast in ("past", "peers") else "intermittent",
            ranks=(one.rank,),
            lost_ns=lost_us * 1e3,
            step_time_ns=step_us * 1e3,
            evidence=(OwnLines(one.excess_us, ranks=(one.rank,), about=_STEP.get(one.phase, one.phase)),),
            p_value=one.p_value,
            since=one.since,
        )
        step_ns = step_us * 1e3
        cost = price(
            "",
            step_ns,
            max(step_ns - finding.time_lost_us_per_step * 1e3, 1.0),
            devices=log.world_size or log.ranks_printed,
            gpu_cost=gpu_cost,
        )
        in_slow = None if every is None else min(one.excess_us, finding.time_lost_us_per_step * every)
        priced = with_price(finding, cost, "excess", ())
        yield replace(
            priced, scope=None if one.phase in _STEP else one.phase, every=every, time_lost_us_per_slow_step=in_slow
        )


def _lost(one: LogRank, log: LogOfSteps) -> tuple[float, int | None]:
    """Return what a step loses in the mean, no more than the job's steps take longer; and every how many steps."""
    last = log.attempts[-1]
    if one.contrast == "place":
        known = [period for period in log.periods if period.attempt == last.number and period.extra_us]
        period = min(known, key=lambda period: abs((period.extra_us or 0.0) - one.excess_us))
        return min(one.excess_us, period.extra_us or one.excess_us) / period.every, period.every
    if one.contrast == "moment":
        return one.excess_us * log.spikes_in_all / max(last.last_step - last.first_step + 1, 1), None
    extra = [change.extra_us_per_step for change in log.changes if change.since == one.since]
    return min([one.excess_us, *(us for us in extra if us)]), None
