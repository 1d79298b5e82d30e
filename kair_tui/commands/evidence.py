"""`kair evidence`: logs, metrics and counters kept with a job, and what there is of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from kair.app.evidence import evidence_of, fetched, is_url, recorded_time, without_password
from kair.app.identities import identities_of
from kair.app.jobs import find_job, open_source
from kair.app.places import is_mirror
from kair.app.stores import OpenStore
from kair_engine.errors import UsageError
from kair_engine.results.evidence import AddedEvidence, EvidenceResult
from kair_tui.cli.completion import job_names
from kair_tui.cli.options import EVIDENCE, Argument
from kair_tui.cli.output import say

if TYPE_CHECKING:
    from kair_engine.trace.evidence_table import EvidenceFile
    from kair_engine.trace.measures import EvidenceSource
    from kair_engine.trace.model import Job, KairWarning

RENDERER = "kair_tui.render.evidence"
_ACTIONS: Final = ("add", "list")


def offered(typed: str) -> list[str]:
    """What may stand behind `kair evidence` and begins so: an action, or a job."""
    return [*(one for one in _ACTIONS if one.startswith(typed)), *job_names(typed)]


def run(
    session: OpenStore,
    *,
    words: Annotated[
        Sequence[str],
        Argument(
            "add JOB FILE…: keep files, folders of them, or what a Prometheus server knows, with a job of the store. "
            "list JOB, or JOB alone: what there is. Default: the job in use.",
            offers=offered,
        ),
    ] = (),
    evidence: Annotated[Sequence[str], EVIDENCE] = (),
) -> EvidenceResult:
    """Keeps what is named, and lists what there is. Raises InputError where something is missing or is no evidence."""
    action, rest = (words[0], words[1:]) if words and words[0] in _ACTIONS else ("list", words)
    if action == "add":
        return _add(session, rest, evidence)
    if len(rest) > 1:
        raise UsageError(f"kair evidence lists one job, and {rest[1]} is a second", f"kair evidence add {rest[0]} FILE")
    job = _opened(session, rest[0] if rest else None)
    found, warnings = evidence_of(job, evidence)
    return _result(job, found.sources, (*warnings, *_not_tied(job, found)))


def _add(session: OpenStore, words: Sequence[str], evidence: Sequence[str]) -> EvidenceResult:
    from kair_engine.recording.evidence_files import add_to_job, keep_in_job

    if len(words) < 2:
        raise UsageError("kair evidence add needs a job and files", "kair evidence add job123 dmesg-node-7.txt")
    if evidence:
        raise UsageError(
            "--evidence is looked at and not kept", f"kair evidence add {words[0]} {without_password(evidence[0])}"
        )
    if is_mirror(session.store.root):
        raise UsageError("stores behind URLs are written by kair coordinator alone", "name the files with --evidence")
    job = _opened(session, words[0])
    if job.stored_in is None:
        way_out = f"kair import {words[0]} --job NAME; or put the files into a folder evidence/ beside the traces"
        raise UsageError(f"{words[0]} is no job of the store: nothing can be kept with it", way_out)
    folder, hosts = Path(job.stored_in).parent, sorted(set(job.hosts.values()))
    # All is read before any of it is kept: what fails has changed nothing.
    servers = [(without_password(one), fetched(one, job)) for one in words[1:] if is_url(one)]
    files = [Path(one) for one in words[1:] if not is_url(one)]
    added, told = add_to_job(folder, files, hosts=hosts) if files else ((), [])
    added = (*added, *(keep_in_job(folder, name, content) for name, content in servers))
    found, warnings = evidence_of(job, ())
    return _result(job, found.sources, (*told, *warnings, *_not_tied(job, found)), added)


def _not_tied(job: "Job", found: "EvidenceFile") -> "list[KairWarning]":
    """Return what could not be tied to ranks, and what would tie it."""
    from kair_engine.evidence.joining import Joins
    from kair_engine.evidence.untied import untied, warnings_of

    joins = Joins(identities_of(job), job.hosts, found.devices)
    return warnings_of(untied(found, joins), joins)


def _opened(session: OpenStore, name: str | None) -> "Job":
    # Of a job that is watched evidence comes before anything is sampled.
    source = find_job(name, session.store.root, reads_history=True)
    if source.why is not None:
        say(f"kair: using job {source.name} ({source.why})")
    return open_source(source, progress=session.progress).job


def _result(
    job: "Job",
    sources: "Sequence[EvidenceSource]",
    warnings: "Sequence[KairWarning]",
    added: tuple[AddedEvidence, ...] | None = None,
) -> EvidenceResult:
    when = recorded_time(job)
    return EvidenceResult(
        name=job.name,
        action="list" if added is None else "add",
        sources=tuple(sources),
        warnings=(*job.warnings, *warnings),
        added=added or (),
        first_ns=when and when[0],
        last_ns=when and when[1],
        outside=tuple(dict.fromkeys(one.name for one in sources if when is not None and _is_outside(one, *when))),
    )


def _is_outside(source: "EvidenceSource", first_ns: int, last_ns: int) -> bool:
    """Whether a source has rows, and none of that time."""
    if source.first_ns is None or source.last_ns is None:
        return False
    return source.last_ns < first_ns or source.first_ns > last_ns
