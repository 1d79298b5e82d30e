"""Answers about what is kept: the store's jobs, the one in use, an import; the cache.

What stragglers cost each job of a store, and how that is spread over all of them.
"""

from dataclasses import dataclass
from typing import Final, Literal

from kair_engine.causes import CAUSES, Cause
from kair_engine.ranks import Rank
from kair_engine.results.ledger import LedgerSummary
from kair_engine.results.step_bar import StepBar
from kair_engine.results.triage import DeviceRecord, Verdict
from kair_engine.trace.model import KairWarning

SLOWED: Final = 1.1
"""A job is slow if its step takes so many times what it takes without all that triage found, or more [W]."""


@dataclass(frozen=True)
class ListedJob:
    """One job of the store."""

    name: str
    """Of the job."""
    in_use: bool
    """Whether commands take it when no job is named."""
    imported_at: str
    """UTC, ISO 8601."""
    source: str
    """The path that it was read from."""
    world_size: int
    """Ranks of the job, whether or not they left a trace."""
    ranks: int
    """How many left a trace."""
    steps: int
    """How many were recorded."""
    operations: int
    """How many were recorded."""
    path: str
    """Where the store keeps it."""
    last_verdict: Verdict | None
    """Of the last triage of all its steps; null before the first."""
    last_summary: str | None
    """The same as a sentence."""
    triaged_at: str | None
    """UTC, ISO 8601."""
    slowdown: float | None = None
    """S, of all its steps; null, as the five below, before `kair jobs --whatif` or `kair fleet`."""
    waste: float | None = None
    """Of the job's time, what undoing all findings together saves; 0 where nothing was found; null where that is
    unknown, as the job hangs or its verdict is open."""
    gpu_hours_per_day: float | None = None
    """The same in hours of all devices of the job."""
    cost_per_day: float | None = None
    """In the currency of what a GPU hour costs; null where that was not given."""
    currency: str | None = None
    """Of `cost_per_day`, such as `USD`; null where none was given."""
    cause: Cause | None = None
    """Of the finding that costs most; null too where nothing was found."""
    bar: StepBar | None = None
    """Where its steps go, of all ranks together; null too where no times are recorded."""


@dataclass(frozen=True)
class JobsResult:
    """The store's jobs, by name."""

    store: str
    """The folder of the job store."""
    current: str | None
    """The job that commands take when none is named, where one was chosen."""
    jobs: tuple[ListedJob, ...]
    """By name."""
    warnings: tuple[KairWarning, ...]
    """About jobs that are damaged and left out."""
    removed: tuple[str, ...] = ()
    """Jobs that were removed just now."""


@dataclass(frozen=True)
class UseResult:
    """The job that is in use now."""

    store: str
    """The folder of the job store."""
    name: str
    """Of the job."""


@dataclass(frozen=True)
class ImportResult:
    """The job as it lies in the store."""

    store: str
    """The folder of the job store."""
    name: str
    """Of the job."""
    source: str
    """The path that it was read from."""
    world_size: int
    """Ranks of the job, whether or not they left a trace."""
    ranks: tuple[int, ...]
    """Their numbers, sorted."""
    steps: tuple[int, ...]
    """That were recorded."""
    operations: int
    """How many were recorded."""
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


@dataclass(frozen=True, kw_only=True)
class StragglerCost:
    """What stragglers cost one job, all its steps taken together."""

    verdict: Verdict
    """Of the triage."""
    cause: Cause | None
    """Of the finding that costs most, of a hang where nothing else was found; None without a finding."""
    accused_ranks: tuple[Rank, ...]
    """Of all findings; empty where nobody is to blame."""
    accused_hosts: tuple[str, ...]
    """Where those ranks run, as far as that was recorded."""
    job_hosts: tuple[str, ...]
    """All of the job."""
    slowdown: float | None
    """S: step time over the step time without any straggler [W]; None where the job cannot be replayed."""
    waste: float
    """Of the job's time, what undoing all findings together saves; 0 where nothing was found."""
    gpu_hours_per_day: float
    """The same in hours of all devices of the job."""
    recorded_at: str | None
    """When its first step began, UTC, ISO 8601; None if the recording's clock does not show it."""
    bar: StepBar | None = None
    """Where its steps go, of all ranks together; null where no times are recorded."""
    simulation_error: float | None = None
    """Of the mean step: replayed without any delay, against measured [W]; None where the job cannot be replayed."""
    hangs: bool = False
    """Whether the job stood still or lost a rank: what that costs is unknown, and no part of `waste`."""

    @property
    def is_priced(self) -> bool:
        """Whether `waste` is known: the job does more than hang, and its verdict is not open without any finding."""
        if self.cause is None:
            return self.verdict != "inconclusive"
        return not CAUSES[self.cause].stops_job


