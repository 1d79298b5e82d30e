"""Findings about more than single ranks: slow links, uneven stages, uneven batches, pauses on changing ranks.

A recording of one rank alone: where its step goes, which no peer is needed for.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from kair_engine.causes import Cause
from kair_engine.localize.excess import CLASSES
from kair_engine.localize.links import SlowLink, in_common
from kair_engine.localize.localization import Localization
from kair_engine.localize.since import numbers_of
from kair_engine.ranks import Rank, ranks_at
from kair_engine.results.evidence_kinds import Exposed, NoCore
from kair_engine.results.localize import JobPattern
from kair_engine.results.rank import PartOfStep
from kair_engine.results.triage import Finding
from kair_engine.trace.model import Job, Trace, host_of
from kair_engine.triage.evidence import before_evidence, link_evidence, pattern_evidence, role_evidence
from kair_engine.triage.findings import new_finding
from kair_engine.triage.ranks.cpu_limits import LIMIT_EVIDENCE
from kair_engine.triage.shared_costs import NOTABLE_SHARE

_OF_CLASS: Final[Mapping[str, Cause]] = {"compute": "compute", "input": "input"}
RUNQUEUE_WAIT_RATIO = 2.0
"""A rank must wait for a CPU this many times longer than its peers; below that, the shortage is the host's, not the
rank's."""


def link_findings(trace: Trace, found: Localization, step_time_ns: float) -> Iterator[Finding]:
    """Slow links, those with a rank in common together: the transfers' own time is on the path of all that use them.

    One that became slow within the recording is a finding by itself, in the steps since then.
    """
    for slow in found.links:
        if slow.since is not None:
            yield _changed_link(trace, found, slow, step_time_ns)
    yield from steady_link_findings(trace, [slow for slow in found.links if slow.since is None], step_time_ns)


def steady_link_findings(of: Trace | Job, found: Sequence[SlowLink], step_time_ns: float) -> Iterator[Finding]:
    """Links that are slower than their siblings in all steps, those with a rank in common together."""
    for ranks, links in in_common(found):
        largest = links[0]
        yield new_finding(
            of,
            cause="communication",
            pattern="persistent" if len(ranks) == 1 else "group",
            ranks=ranks,
            lost_ns=max(slow.own_ns - slow.expected_ns for slow in links),
            step_time_ns=step_time_ns,
            operator=largest.operator,
            edge=", ".join(slow.link.name for slow in links[:4]) + (", …" if len(links) > 4 else ""),
            p_value=min(slow.p_value for slow in links),
            evidence=link_evidence(links, ranks, step_time_ns),
        )


def _changed_link(trace: Trace, found: Localization, slow: SlowLink, step_time_ns: float) -> Finding:
    numbers = [step.step for step in found.job.steps]
    steps = tuple(one for one in numbers if one >= (slow.since or 0) and (slow.until is None or one <= slow.until))
    ways = (slow.link, *(link for link in slow.followers if set(link.ranks) == slow.ends))
    return new_finding(
        trace,
        cause="communication",
        pattern="group",
        ranks=tuple(sorted(slow.link.ranks)),
        lost_ns=(slow.own_ns - slow.expected_ns) * len(steps) / len(numbers),
        step_time_ns=step_time_ns,
        steps=steps,
        operator=slow.operator,
        edge=", ".join(link.name for link in ways),
        p_value=slow.p_value,
        evidence=before_evidence(slow, len(steps), len(numbers)),
        since=slow.since,
    )


def role_findings(trace: Trace, found: Localization, step_time_ns: float) -> Iterator[Finding]:
    """Ranks that are alone in their role, or all of a role, that became slower by their own work."""
    numbers = [step.step for step in found.job.steps]
    for slower in found.roles:
        change, ranks = slower.change, ranks_at(found.job.ranks, slower.positions)
        steps = numbers_of(change, numbers)
        yield new_finding(
            trace,
            cause=_OF_CLASS[CLASSES[slower.class_index]],
            pattern="persistent" if len(ranks) == 1 else "group",
            ranks=ranks,
            lost_ns=(change.since - change.before) * len(steps) / len(numbers),
            step_time_ns=step_time_ns,
            steps=steps,
            p_value=slower.p_value,
            evidence=role_evidence(found.job, slower),
            since=steps[0],
        )


