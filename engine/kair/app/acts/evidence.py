"""Keep logs, metrics and counters with a job of the store."""

from collections.abc import Sequence
from pathlib import Path

from kair.app.answers.evidence import evidence_listed
from kair.app.evidence import FOLDER, fetched, is_url, without_password
from kair.app.jobs import locate, open_source
from kair.app.places import is_mirror
from kair.app.stores import OpenStore
from kair_engine.errors import InputError, UsageError
from kair_engine.recording.evidence_files import add_to_job, keep_in_job
from kair_engine.results.evidence import EvidenceResult
from kair_engine.trace.model import Job, KairWarning, short_warning


def add_evidence(store: OpenStore, name: str, places: Sequence[str]) -> EvidenceResult:
    """Copy files, folders or a server's readings to a job of the store, and list all of its evidence.

    Raises UsageError for an unknown job, InputError for a source that is missing or not evidence.
    """
    if is_mirror(store.root):
        raise UsageError("stores behind URLs are written by kair coordinator alone", "name the files with --evidence")
    # Of a job that is watched evidence comes before anything is sampled.
    job = open_source(locate(name, store.root), progress=store.progress).job
    if job.stored_in is None:
        way_out = f"kair import {name} --job NAME; or put the files into a folder evidence/ next to the traces"
        raise UsageError(f"{name} is no job of the store: nothing can be kept with it", way_out)
    folder, hosts = Path(job.stored_in).parent, sorted(set(job.hosts.values()))
    # All is read before any of it is kept: what fails has changed nothing.
    servers = [(without_password(one), fetched(one, job)) for one in places if is_url(one)]
    files = [Path(one) for one in places if not is_url(one)]
    added, told = add_to_job(folder, files, hosts=hosts) if files else ((), [])
    added = (*added, *(keep_in_job(folder, name, content) for name, content in servers))
    return evidence_listed(job, added=added, warnings=told)


def keep_evidence_beside(sources: Sequence[Path], folder: Path, job: Job) -> Sequence[KairWarning]:
    """Keep the folder `evidence/` next to the traces with the job; a damaged file does not fail the import."""
    beside = [
        place for source in sources if (place := (source if source.is_dir() else source.parent) / FOLDER).is_dir()
    ]
    if not beside:
        return ()
    try:
        return add_to_job(folder, list(dict.fromkeys(beside)), hosts=sorted(set(job.hosts.values())))[1]
    except InputError as error:
        return (short_warning("unreadable_file", f"the evidence next to the traces is left out: {error}"),)
