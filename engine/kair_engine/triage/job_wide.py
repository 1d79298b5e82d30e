"""Findings about more than single ranks: slow links, uneven stages, uneven batches, pauses on changing ranks."""

from collections.abc import Iterator, Sequence

from kair_engine.errors import InputError, UsageError
from kair_engine.localize.links import SlowLink, in_common
from kair_engine.localize.localization import Localization
from kair_engine.ranks import Rank
from kair_engine.results.localize import JobPattern
from kair_engine.results.triage import Finding
from kair_engine.results.whatif import HostStops
from kair_engine.trace.model import Trace
from kair_engine.trace.step_batches import operations_of_steps
from kair_engine.triage.evidence import link_evidence, pattern_evidence, stops_evidence
from kair_engine.triage.findings import new_finding
from kair_engine.whatif.models import model_of

STOPPED_SHARE = 0.05
"""Of the step: what the mean rank must stand still for, and half of the ranks."""
SAMPLE = 1_000_000
"""Operations in which stops are looked for."""


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


def contention(trace: Trace, stops: HostStops | None, step_time_ns: float) -> Iterator[Finding]:
    """Threads that stand still on all ranks now and then, though they wait for nobody."""
    if stops is None or stops.share_of_step < STOPPED_SHARE:
        return
    of_rank = sorted(stops.by_rank_us.values())
    if of_rank[len(of_rank) // 2] * 1e3 < STOPPED_SHARE * step_time_ns:
        return  # of single ranks, which their peers show
    yield new_finding(
        trace,
        cause="contention",
        seen_on=tuple(Rank(rank) for rank in stops.by_rank_us),
        lost_ns=stops.share_of_step * step_time_ns,
        step_time_ns=step_time_ns,
        evidence=stops_evidence(stops),
    )


def host_stops(trace: Trace) -> HostStops | None:
    """Of the steps that fit into a sample; None where none is seen, or the recording does not show threads."""
    rows = operations_of_steps(trace)
    steps: list[int] = []
    held = 0
    for step, of_step in rows.items():
        held += of_step
        if steps and held > SAMPLE:
            break
        steps.append(step)
    try:
        model = model_of(trace.select(steps))
        return model.host_stops() if model.fits_memory() else None
    except (InputError, UsageError):
        return None


def _named(links: Sequence[SlowLink]) -> str:
    return ", ".join(slow.link.name for slow in links[:4]) + (", …" if len(links) > 4 else "")