def job_wide_findings(trace: Trace, patterns: Sequence[JobPattern], step_time_ns: float) -> Iterator[Finding]:
    """Yield what no rank is to blame for."""
    for pattern in patterns:
        yield new_finding(
            trace,
            cause=pattern.cause,
            seen_on=pattern.ranks,
            lost_ns=pattern.lost_us * 1e3,
            step_time_ns=step_time_ns,
            steps=pattern.steps,
            operator=pattern.operator,
            evidence=pattern_evidence(pattern, len(trace.steps), step_time_ns / 1e3),
        )


def without_shared_cores(job: Job, of_ranks: Sequence[Finding], told: Collection[Cause]) -> Iterator[Finding]:
    """Yield findings about ranks; several of one host that lack cores together are no culprits, but what the host
    shares.

    The finding is on all ranks, unless contention is `told` anyway. One whole host of several is slow by itself. If all
    were measured to lack cores, a rank that lacks a little more is no culprit, unless it is known what holds it back.
    """
    for finding in of_ranks:
        if "contention" in told and _lacks_what_all_lack(finding):
            continue
        if finding.cause != "contention" or finding.pattern != "group" or _whole_hosts(job, finding.ranks):
            yield finding
        elif finding.cause not in told:
            yield replace(finding, pattern="job_wide", ranks=(), seen_on=finding.ranks)


def without_late_ends(links: Sequence[Finding], of_ranks: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return findings about links, but those that one end explains: who lacks cores is late with transfers, too."""
    late = {finding.ranks[0] for finding in of_ranks if finding.cause == "contention" and len(finding.ranks) == 1}
    return tuple(finding for finding in links if len(late & set(finding.ranks)) != 1)


def _lacks_what_all_lack(finding: Finding) -> bool:
    """Whether peers were measured to be without a core for nearly as long."""
    if finding.shows & LIMIT_EVIDENCE:
        return False
    return finding.cause == "contention" and any(
        one.ready_us_per_step < RUNQUEUE_WAIT_RATIO * (one.peers_most_us or 0.0)
        for one in finding.evidence
        if isinstance(one, NoCore)
    )


def _whole_hosts(job: Job, ranks: Sequence[Rank]) -> bool:
    """Whether these are all ranks of the hosts that they are on; so, too, where hosts are not known."""
    hosts = {host_of(job, rank) for rank in ranks}
    return None in hosts or {rank for rank in job.ranks if host_of(job, rank) in hosts} == set(ranks)


_CAUSE = "exposed_communication"


def parts_of_step(trace: Trace) -> tuple[PartOfStep, ...]:
    """Return what the step divides into, where one rank alone was recorded; empty where there are others."""
    if len(trace.job.ranks) > 1:
        return ()
    from kair_engine.views.rank_profile import rank_profile  # few recordings need it

    return rank_profile(trace, rank=trace.job.ranks[0]).parts


def exposed(trace: Trace, parts: tuple[PartOfStep, ...], step_time_ns: float) -> Iterator[Finding]:
    """Yield that a good part of the step goes by in communication.

    Only the other ranks would show how much of that is waiting.
    """
    spent_us = sum(part.own_us for part in parts if part.part == "communication")
    share = spent_us * 1e3 / step_time_ns
    if share >= NOTABLE_SHARE[_CAUSE]:
        yield new_finding(
            trace,
            cause=_CAUSE,
            seen_on=trace.job.ranks,
            lost_ns=spent_us * 1e3,
            step_time_ns=step_time_ns,
            evidence=(Exposed(spent_us, share),),
        )


def without_stopped_waits(more: Sequence[Finding], told: Sequence[Finding], step_time_ns: float) -> Iterator[Finding]:
    """Yield the findings, without exposed communication of one rank alone that goes by while its own threads stand
    still.

    They may stand still in all of it: it is reported if what is left beyond that is still a good part of the step.
    """
    stopped_us = sum(finding.time_lost_us_per_step for finding in told if finding.cause == "contention")
    for one in more:
        left_us = one.time_lost_us_per_step - stopped_us
        if one.cause != _CAUSE or not stopped_us or left_us * 1e3 >= NOTABLE_SHARE[_CAUSE] * step_time_ns:
            yield one
