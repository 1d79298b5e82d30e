"""Finds the evidence of a job: kept with it, next to its traces, or named on the command line."""

import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kair.app.jobs import sources_of
from kair.app.places import is_mirror
from kair_engine.errors import InputError, UsageError
from kair_engine.trace.model import Job, KairWarning

if TYPE_CHECKING:
    from kair_engine.trace.evidence_table import EvidenceFile

FOLDER: Final = "evidence"
_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_AROUND_NS: Final = 600_000_000_000
"""That a server is asked for before the job's first step and after its last one."""
_EVERY_S: Final = 15
"""Between the values that a server is asked for, which is how most are scraped; longer where they would be too many."""
_MOST_VALUES: Final = 10_000
"""Of one thing; Prometheus answers up to 11,000."""


def has_evidence(job: Job, named: Sequence[str]) -> bool:
    """Return whether there may be evidence; without any, triage does not load the readers."""
    return bool(named) or _by_itself(job).is_dir()


def evidence_of(job: Job, named: Sequence[str]) -> "tuple[EvidenceFile, tuple[KairWarning, ...]]":
    """Return all evidence of a job in order of time: stored with it, next to its traces, or named.

    Telemetry is read for the job's time alone, if that is known; the sources state which times they cover.
    Raises InputError if something named is missing, not evidence, or a server that does not answer; UsageError for a
    URL of another kind. Other damaged files are left out with a warning.
    """
    if not all(place.strip() for place in named):
        raise UsageError("--evidence names nothing", "leave it out, or name a file, a folder or a URL")
    from kair.app.step_history import time_of_job
    from kair_engine.recording.evidence_files import read_evidence_of, stored_evidence
    from kair_engine.trace.evidence_table import together

    folder, when = _by_itself(job), time_of_job(job)
    stored, warnings = (together(()), []) if job.stored_in is None else stored_evidence(folder.parent, when=when)
    paths = [Path(place) for place in named if not is_url(place)]
    read, told = read_evidence_of(
        paths, hosts=sorted(set(job.hosts.values())), beside=folder if job.stored_in is None else None, when=when
    )
    servers = [fetched(place, job) for place in named if is_url(place)]
    return together([stored, read, *servers]), (*warnings, *told)


def is_url(place: str) -> bool:
    """Return whether the name is a server's rather than a file's."""
    return _URL.match(place) is not None


def without_password(url: str) -> str:
    """Return the URL without a user name and a password."""
    return re.sub(r"(?<=://)[^/]*@", "", url)


def recorded_time(job: Job) -> tuple[int, int] | None:
    """Return when the job's first recorded step began and its last one ended, Unix ns; None if unknown."""
    of = job.step_times
    if not job.absolute_time or not of.begin_ns:
        return None
    return min(of.begin_ns), max(begin + took for begin, took in zip(of.begin_ns, of.duration_ns, strict=True))


def fetched(url: str, job: Job) -> "EvidenceFile":
    """Return a Prometheus server's readings of the recording's time, and of ten minutes before and after.

    Raises InputError if the server does not answer, or the recording has no date; UsageError for a URL that is not
    http.
    """
    shown = without_password(url)
    if not url.lower().startswith(("http://", "https://")):
        raise UsageError(f"{shown} is no server that can be asked: http:// or https://", "give files by their paths")
    when = recorded_time(job)
    if when is None:
        text = f"the recording of {job.name} does not say at what time it ran: {shown} cannot be asked about it"
        raise InputError(text, "save the metrics of that time to a file, and name that")
    from kair_engine.readers.evidence.prometheus_api import fetch

    begin, end = when[0] - _AROUND_NS, when[1] + _AROUND_NS
    every = max(_EVERY_S, math.ceil((end - begin) / 1e9 / _MOST_VALUES))
    return fetch(url, begin, end, every, sorted(set(job.hosts.values())))


def folder_of(job: Job) -> Path:
    """Return the folder whose evidence is read without being named; it need not exist."""
    if job.stored_in is not None:
        return Path(job.stored_in).parent / FOLDER
    source = sources_of(job)[0]
    # A list of files can be longer than any path, which Path.is_dir does not bear.
    return (Path(source) if os.path.isdir(source) else Path(source).parent) / FOLDER  # noqa: PTH112


def _by_itself(job: Job) -> Path:
    """Return the same; of a store behind a URL it is brought up to date."""
    folder = folder_of(job)
    if job.stored_in is not None and is_mirror(folder.parent.parent):
        from kair_engine.store.remote import fetch_evidence

        fetch_evidence(folder.parent.parent, folder.parent.name)
    return folder