@dataclass(frozen=True, kw_only=True)
class FleetJob(StragglerCost):
    """One job of the fleet."""

    name: str
    """Of the job."""
    world_size: int
    """Ranks of the job, whether or not they left a trace."""
    ranks: int
    """That were recorded."""
    steps: int
    """How many were analysed."""
    week: str
    """ISO 8601, `2026-W30`: in which it was recorded, or else imported."""
    cost_per_day: float | None
    """In the currency of what a GPU hour costs; None where that was not given."""
    slow: bool = False
    """Whether what triage found slows it by 10 % or more: `waste` is 1/11 or more."""
    within_noise: bool = False
    """Whether `slowdown` is noise alone, as triage finds no straggler: figures of S then count 1."""
    currency: str | None = None
    """Of `cost_per_day`, such as `USD`; null where none was given."""


@dataclass(frozen=True)
class ShareOfJobs:
    """One step of the distribution function of S."""

    slowdown: float
    """S: step time over the ideal step time (1.0 = no effect)."""
    share: float
    """Of the jobs, those whose S is this or less."""


@dataclass(frozen=True, kw_only=True)
class FleetFigures:
    """How often stragglers occur in some jobs, and what they cost; ranges are of 95 %."""

    with_straggler: int
    """Jobs in which a rank, host or link is accused."""
    slow: int
    """Jobs that what triage found slows by 10 % or more."""
    slow_share: float | None
    """The same as a share of the jobs; None without a job."""
    slow_share_least: float | None
    """Where that share begins for more jobs of this kind (Wilson's interval)."""
    slow_share_most: float | None
    """Where it ends."""
    median_slowdown: float | None
    """Half of the jobs have this S or less; None where none can be replayed. S within noise is 1 here and below."""
    worst_slowdown: float | None
    """The largest S of all."""
    waste: float | None
    """Of the time of all these jobs' devices, what undoing what was found saves; None without a job."""
    waste_least: float | None
    """Where that share begins for more jobs of this kind (bootstrap over jobs); None of fewer than two."""
    waste_most: float | None
    """Where it ends."""
    gpu_hours_per_day: float
    """What undoing what was found saves, in hours of all devices."""


@dataclass(frozen=True, kw_only=True)
class FleetGroup(FleetFigures):
    """Jobs of one size, one week, or one cause."""

    by: Literal["size", "week", "cause"]
    """What they have in common."""
    group: str
    """The week, from how many ranks to how many (`9-64`), or the cause: `none` where nothing was found.
    A job that hangs is also in the group of hangs, whose price is unknown: `waste` is null there."""
    jobs: int
    """How many."""


@dataclass(frozen=True)
class FleetHost:
    """One host, in the jobs that ran on it."""

    host: str
    """Its name."""
    jobs: int
    """How many ran on it."""
    accused: int
    """In how many of them ranks of it are accused."""
    accused_in: tuple[str, ...]
    """Those jobs."""
    p_value: float | None
    """How likely it would be accused in so many jobs if each job accused some of its hosts at random, corrected for the
    number of hosts; None if no job accuses it."""
    recurs: bool
    """Whether that comes about less often than one time in a hundred, and in two jobs or more."""


@dataclass(frozen=True, kw_only=True)
class FleetResult(FleetFigures):
    """How often stragglers occur, and what they cost."""

    store: str
    """The folder of the job store."""
    jobs: tuple[FleetJob, ...]
    """Those that waste most first."""
    replayed: int
    """Jobs that S is known of, and not `inexact`: the distribution and all figures of S are over these."""
    slowdown_90: float | None
    """Nine of ten jobs are slowed no more than this."""
    cost_per_day: float | None
    """In the currency of what a GPU hour costs; None where that was not given."""
    currency: str | None
    """Of `cost_per_day`, such as `USD`; null where none was given."""
    distribution: tuple[ShareOfJobs, ...]
    """Of S over the jobs, one point for each value."""
    groups: tuple[FleetGroup, ...]
    """By size, then by week, then by cause."""
    hosts: tuple[FleetHost, ...]
    """Those that are accused most often first."""
    warnings: tuple[KairWarning, ...]
    """About jobs that are left out."""
    ledger: LedgerSummary | None = None
    """How predictions came out; null where none was made."""
    records: tuple[DeviceRecord, ...] = ()
    """Devices, hosts and links that are slow in job after job."""
    bar: StepBar | None = None
    """Where the steps of all jobs go, every device's time alike; null without a job."""
    inexact: int = 0
    """Jobs whose `simulation_error` is more than 5 %: left out of all figures of S."""
