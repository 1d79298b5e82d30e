"""Findings about more than single ranks: slow links, uneven stages, uneven batches, pauses on changing ranks."""

from collections.abc import Iterator, Sequence

from kair_engine.localize.links import SlowLink, in_common
from kair_engine.localize.localization import Localization
from kair_engine.results.localize import JobPattern
from kair_engine.results.triage import Finding
from kair_engine.trace.model import Trace
from kair_engine.triage.evidence import link_evidence, pattern_evidence
from kair_engine.triage.findings import new_finding


def link_findings(trace: Trace, found: Localization, step_time_ns: float) -> Iterator[Finding]:
    """Slow links, those with a rank in common together: the transfers' own time is on the path of all that use them."""
    for ranks, links in in_common(found.links):
        largest = links[0]
        yield new_finding(
            trace,
            cause="communication",
            pattern="persistent" if len(ranks) == 1 else "group",
            ranks=ranks,
            lost_ns=max(slow.own_ns - slow.expected_ns for slow in links),
            step_time_ns=step_time_ns,
            operator=largest.operator,
            edge=_named(links),
            p_value=min(slow.p_value for slow in links),
            evidence=link_evidence(links, ranks, step_time_ns),
        )


def job_wide_findings(trace: Trace, patterns: Sequence[JobPattern], step_time_ns: float) -> Iterator[Finding]:
    """What no rank is to blame for."""
    for pattern in patterns:
        yield new_finding(
            trace,
            cause=pattern.cause,
            seen_on=pattern.ranks,
            lost_ns=pattern.lost_us * 1e3,
            step_time_ns=step_time_ns,
            steps=pattern.steps,
            evidence=pattern_evidence(pattern, len(trace.steps), step_time_ns / 1e3),
        )


def _named(links: Sequence[SlowLink]) -> str:
    return ", ".join(slow.link.name for slow in links[:4]) + (", …" if len(links) > 4 else "")
