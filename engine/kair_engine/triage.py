"""The whole investigation: is there a straggler, which rank, which operator, why, what it costs, what to do."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kair_engine.advice import evidence, link_evidence, suggestion, summary
from kair_engine.anomalies import FEWEST_STEPS, Anomaly, stalls
from kair_engine.arrays import Ints
from kair_engine.communicators import SlowCommunicator
from kair_engine.excess import CLASSES, JobExcess, StepExcess, reduce_steps, step_excess
from kair_engine.model import Trace
from kair_engine.operations import Operations
from kair_engine.results import (
    BlameResult,
    Cause,
    Finding,
    Outlier,
    Pattern,
    RankedRank,
    TriageResult,
    Verdict,
)
from kair_engine.roles import host_of
from kair_engine.stages.blame import Tally, blame_of, tally_step
from kair_engine.stages.localize import Localization, conclude, notices, rank_scores, require_steps
from kair_engine.stages.pinpoint import pinpoint
from kair_engine.synchronisation import Synchronisation

ONE_OPERATOR_SHARE = 0.5
"""Of a rank's excess: an operator is named as the culprit when it alone makes up this much."""
MOST_STEPS = 0.75
"""A rank that stalls in more than this share of the steps is slow persistently."""
_OUTLIERS = 2000
_OPERATOR_STEPS = 5
"""Steps read again to name the operator behind an excess."""


@dataclass(frozen=True)
class Suspect:
    """Ranks that go together, the tests that speak against them, the strongest first."""

    ranks: tuple[int, ...]
    """Positions in the job's ranks."""
    anomalies: tuple[Anomaly, ...]

    @property
    def chief(self) -> Anomaly:
        """The anomaly that costs most."""
        return self.anomalies[0]


def triage(trace: Trace) -> TriageResult:
    """Runs the three stages and puts what they found together into one verdict.

    A finding needs a test of stage 1 (stages/localize.py): blame alone accuses nobody, since in every
    healthy job somebody arrives last. `slowdown` is the step time over the step time without the culprit's
    excess on the critical path. Raises UsageError where no step can be analysed.
    """
    require_steps(trace)
    tally = Tally()

    def look(ops: Operations, sync: Synchronisation, ranks: Ints, role: Ints) -> StepExcess:
        tally_step(tally, ops, sync, role[np.searchsorted(ranks, ops.ranks)])
        return step_excess(ops, sync, ranks, role)

    found = conclude(reduce_steps(trace, look))
    blamed = blame_of(trace, tally)
    step_time = _step_time_ns(trace, found.job)
    of_ranks = (_finding(trace, found, blamed, suspect) for suspect in suspects(found.anomalies))
    of_links = (_slow_link(trace, slow, step_time) for slow in found.communicators)
    findings = sorted((*of_ranks, *of_links), key=lambda finding: (-finding.time_lost_us_per_step, finding.ranks))
    warnings = tuple(dict.fromkeys((*notices(found), *blamed.warnings)))
    verdict = _verdict(found, findings)
    steps = len(trace.steps)
    return TriageResult(
        verdict=verdict,
        summary=summary(verdict, findings, found.job, warnings),
        findings=tuple(findings),
        ranking=_ranking(trace, found, blamed),
        step_time_us=step_time / 1e3,
        waiting_us_per_step=blamed.waiting_us / steps,
        unattributed_us_per_step=blamed.unattributed_us / steps,
        steps=trace.steps,
        warnings=warnings,
    )


def suspects(anomalies: Sequence[Anomaly]) -> list[Suspect]:
    """Puts anomalies of the same ranks together; a rank that belongs to a group is no suspect of its own."""
    groups = [frozenset(a.ranks) for a in anomalies if a.kind == "group"]
    of: dict[frozenset[int], list[Anomaly]] = defaultdict(list)
    for anomaly in anomalies:
        ranks = frozenset(anomaly.ranks)
        of[next((group for group in groups if ranks <= group), ranks)].append(anomaly)
    return [
        Suspect(tuple(sorted(ranks)), tuple(sorted(members, key=lambda a: -a.excess_ns)))
        for ranks, members in of.items()
    ]


