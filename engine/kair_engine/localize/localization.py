"""All robust tests of stage 1 on one job, and what they conclude."""

import math
from dataclasses import replace

import numpy as np

from kair_engine.arrays import zero_for_nan
from kair_engine.frozen import dataclass
from kair_engine.localize.anomalies import FALSE_ALARM_RATE, FEWEST_STEPS, SHARES, SMALLEST_SHARE, Anomaly
from kair_engine.localize.excess import JobExcess
from kair_engine.localize.imbalance import (
    Scattered,
    UnevenBatches,
    UnevenStage,
    scattered,
    uneven_batches,
    uneven_stage,
)
from kair_engine.localize.large_delays import intermittent, unproven
from kair_engine.localize.links import SlowLink, slow_links
from kair_engine.localize.onset import Onset, onset
from kair_engine.localize.persistence import Persistence, persistence, slow_operators
from kair_engine.timeline.step_time import step_time_ns as mean_step_time_ns
from kair_engine.trace.model import Trace

CLEARER = 1.2
"""From its onset on a fault costs this much more than over all steps; else it was there from the beginning."""


@dataclass(frozen=True)
class Localization:
    """Everything stage 1 found, for the stages after it."""

    job: JobExcess
    persistence: Persistence
    anomalies: tuple[Anomaly, ...]
    links: tuple[SlowLink, ...]
    undecided: tuple[Anomaly, ...]
    """Ranks that were slow in all of too few steps, or had most of too few delays."""
    stage: UnevenStage | None = None
    batches: UnevenBatches | None = None
    scattered: Scattered | None = None
    begun: Onset | None = None
    """Where some rank became slower than it had been."""


def conclude(job: JobExcess) -> Localization:
    """Runs the robust tests: who is slow in all steps or in some, alone or with others; slow links; uneven work."""
    steady, stalled = persistence(job), intermittent(job)
    if len(job.steps) < FEWEST_STEPS:
        known = {rank for anomaly in stalled for rank in anomaly.positions}
        undecided = tuple(slow for slow in steady.anomalies if not known & set(slow.positions))
        return Localization(job, steady, tuple(stalled), (), undecided)
    begun = onset(zero_for_nan(job.by_step_ns).sum(axis=1), job.step_time_ns)
    lasting = _since(job, begun, (*steady.anomalies, *slow_operators(job)))
    return _concluded(job, steady, (*lasting, *stalled), _links(job), begun)


def also_slow(found: Localization, anomaly: Anomaly) -> Localization:
    """The same with one more anomaly: whoever is slow by it is no part of a job-wide pattern, and not undecided."""
    return _concluded(found.job, found.persistence, (*found.anomalies, anomaly), found.links, found.begun)


def slow_since(found: Localization, begun: Onset) -> Localization:
    """The same, of a job in which nobody is slow, with those that are from `begun` on, which no test told."""
    anomalies = _since(found.job, begun, ())
    return _concluded(found.job, found.persistence, anomalies, found.links, begun) if anomalies else found


def _concluded(
    job: JobExcess,
    steady: Persistence,
    anomalies: tuple[Anomaly, ...],
    links: tuple[SlowLink, ...],
    begun: Onset | None,
) -> Localization:
    """What is left for patterns of the whole job, once these ranks are known to be slow."""
    accused = {rank for anomaly in anomalies for rank in anomaly.positions}
    batches = uneven_batches(job, accused)
    return Localization(
        job,
        steady,
        anomalies,
        links,
        undecided=(few,) if (few := unproven(job, accused)) else (),
        stage=uneven_stage(job, accused),
        batches=batches,
        scattered=None if batches is not None and batches.are_costly(job.step_time_ns) else scattered(job, accused),
        begun=begun,
    )


def _since(job: JobExcess, begun: Onset | None, lasting: tuple[Anomaly, ...]) -> tuple[Anomaly, ...]:
    """The anomalies of all steps; those that show more clearly from the onset on, as they are from there."""
    if begun is None:
        return lasting
    later = replace(job, steps=job.steps[begun.at :])
    of = {_about(one): one for one in lasting}
    for one in (*persistence(later).anomalies, *slow_operators(later)):
        if one.kind == "group" and not (begun.sure and _above_rest_ns(job, one) > SMALLEST_SHARE * job.step_time_ns):
            continue
        known = of.get(_about(one))
        if known is None or one.excess_ns > CLEARER * known.excess_ns:
            of[_about(one)] = replace(one, since=job.steps[begun.at].step)
    return tuple(of.values())


def _above_rest_ns(job: JobExcess, group: Anomaly) -> float:
    """How far a group lies above the rest of its role over all steps; ranks that share cores take turns at that."""
    mean = zero_for_nan(job.by_step_ns[:, group.class_index]).mean(axis=0)
    slow = np.isin(np.arange(len(mean)), group.positions)
    rest = ~slow & np.isin(job.role, job.role[slow])
    return float(mean[slow].mean() - mean[rest].mean()) if rest.any() else math.inf


def _about(one: Anomaly) -> tuple[tuple[int, ...], int, str | None]:
    return one.positions, one.class_index, one.operator


def step_time_ns(trace: Trace, job: JobExcess) -> float:
    """The job's step: the mean over steps of the median rank's (of the longest, where no collective synchronises)."""
    return mean_step_time_ns(trace, synchronised=any(len(step.late.rank) for step in job.steps))


def _links(job: JobExcess) -> tuple[SlowLink, ...]:
    share = SHARES["link"]
    found = slow_links([step.links for step in job.steps], job.step_time_ns, FALSE_ALARM_RATE * share, SMALLEST_SHARE)
    return tuple(replace(slow, p_value=min(1.0, slow.p_value / share)) for slow in found)
