"""From anomalies to findings: whose they are, their cause, operator and evidence; the price is pricing.py's."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple

import numpy as np

from kair_engine.arrays import Floats, zero_for_nan
from kair_engine.causes import CAUSES, Cause
from kair_engine.frozen import dataclass
from kair_engine.localize.anomalies import FEWEST_STEPS, NO_TEST, Anomaly
from kair_engine.localize.batch_shares import batch_share
from kair_engine.localize.compared import Compared
from kair_engine.localize.excess import CLASSES, JobExcess
from kair_engine.localize.localization import Localization, step_time_ns
from kair_engine.ranks import Position, Rank, ranks_at
from kair_engine.results.blame import STEP_END, BlameResult
from kair_engine.results.evidence_kinds import Evidence, SampleTime
from kair_engine.results.triage import Finding, Pattern
from kair_engine.results.whatif import HostStops
from kair_engine.stats import median
from kair_engine.step_bar import StepPartsTally
from kair_engine.timeline.host_time import ProcessorTimes
from kair_engine.trace.model import Job, Trace, hosts_of
from kair_engine.triage.evidence import at_step_end_evidence, file_evidence, rank_evidence, since_evidence
from kair_engine.triage.ranks.causes import diagnose, one_operator
from kair_engine.triage.ranks.cpu_limits import CpuLimit, cpu_limit_evidence, is_stopped, oversubscribed_evidence
from kair_engine.triage.ranks.diagnosis import MOST_STEPS, Diagnosis
from kair_engine.triage.ranks.kernel_times import asleep_evidence
from kair_engine.triage.ranks.suspects import Suspect
from kair_engine.triage.ranks.within_rank import slower_throughout
from kair_engine.triage.ranks.work_reasons import OF_LARGER_BATCHES


@dataclass(frozen=True)
class KernelEvidence:
    """What is known about ranks besides what a trace shows."""

    processor: ProcessorTimes | None
    """What the kernel measured of their threads."""
    counted: ProcessorTimes | None
    """The same, also if nothing shows what they computed."""
    held: Mapping[Position, Sequence[CpuLimit]]
    """What holds them back."""
    given: Floats | None
    """(steps × ranks): bytes that they gave their models in a step, NaN where that was not recorded."""
    samples: Floats | None
    """The same: samples that they took, as the job says."""
    networks: tuple[Finding, ...] = ()
    """About hosts whose network is slow, or that of all."""


def rank_finding(
    trace: Trace,
    found: Localization,
    blamed: BlameResult,
    suspect: Suspect,
    *,
    stops: HostStops | None,
    parts: StepPartsTally,
    measured: KernelEvidence,
    accused: Collection[Position] = (),
) -> Finding:
    """Return the finding about a suspect: its largest class of excess shows the cause.

    `stops` are those of all threads, `parts` are the accounts of steps, `measured` is what is known about ranks besides
    what the trace shows; the `accused` ranks are no peers of the suspect.
    """
    job, largest = found.job, suspect.largest
    ranks = ranks_at(job.ranks, suspect.positions)
    of_host = CLASSES[largest.class_index] == "host"
    held = {place: measured.held[place] for place in suspect.positions if place in measured.held}
    diagnosis = diagnose(
        job,
        blamed,
        stops,
        largest,
        parts,
        measured.processor,
        is_stopped=is_stopped(held.values()),
        given=measured.given,
        accused=accused,
        recorded=trace.job,
    )
    throughout = _throughout(job, largest, diagnosis, accused)
    # What is slower in every kernel is reported once, and not for each.
    in_all = [one for one in suspect.anomalies if one.operator is None]
    against = in_all if throughout and in_all else suspect.anomalies
    share = batch_share(job, measured.samples, largest)
    if share is not None and share.is_larger and {one.kind for one in diagnosis.evidence} & OF_LARGER_BATCHES:
        diagnosis = Diagnosis("compute")  # it does not take so much longer for the extra work that the job gave it
    cause, steps = diagnosis.cause, _steps(job, suspect)
    if diagnosis.operator or (of_host and CAUSES[cause].time_class != "host"):
        operator, edge = diagnosis.operator, None
    else:
        operator, edge = _operator(blamed, job, ranks, cause)
    step_time = step_time_ns(trace, job)
    p_value = min(anomaly.p_value for anomaly in suspect.anomalies)
    return new_finding(
        trace,
        cause=cause,
        ranks=ranks,
        lost_ns=_time_lost_ns(job, suspect),
        step_time_ns=step_time,
        evidence=(
            *throughout,
            *rank_evidence(found, blamed, against, ranks=ranks, operator=operator, step_time_ns=step_time),
            *(one for one in diagnosis.evidence if one not in throughout),
            *(() if share is None else (SampleTime(*astuple(share), ranks=ranks),)),
            *asleep_evidence(Compared(job, largest), measured.processor),
            *cpu_limit_evidence(job, held, suspect.positions),
            *(oversubscribed_evidence(trace.job, ranks) if diagnosis.cause == "contention" else ()),
            *(at_step_end_evidence(job, parts, largest) if of_host else ()),
            *since_evidence(job, largest),
        ),
        pattern=_pattern(suspect, len(steps), len(job.steps)),
        steps=steps,
        operator=operator,
        edge=edge,
        p_value=p_value if p_value < NO_TEST else None,
        since=largest.since,
    )


def _throughout(
    job: JobExcess, largest: Anomaly, diagnosis: Diagnosis, accused: Collection[Position]
) -> tuple[Evidence, ...]:
    """Return that devices are slower in all that they run, where their ranks compute longer and nothing else explains
    it.
    """
    if diagnosis.cause == "device_model":
        return diagnosis.evidence
    in_part = any(one.kind in {"one_family", "one_kernel"} for one in diagnosis.evidence)
    if diagnosis.cause != "compute" or diagnosis.operator is not None or in_part:
        return ()
    found = slower_throughout(Compared(job, largest), accused)
    return () if found is None else found.evidence


def new_finding(
    of: Trace | Job,
    *,
    cause: Cause,
    ranks: tuple[Rank, ...] = (),
    seen_on: tuple[Rank, ...] = (),
    lost_ns: float,
    step_time_ns: float,
    evidence: tuple[Evidence, ...],
    pattern: Pattern = "job_wide",
    steps: tuple[int, ...] | None = None,
    operator: str | None = None,
    edge: str | None = None,
    p_value: float | None = None,
    since: int | None = None,
) -> Finding:
    """Return a finding that costs `lost_ns` a step by its excess; what it costs by a replay is pricing.py's."""
    job = of.job if isinstance(of, Trace) else of
    lost = min(lost_ns, step_time_ns)
    return Finding(
        cause=cause,
        pattern=pattern,
        ranks=ranks,
        seen_on=seen_on,
        hosts=hosts_of(job, ranks or seen_on),
        operator=operator,
        edge=edge,
        steps=of.steps if steps is None else steps,
        p_value=p_value,
        since=since,
        time_lost_us_per_step=lost / 1e3,
        slowdown=max(step_time_ns, 1.0) / max(step_time_ns - lost, 1.0),
        evidence=(*evidence, *file_evidence(job, ranks)),
    )


