"""Stage 1: which rank behaves differently from its peers."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from kair_engine.errors import UsageError
from kair_engine.localize.anomalies import FEWEST_STEPS, Anomaly
from kair_engine.localize.batch_shares import without_larger_shares, without_new_sizes
from kair_engine.localize.excess import CLASSES, JobExcess, job_excess
from kair_engine.localize.grouping import grouped
from kair_engine.localize.large_delays import large_delays
from kair_engine.localize.link_changes import Differing
from kair_engine.localize.localization import Localization, conclude, job_patterns, step_time_ns, steps_needed
from kair_engine.localize.unnamed_collectives import unnamed_collective_warnings, with_unnamed_collectives
from kair_engine.ranks import Rank, rank_at
from kair_engine.results import Method, StepClock
from kair_engine.results.localize import (
    GroupBy,
    LinkScore,
    LocalizeResult,
    OperatorScore,
    RankScore,
)
from kair_engine.results.warning_kinds import GroupsDiffer, SlowMoment, TooFewSteps
from kair_engine.timeline.collectives import match_warnings
from kair_engine.timeline.coverage import NOT_COMPARED, coverage
from kair_engine.timeline.inputs import samples_of
from kair_engine.trace.model import Job, KairWarning, Trace, host_of, require_steps


def localize(
    trace: Trace,
    *,
    method: Method = "robust",
    whole_run: bool = False,
    normalized: bool = False,
    by: GroupBy = "rank",
    matrix: bool = False,
    clock: StepClock = "rank",
) -> LocalizeResult:
    """Scores every rank, the highest first.

    `paper` is the pairwise Kolmogorov–Smirnov distance of [K] (localize/paper.py); `robust` compares
    the time each rank spends on its own work with its role's. `whole_run`, `normalized`, `matrix` and the `clock` job
    belong to the paper's method. Raises UsageError for them with the other one, or where no step can be analysed.
    """
    require_steps(trace)
    if method == "paper":
        from kair_engine.localize.paper import localize_paper  # loads scipy

        return localize_paper(trace, whole_run=whole_run, normalized=normalized, by=by, matrix=matrix, clock=clock)
    if whole_run or normalized or matrix or clock == "job":
        raise UsageError("whole_run, normalized, matrix and the job's clock belong to the paper's method")
    trace, of_changes = without_new_sizes(trace)
    found = conclude(job_excess(trace), of=trace.job)
    if (marked := with_unnamed_collectives(trace, found)) is not None:
        return localize(marked, by=by)
    steps = np.array([step.step for step in found.job.steps])
    found, of_shares = without_larger_shares(found, samples_of(trace, steps, found.job.ranks))
    limits = (*of_changes, *of_shares, *warnings_of(found), *unnamed_collective_warnings(trace))
    uncompared = {rank for warning in limits if warning.code in NOT_COMPARED for rank in warning.ranks}
    scores = tuple(replace(row, compared=row.rank not in uncompared) for row in rank_scores(trace.job, found))
    return LocalizeResult(
        method="robust",
        scores=scores,
        groups=grouped(scores, by),
        slow_links=tuple(
            LinkScore(
                group=slow.link.name,
                ranks=slow.link.ranks,
                operator=slow.operator,
                own_us=slow.own_ns / 1e3,
                expected_us=slow.expected_ns / 1e3,
                siblings=slow.siblings,
                p_value=slow.p_value,
            )
            for slow in found.links
        ),
        patterns=tuple(sorted(job_patterns(found), key=lambda pattern: -pattern.lost_us)),
        matrix=None,
        steps=trace.steps,
        warnings=limits,
        slow_operators=tuple(_slow_operators(found)),
        step_time_us=step_time_ns(trace, found.job) / 1e3,
    )


def rank_scores(job: Job, found: Localization) -> tuple[RankScore, ...]:
    """One score per rank: its largest t over the classes. Flagged ranks first, then those the recording leaves open."""
    ranks, best = found.job.ranks, found.detections.t
    p_value = found.detections.p_value
    flagged, delays = np.zeros(len(ranks), dtype=bool), large_delays(found.job)
    for anomaly in found.anomalies:
        for rank in anomaly.positions:
            flagged[rank] = True
            delays[rank] = max(delays[rank], anomaly.events[0])
    for role in found.roles:
        flagged[list(role.positions)] = True
    suspected = {rank for anomaly in found.undecided for rank in anomaly.positions}
    suspected |= {rank for event in found.events for rank in event.positions}
    order = sorted(range(len(ranks)), key=lambda i: (not flagged[i], i not in suspected, -best[i], i))
    return tuple(
        RankScore(
            rank=Rank(int(ranks[i])),
            host=host_of(job, int(ranks[i])),
            role=found.job.role_of[int(ranks[i])].name,
            score=float(best[i]),
            p_value=float(p_value[i]) if np.isfinite(p_value[i]) else None,
            flagged=bool(flagged[i]),
            excess_us={name: float(found.mean_ns[row, i]) / 1e3 for row, name in enumerate(CLASSES)},
            large_delays=int(delays[i]),
        )
        for i in order
    )


def _slow_operators(found: Localization) -> Iterator[OperatorScore]:
    for anomaly in sorted(found.anomalies, key=lambda one: -one.excess_ns):
        if anomaly.operator is not None:
            rank = rank_at(found.job.ranks, anomaly.positions[0])
            yield OperatorScore(rank, anomaly.operator, anomaly.excess_ns / 1e3, anomaly.p_value)


def warnings_of(found: Localization) -> tuple[KairWarning, ...]:
    """Return what limits the answer: too few peers or steps, no collectives, collectives that do not fit."""
    job = found.job
    moments: list[KairWarning] = [_slow_moment(job, anomaly) for anomaly in found.undecided[:1]]
    result = moments or list(_too_few_steps(job))
    if job.recorded is not None and len(job.ranks) > 1:
        result += coverage(job.ranks, job.role, job.recorded)
    if found.differing is not None:
        result.append(_groups_differ(found.differing, job))
    roles, sizes = np.unique(job.role, return_counts=True)
    if len(job.ranks) == 1:
        result.append(KairWarning("one_rank", "one rank only: there is no peer to compare it with"))
    elif sizes.min() <= 2:
        of_role = Counter(job.role_of.values())
        few = sorted({role.name for role, size in of_role.items() if size <= 2})
        named = ", ".join(few[:3]) + (", …" if len(few) > 3 else "")
        result.append(KairWarning("few_peers", f"too few peers in a role for a test within it ({named})"))
    elif len(roles) == 1 and len(job.ranks) < 4:
        result.append(
            KairWarning("few_peers", f"{len(job.ranks)} ranks: a slow one can hardly be separated from chance")
        )
    collectives = sum(step.collectives for step in job.steps)
    rejected = sum(step.rejected_collectives for step in job.steps)
    if len(job.ranks) > 1:
        result += match_warnings(collectives, rejected)
    return tuple(result)


def _too_few_steps(job: JobExcess) -> Iterator[KairWarning]:
    needed = steps_needed(job)
    if needed is not None and len(job.steps) < needed:
        peers = int(np.bincount(job.role).max())
        yield TooFewSteps(steps=len(job.steps), fewest_steps=needed, peers=peers)


def _slow_moment(job: JobExcess, anomaly: Anomaly) -> KairWarning:
    return SlowMoment(
        share_of_step=anomaly.excess_ns / job.step_time_ns,
        steps=len(job.steps),
        fewest_steps=FEWEST_STEPS,
        ranks=(rank_at(job.ranks, anomaly.positions[0]),),
        about=CLASSES[anomaly.class_index],
    )


def _groups_differ(found: Differing, job: JobExcess) -> KairWarning:
    return GroupsDiffer(
        own_us=found.own_ns / 1e3,
        other_us=found.other_ns / 1e3,
        links=1 + len(found.others),
        share_of_step=(found.own_ns - found.other_ns) / job.step_time_ns,
        ranks=found.slow.ranks,
        about=found.slow.name,
    )