def _verdict(found: Localization, findings: Sequence[Finding]) -> Verdict:
    if findings:
        return "straggler"
    untested = bool(np.isnan(found.persistence.p_value).all())
    return "inconclusive" if untested or found.undecided else "no_straggler"


def _finding(trace: Trace, found: Localization, blamed: BlameResult, suspect: Suspect) -> Finding:
    job, chief = found.job, suspect.chief
    ranks = tuple(int(job.ranks[place]) for place in suspect.ranks)
    cause = _cause(chief, blamed, ranks)
    steps = _steps(job, suspect)
    operator, edge = _operator(trace, blamed, job, ranks=ranks, cause=cause, steps=steps)
    step_time = _step_time_ns(trace, job)
    lost = min(_time_lost_ns(job, suspect), step_time)
    p_values = [a.p_value for a in suspect.anomalies if a.p_value is not None]
    pattern = _pattern(suspect, len(steps), len(job.steps))
    return Finding(
        cause=cause,
        pattern=pattern,
        ranks=ranks,
        hosts=_hosts(trace, ranks),
        operator=operator,
        edge=edge,
        steps=steps,
        p_value=min(p_values) if p_values else None,
        time_lost_us_per_step=lost / 1e3,
        slowdown=max(step_time, 1.0) / max(step_time - lost, 1.0),
        evidence=evidence(
            job, blamed, suspect.anomalies, ranks=ranks, operator=operator, step_time_ns=step_time, lost_ns=lost
        ),
        suggestion=suggestion(cause, pattern, ranks, operator),
    )


def _slow_link(trace: Trace, slow: SlowCommunicator, step_time_ns: float) -> Finding:
    """A process group that is slow by itself: its collectives' own time is on the path of all its members."""
    ranks = slow.communicator.ranks
    lost = min(slow.own_ns - slow.expected_ns, step_time_ns)
    return Finding(
        cause="communication",
        pattern="group",
        ranks=ranks,
        hosts=_hosts(trace, ranks),
        operator=slow.operator,
        edge=slow.communicator.group,
        steps=trace.steps,
        p_value=slow.p_value,
        time_lost_us_per_step=lost / 1e3,
        slowdown=max(step_time_ns, 1.0) / max(step_time_ns - lost, 1.0),
        evidence=link_evidence(slow, step_time_ns),
        suggestion=suggestion("communication", "persistent", ranks, slow.operator),
    )


def _hosts(trace: Trace, ranks: Sequence[int]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(host for rank in ranks if (host := host_of(trace.job, rank)) is not None))


def _cause(chief: Anomaly, blamed: BlameResult, ranks: Sequence[int]) -> Cause:
    """The class whose excess is largest; garbage collection where blame saw that behind the host's gaps."""
    name = CLASSES[chief.class_index]
    if name == "host":
        host = [c for c in blamed.root_causes if c.rank in ranks and c.cause in {"host", "garbage_collection"}]
        collected = sum(c.blamed_us for c in host if c.cause == "garbage_collection")
        if host and collected * 2 > sum(c.blamed_us for c in host):
            return "garbage_collection"
        return "host"
    causes: dict[str, Cause] = {"compute": "compute", "input": "input", "communication": "communication"}
    return causes[name]


