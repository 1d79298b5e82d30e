"""Computes the fingerprint by which a reader of an answer recognises its recording."""

from dataclasses import replace

from kair.app.evidence import recorded_time
from kair_engine.results.ticket import Fingerprint
from kair_engine.results.triage import TriageResult
from kair_engine.trace.digest import recording_digest
from kair_engine.trace.model import Trace


def fingerprint(trace: Trace, triaged: TriageResult, version: str) -> Fingerprint:
    """Return the fingerprint of the analysed steps, with the `version` of Kair."""
    job = trace.job
    if job.is_recorded_only:
        from kair.app.step_history import step_times_of

        job = replace(job, step_times=step_times_of(job))
    begin_ns, end_ns = recorded_time(job) or (None, None)
    return Fingerprint(
        job=job.name,
        recording=job.source,
        digest=recording_digest(job),
        kair=version,
        ranks=job.ranks,
        world_size=job.world_size,
        steps=trace.steps,
        begin_ns=begin_ns,
        end_ns=end_ns,
        sources=tuple(one.name for one in triaged.sources),
    )
