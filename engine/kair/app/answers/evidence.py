"""Answers `evidence`: which logs, metrics and counters there are about a job."""

from collections.abc import Sequence

from kair.app.evidence import evidence_of, recorded_time
from kair.app.identities import identities_of
from kair.app.question import Given
from kair_engine.results.evidence import AddedEvidence, EvidenceResult
from kair_engine.trace.measures import EvidenceSource
from kair_engine.trace.model import Job, KairWarning


def evidence(given: Given, *, evidence: Sequence[str] = ()) -> EvidenceResult:
    """Return the evidence that is kept with the job, is next to its traces, or named. Raises InputError, UsageError."""
    return evidence_listed(given.trace.job, evidence)


def evidence_listed(
    job: Job,
    named: Sequence[str] = (),
    *,
    added: tuple[AddedEvidence, ...] | None = None,
    warnings: Sequence[KairWarning] = (),
) -> EvidenceResult:
    """Return the same, after evidence was `added` with these `warnings`."""
    from kair_engine.evidence.joining import Joins
    from kair_engine.evidence.untied import untied, warnings_of

    found, unread = evidence_of(job, named)
    joins = Joins(identities_of(job), job.hosts, found.devices)
    when = recorded_time(job)
    return EvidenceResult(
        name=job.name,
        action="list" if added is None else "add",
        sources=found.sources,
        warnings=(*job.warnings, *warnings, *unread, *warnings_of(untied(found, joins), joins)),
        added=added or (),
        first_ns=when and when[0],
        last_ns=when and when[1],
        outside=tuple(dict.fromkeys(one.name for one in found.sources if when is not None and _is_outside(one, *when))),
    )


def _is_outside(source: EvidenceSource, first_ns: int, last_ns: int) -> bool:
    """Return whether a source has rows, and none of that time."""
    if source.first_ns is None or source.last_ns is None:
        return False
    return source.last_ns < first_ns or source.first_ns > last_ns