def _operator(
    trace: Trace, blamed: BlameResult, job: JobExcess, *, ranks: Sequence[int], cause: Cause, steps: Sequence[int]
) -> tuple[str | None, str | None]:
    """(operator, edge): the operator behind the excess, where it is one; the edge where it is idle time."""
    if cause in {"host", "garbage_collection", "communication"}:
        mine = [c for c in blamed.root_causes if c.rank in ranks and c.cause == cause]
        # Many small delays with no operator of their own outweigh a single named one: no operator is the cause.
        if not mine or mine[0].operator is None:
            return None, None
        chief = mine[0]
        edge = f"idle before {chief.operator}" if chief.is_edge else None
        return chief.operator, edge
    looked_at = _some_of(steps)
    found: dict[str, float] = defaultdict(float)
    for outlier in pinpoint(trace.select(looked_at), rank=ranks[0], limit=_OUTLIERS).outliers:
        if _belongs(outlier, cause):
            found[outlier.operator] += max(outlier.duration_us - outlier.expected_duration_us, 0.0)
    row, place = CLASSES.index(cause), int(np.searchsorted(job.ranks, ranks[0]))
    excess = [step.by_class_ns[row, place] / 1e3 for step in job.steps if step.step in looked_at]
    name, extra = max(found.items(), key=lambda item: item[1], default=("", 0.0))
    return (name, None) if extra > ONE_OPERATOR_SHARE * float(np.nansum(excess)) > 0 else (None, None)


def _some_of(steps: Sequence[int]) -> tuple[int, ...]:
    """A few steps, spread over all."""
    chosen = np.linspace(0, len(steps) - 1, num=min(len(steps), _OPERATOR_STEPS)).round().astype(int)
    return tuple(steps[i] for i in chosen)


def _belongs(outlier: Outlier, cause: Cause) -> bool:
    return (outlier.stage == "input") == (cause == "input")


def _step_time_ns(trace: Trace, job: JobExcess) -> float:
    """The job's step: the median rank's, or the slowest's where no collective shows the others waiting for it."""
    if any(len(step.late.rank) for step in job.steps):
        return job.step_time_ns
    longest = dict.fromkeys(trace.steps, 0)
    for step, length in zip(trace.job.step_times.step, trace.job.step_times.duration_ns, strict=True):
        if step in longest:
            longest[step] = max(longest[step], length)
    return float(np.median(list(longest.values())))


def _time_lost_ns(job: JobExcess, suspect: Suspect) -> float:
    """Per step: its excess, but no more than its punctuality would have spared the others.

    Of a single rank that is how much later than the last but one it came; of several, than the median.
    """
    excess = suspect.chief.excess_ns
    arrivals = [step.late for step in job.steps]
    if not any(len(late.rank) for late in arrivals):
        return excess
    spared = sum(
        float((late.lead_ns if len(suspect.ranks) == 1 else late.lateness_ns)[np.isin(late.rank, suspect.ranks)].sum())
        for late in arrivals
    )
    return min(excess, spared / len(job.steps))


def _steps(job: JobExcess, suspect: Suspect) -> tuple[int, ...]:
    """The steps in which the suspect was slow: all, or those with an event."""
    chief = suspect.chief
    if chief.kind != "intermittent" or len(job.steps) < FEWEST_STEPS:
        return tuple(step.step for step in job.steps)
    hit = stalls(job)[:, chief.ranks[0]]
    return tuple(step.step for step, slow in zip(job.steps, hit, strict=True) if slow)


def _pattern(suspect: Suspect, slow_steps: int, all_steps: int) -> Pattern:
    if len(suspect.ranks) > 1:
        return "group"
    steady = any(anomaly.kind == "persistent" for anomaly in suspect.anomalies)
    mostly = all_steps >= FEWEST_STEPS and slow_steps > MOST_STEPS * all_steps
    return "persistent" if steady or mostly else "intermittent"


def _ranking(trace: Trace, found: Localization, blamed: BlameResult) -> tuple[RankedRank, ...]:
    steps = len(trace.steps)
    imposed = {rank.rank: rank.blamed_us / steps for rank in blamed.by_rank}
    rows = [
        RankedRank(
            rank=score.rank,
            host=score.host,
            role=score.role,
            score=score.score,
            flagged=score.flagged,
            self_time_excess_us=sum(score.excess_us.values()),
            wait_imposed_us=imposed.get(score.rank, 0.0),
        )
        for score in rank_scores(trace.job, found)
    ]
    return tuple(sorted(rows, key=lambda row: (not row.flagged, -row.score, row.rank)))
