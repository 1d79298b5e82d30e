"""Explains a verdict by telemetry, logs and identities that are kept with the job, next to it, or named."""

from collections.abc import Sequence
from dataclasses import replace

from kair.app.evidence import evidence_of, has_evidence
from kair_engine.results.triage import TriageResult
from kair_engine.trace.model import Trace


def with_evidence(trace: Trace, found: TriageResult, named: Sequence[str]) -> TriageResult:
    """Return the verdict with its explanations. Raises InputError if named evidence cannot be read."""
    if not has_evidence(trace.job, named):
        return found
    from kair.app.identities import identities_of
    from kair.app.step_history import course_of_job
    from kair_engine.evidence.case import Known
    from kair_engine.evidence.deciding import with_explanations
    from kair_engine.evidence.happenings import happenings, onsets_of
    from kair_engine.evidence.joining import Joins
    from kair_engine.evidence.untied import doubts_of, measures_untied, untied, warnings_of
    from kair_engine.recording.evidence_files import with_ranks_of_job
    from kair_engine.trace.xids import XIDS

    evidence, warnings = evidence_of(trace.job, named)
    identities = identities_of(trace.job)
    joins = Joins(identities, trace.job.hosts, evidence.devices)
    lacking = untied(evidence, joins)
    warnings = (*warnings, *doubts_of(evidence.sources), *warnings_of(lacking, joins))
    found = replace(found, sources=evidence.sources, warnings=(*found.warnings, *warnings))
    hides_waiting = any(one.kind == "unseen_waiting" for one in found.open)
    course = course_of_job(trace.job, hides_waiting=hides_waiting)
    if course is None or not found.findings or not evidence.sources:
        return found
    evidence = with_ranks_of_job(evidence, trace.job.world_size)
    downstream = [code for code, one in XIDS.items() if one.is_downstream]
    near = happenings(found.findings, evidence, joins, onsets_of(found.findings, course), downstream)
    found = replace(found, happenings=near)
    known = Known(evidence, joins, course, identities, trace.job.has_device, measures_untied(lacking))
    return with_explanations(found, known)
