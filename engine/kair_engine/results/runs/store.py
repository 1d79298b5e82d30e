"""Answers about what is kept: the store's jobs, the one in use, an import; the cache."""

from dataclasses import dataclass

from kair_engine.causes import Cause
from kair_engine.results.triage import Verdict
from kair_engine.trace.model import KairWarning


@dataclass(frozen=True)
class ListedJob:
    """One job of the store."""

    name: str
    in_use: bool
    imported_at: str
    """UTC, ISO 8601."""
    source: str
    world_size: int
    ranks: int
    steps: int
    operations: int
    path: str
    last_verdict: Verdict | None
    """Of the last triage of all its steps; null before the first."""
    last_summary: str | None
    triaged_at: str | None
    """UTC, ISO 8601."""
    slowdown: float | None = None
    """S, of all its steps; null, as the four below, before `kair jobs --whatif` or `kair fleet`."""
    waste: float | None = None
    """1 - 1/S."""
    gpu_hours_per_day: float | None = None
    """Of all devices of the job, what is wasted."""
    cost_per_day: float | None = None
    """In the currency of what a GPU hour costs; null where that was not given."""
    cause: Cause | None = None
    """Of the finding that costs most; null too where nothing was found."""


@dataclass(frozen=True)
class JobsResult:
    """The store's jobs, by name."""

    store: str
    current: str | None
    """The job that commands take when none is named, where one was chosen."""
    jobs: tuple[ListedJob, ...]
    warnings: tuple[KairWarning, ...]
    """About jobs that are damaged and left out."""
    removed: tuple[str, ...] = ()
    """Jobs that were removed just now."""


@dataclass(frozen=True)
class UseResult:
    """The job that is in use now."""

    store: str
    name: str


@dataclass(frozen=True)
class ImportResult:
    """The job as it lies in the store."""

    store: str
    name: str
    source: str
    world_size: int
    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    operations: int
    warnings: tuple[KairWarning, ...]


@dataclass(frozen=True)
class CacheResult:
    """The cache of parsed traces."""

    folder: str
    """Where it is."""
    entries: int
    """Trace files that need not be parsed again."""
    bytes: int
    """What they take."""
    limit_bytes: int
    """Beyond this, what was not used for longest goes."""
    removed_entries: int
    """By this command."""
    removed_bytes: int
    """What those took."""
    warnings: tuple[KairWarning, ...] = ()
