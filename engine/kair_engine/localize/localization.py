"""All robust tests of stage 1 on one job, and what they conclude.

Job-wide patterns as stage 1 reports them: what slows a job though no rank is at fault.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from kair_engine.arrays import Floats, present, zero_for_nan
from kair_engine.causes import Cause
from kair_engine.frozen import dataclass
from kair_engine.localize.anomalies import FALSE_ALARM_RATE, FEWEST_STEPS, LINK_SHARE, PAST_SHARE, Anomaly
from kair_engine.localize.detect import Detections, at_steps, detect
from kair_engine.localize.excess import CLASSES, JobExcess
from kair_engine.localize.imbalance import UnevenBatches, UnevenStage, uneven_batches, uneven_stage
from kair_engine.localize.large_delays import host_pauses
from kair_engine.localize.link_changes import Differing, changed_links, differing
from kair_engine.localize.links import SlowLink, slow_links
from kair_engine.localize.moments import (
    UNEVEN_SHARE,
    AnotherRank,
    Longest,
    Moment,
    changing_work,
    events,
    scattered,
    shared_moments,
)
from kair_engine.localize.placement import Placement, placement, without_places
from kair_engine.localize.signals import Measured
from kair_engine.localize.since import SlowerRole, SlowerSteps, slower_roles, slower_steps
from kair_engine.ranks import Position, Rank, as_positions, ranks_at
from kair_engine.results import SMALLEST_SHARE
from kair_engine.results.localize import JobPattern
from kair_engine.stats import TRIM, trimmed_mean
from kair_engine.timeline.coverage import NOT_COMPARED, coverage
from kair_engine.timeline.host_activity import CALLS, HOST_KINDS
from kair_engine.timeline.self_time import step_time_ns as mean_step_time_ns
from kair_engine.trace.model import Job, Trace


@dataclass(frozen=True)
class Localization:
    """Everything stage 1 found, for the stages after it."""

    job: JobExcess
    mean_ns: Floats
    """(classes × ranks): the trimmed mean of the excess over steps."""
    detections: Detections
    anomalies: tuple[Anomaly, ...]
    links: tuple[SlowLink, ...] = ()
    differing: Differing | None = None
    """Of links without enough siblings for a test."""
    roles: tuple[SlowerRole, ...] = ()
    """Whole roles that became slower, whose ranks are not accused one by one."""
    longer: SlowerSteps | None = None
    """How all steps became longer, whoever is to blame."""
    undecided: tuple[Anomaly, ...] = ()
    """Ranks that were slow in all of too few steps."""
    stage: UnevenStage | None = None
    batches: UnevenBatches | None = None
    placement: Placement | None = None
    changing: AnotherRank | None = None
    varies_ns: float = 0.0
    """What is lost in a step as another rank takes longest each time, where that is too little for a finding."""
    events: tuple[Moment, ...] = ()
    """Large delays of ranks that are not accused."""
    shared: tuple[Moment, ...] = ()
    """Steps that took all ranks longer."""


def conclude(job: JobExcess, measured: Measured | None = None, of: Job | None = None) -> Localization:
    """Run the robust tests: who is slow, alone or with others; slow links; uneven work.

    `measured` is what else is known about ranks, besides their excesses (signals.py); `of` names the job's process
    groups and devices.
    """
    mean_ns = trimmed_mean(zero_for_nan(job.by_step_ns), TRIM)
    detections = detect(job, measured)
    anomalies, undecided = _found(job, detections)
    if len(job.steps) < FEWEST_STEPS:
        return Localization(job, mean_ns, detections, anomalies, undecided=undecided)
    places = None if of is None else placement(of, job)
    if places is not None:
        anomalies = without_places(anomalies, places, job)
    accused = {rank for anomaly in anomalies for rank in anomaly.positions}
    batches = uneven_batches(job, accused)
    steady = np.zeros(len(job.ranks)) if places is None else places.of_rank_ns
    changing = None if batches is not None and batches.are_costly(job.step_time_ns) else scattered(job, accused)
    roles = slower_roles(job, accused)
    slower = {position for role in roles for position in role.positions}
    lacking = _not_compared(job)
    longest = Longest.of(job, steady, accused | slower | lacking)
    if changing is None and batches is None:
        changing = changing_work(job, longest)
    links, transfers = _links(job), [step.transfers for step in job.steps]
    return Localization(
        job,
        mean_ns,
        detections,
        anomalies,
        links,
        differing=None if links else differing(transfers, job.step_time_ns, SMALLEST_SHARE),
        roles=roles,
        longer=slower_steps(job),
        stage=uneven_stage(job, accused),
        batches=batches,
        placement=places,
        changing=changing,
        varies_ns=0.0 if longest is None or batches is not None or changing is not None else longest.lost_ns,
        events=tuple(events(job, accused | slower | lacking)),
        shared=tuple(shared_moments(job)),
    )


def standing_out(job: JobExcess) -> tuple[Anomaly, ...]:
    """Return what `conclude` says of ranks alone, found or undecided, without all that it says of the job."""
    anomalies, undecided = _found(job, detect(job))
    return (*anomalies, *undecided)


def _found(job: JobExcess, detections: Detections) -> tuple[tuple[Anomaly, ...], tuple[Anomaly, ...]]:
    """(anomalies, those of too few steps)."""
    anomalies = at_steps(detections.anomalies, [step.step for step in job.steps])
    if len(job.steps) >= FEWEST_STEPS:
        return anomalies, ()
    stalled = tuple(host_pauses(job))
    known = {rank for anomaly in stalled for rank in anomaly.positions}
    return stalled, tuple(slow for slow in anomalies if not known & set(slow.positions))


def _not_compared(job: JobExcess) -> set[Position]:
    """Return the ranks of whose recording a part is missing: what they take less or more than peers says nothing."""
    if job.recorded is None or len(job.ranks) < 2:
        return set()
    found = coverage(job.ranks, job.role, job.recorded)
    named = [rank for one in found if one.code in NOT_COMPARED for rank in one.ranks]
    return set(as_positions(np.searchsorted(job.ranks, named)))


def can_accuse(job: JobExcess) -> bool:
    """Whether any rank could be found slow: it needs peers, and more than a moment."""
    needed = steps_needed(job)
    return needed is not None and len(job.steps) >= needed


def steps_needed(job: JobExcess) -> int | None:
    """In how many steps a rank could be found slow; None where none has peers."""
    return FEWEST_STEPS if any(np.count_nonzero(job.role == code) > 1 for code in present(job.role)) else None


def step_time_ns(trace: Trace, job: JobExcess) -> float:
    """Return the job's step: the mean over steps of the median rank's (of the longest, where no collective
    synchronises).
    """
    return mean_step_time_ns(trace, synchronised=any(len(step.late.rank) for step in job.steps))


def _links(job: JobExcess) -> tuple[SlowLink, ...]:
    """Those that are slower than before, and of the others those that are slower than their siblings."""
    by_siblings, by_past = (FALSE_ALARM_RATE * share for share in (LINK_SHARE, PAST_SHARE))
    numbers, transfers = [step.step for step in job.steps], [step.transfers for step in job.steps]
    changed = changed_links(transfers, numbers, job.step_time_ns, by_past, SMALLEST_SHARE)
    known = {link for one in changed for link in (one.link, *one.followers)}
    slow = slow_links([step.links for step in job.steps], job.step_time_ns, by_siblings, SMALLEST_SHARE)
    return (
        *(replace(one, p_value=min(1.0, one.p_value / PAST_SHARE)) for one in changed),
        *(replace(one, p_value=min(1.0, one.p_value / LINK_SHARE)) for one in slow if one.link not in known),
    )


def job_patterns(found: Localization, *, to_be_priced: bool = False) -> Iterator[JobPattern]:
    """Uneven stages, uneven batches, delays on changing ranks; the time lost is no replay but from the ranks' work.

    Uneven batches that cost little by that are among them only if they are `to_be_priced` by a replay.
    """
    job, steps = found.job, tuple(step.step for step in found.job.steps)
    if (stage := found.stage) is not None:
        figures = {role.name: own / 1e3 for role, own in stage.of_role_ns.items()}
        yield JobPattern("stage_imbalance", ranks_at(job.ranks, stage.positions), steps, stage.lost_ns / 1e3, figures)
    batches = found.batches
    if batches is not None and (to_be_priced or batches.are_costly(job.step_time_ns)):
        figures = {"correlation": batches.correlation, "variation": batches.variation}
        ranks = tuple(Rank(int(rank)) for rank in job.ranks)
        yield JobPattern("sequence_imbalance", ranks, steps, batches.lost_ns / 1e3, figures)
    if (places := found.placement) is not None and places.partition.is_structure:
        ranks = ranks_at(job.ranks, as_positions(places.slowest))
        figures = {str(at): spent / 1e3 for at, spent in enumerate(places.spent_ns)}
        name = next(iter(places.partition.names), None)
        lost = places.lost_ns / 1e3
        yield JobPattern("position_imbalance", ranks, steps, lost, figures, places.operator, name)
    if (changing := found.changing) is not None:
        ranks, lost = ranks_at(job.ranks, changing.positions), changing.lost_ns / 1e3
        yield JobPattern(changing.cause, ranks, changing.steps, lost, dict(changing.figures), changing.operator)
    for moment in found.shared:
        if len(moment.hit) > 1 and CLASSES[moment.class_index] == "host":
            hit = tuple(steps[at] for at in moment.hit)
            figures = {"delays": float(len(hit)), "every": float(moment.every() or 0)}
            ranks = tuple(Rank(int(rank)) for rank in job.ranks)
            if moment.lost_ns >= UNEVEN_SHARE * job.step_time_ns:
                yield JobPattern(_cause_of_pause(job, moment), ranks, hit, moment.lost_ns / 1e3, figures)


def _cause_of_pause(job: JobExcess, moment: Moment) -> Cause:
    """Return what hosts do in the steps in which all pause, by half of what that costs; a pause of the program else."""
    hit = list(moment.hit)
    half_ns = moment.lost_ns * len(job.steps) / len(hit) / 2
    of_causes: dict[Cause, Floats] = {kind: job.activity_ns[hit, HOST_KINDS.index(kind)] for kind in CALLS}
    of_causes["profiler"] = job.profiling_ns[hit]
    of_causes["garbage_collection"] = np.stack([zero_for_nan(job.steps[at].garbage_ns) for at in hit])
    spent = {cause: float(np.median(of_ranks, axis=1).mean()) for cause, of_ranks in of_causes.items()}
    return next((cause for cause, spent_ns in spent.items() if spent_ns >= half_ns), "periodic_pause")