def _operator(
    blamed: BlameResult, job: JobExcess, ranks: Sequence[Rank], cause: Cause
) -> tuple[str | None, str | None]:
    """(operator, edge): the operator behind the excess, where it is one; the edge where it is idle time."""
    if CAUSES[cause].operator_from_blame:
        called = CAUSES[cause].seen_by_blame_as or cause
        mine = [c for c in blamed.root_causes if c.rank in ranks and c.cause == called]
        # Many small delays with no operator of their own outweigh a single named one: no operator is the cause.
        if not mine or mine[0].operator is None:
            return None, None
        largest = mine[0]
        if largest.operator == STEP_END:
            return None, "idle at the end of the step before"
        edge = f"idle before {largest.operator}" if largest.is_edge else None
        return largest.operator, edge
    return one_operator(job, int(np.searchsorted(job.ranks, ranks[0])), cause), None


def _time_lost_ns(job: JobExcess, suspect: Suspect) -> float:
    """Return an estimate, per step: its excess, but no more than its punctuality would have spared the others.

    For a single rank that is how much later than the last but one it came; for several, than the median. If it is
    unknown who waits for whom, it is 0 if ranks of another role have more to do in every step anyway.
    """
    excess = suspect.largest.excess_ns
    if not job.shows_waiting and suspect.largest.kind != "intermittent" and _is_hidden(job, suspect):
        return 0.0
    arrivals = [step.late for step in job.steps]
    half_the_role = 2 * len(suspect.positions) >= np.count_nonzero(job.role == job.role[suspect.positions[0]])
    if half_the_role or not job.shows_waiting or not any(len(late.rank) for late in arrivals):
        return excess
    alone = len(suspect.positions) == 1
    spared = sum(
        float((late.lead_ns if alone else late.lateness_ns)[np.isin(late.rank, suspect.positions)].sum())
        for late in arrivals
    )
    return min(excess, spared / len(job.steps))


def _is_hidden(job: JobExcess, suspect: Suspect) -> bool:
    """Whether ranks of another role spend longer on their own work in a step than any of the suspect's."""
    since = suspect.largest.since
    later = [step.work_ns for step in job.steps if since is None or step.step >= since]
    own = np.delete(median(zero_for_nan(np.stack(later)), axis=0), CLASSES.index("communication"), axis=0).sum(axis=0)
    others = job.role != job.role[suspect.positions[0]]
    return bool(own[list(suspect.positions)].max() < own[others].max(initial=0.0))


def _steps(job: JobExcess, suspect: Suspect) -> tuple[int, ...]:
    """Return the steps in which the suspect was slow: all, or those with an event."""
    largest = suspect.largest
    if largest.kind != "intermittent" or len(job.steps) < FEWEST_STEPS:
        return tuple(step.step for step in job.steps if largest.since is None or step.step >= largest.since)
    return tuple(job.steps[at].step for at in largest.hit)


def _pattern(suspect: Suspect, slow_steps: int, all_steps: int) -> Pattern:
    if len(suspect.positions) > 1:
        return "group"
    steady = any(anomaly.kind == "persistent" for anomaly in suspect.anomalies)
    mostly = all_steps >= FEWEST_STEPS and slow_steps > MOST_STEPS * all_steps
    return "persistent" if steady or mostly else "intermittent"
