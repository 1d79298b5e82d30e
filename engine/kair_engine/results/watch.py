"""How a running job is doing, as its coordinator sees it: the answer of `kair watch`."""

from dataclasses import dataclass
from typing import Literal

from kair_engine.trace.model import KairWarning

JobState = Literal["waiting", "training", "stalled", "over", "unattended"]
"""`waiting` for the first steps; `unattended`: the coordinator has not written for a while."""
AlertKind = Literal["slow_rank", "longer_steps", "stalled", "silent_host"]


@dataclass(frozen=True)
class WatchedRank:
    """A rank's last 20 steps."""

    rank: int
    host: str | None
    step: int
    """The last that it told."""
    step_time_us: float | None
    """The median."""
    self_time_us: float | None
    """The median without what was waited in collectives."""
    self_time_excess: float | None
    """Beyond its peers' median, as a share of that; of a rank with fewer than two peers, beyond its own before."""
    z: float
    """The excess in units of chance; beyond 6, three times in a row, is an alert."""
    slow: bool
    """Whether an alert says so."""
    role: str = "all"
    """Ranks that communicate alike: `all` where every rank does, else such as `stage 1 of 4`."""
    peers: int = 0
    """How many others there are of its role."""


@dataclass(frozen=True)
class WatchedHost:
    """A host's agent."""

    host: str
    ranks: int
    silent: bool
    """Whether its agent is not heard, though ranks lived on it."""
    heard_s_ago: float
    """When it was last heard."""
    clock_offset_us: float | None
    """Its clock minus the coordinator's."""
    clock_bound_us: float | None
    """How far that may be off."""
    drops: int
    """Records that found no room in the rings."""
    delivered: int
    """Fragments that reached the store."""
    spooled: int
    """Fragments that wait for the store."""
    discarded: int
    """Fragments, windows and rows that were given up."""
    unsent_rows: int
    """Step times that wait for the coordinator."""
    sampled_every: int = 0
    """Steps from one that its ranks sample without being asked to the next, as far as the budget allows; 0 for none."""


@dataclass(frozen=True)
class Alert:
    """Something that was noticed."""

    at: str
    """UTC, ISO 8601."""
    kind: AlertKind
    """A rank beyond its peers, the whole job longer than before, no step's end for long, or a host not heard."""
    step: int
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    excess: float | None
    """Of the self time, or of the job's step time, as a share; None where that is not what was noticed."""
    z: float | None
    """The excess in units of chance."""
    over: bool = False
    """It is no longer so."""


@dataclass(frozen=True)
class WatchedWindow:
    """Steps that were sampled, or are to be."""

    number: int
    """Counts the windows of a job."""
    first_step: int
    """The first that is sampled."""
    last_step: int
    """The last that is."""
    ranks: tuple[int, ...]
    why: str
    """`slow ranks`, `longer steps`, or `asked for`."""
    state: Literal["ordered", "over", "committed"]
    """`over`: training is past it, and its fragments are not all there."""
    missed: tuple[int, ...] = ()
    """Those of `ranks` that told that they did not sample: they were past it, or their profiler was taken."""


@dataclass(frozen=True)
class Sampling:
    """What sampling costs, and what it brought."""

    max_overhead: float
    """The share of the job's time that it may take."""
    overhead: float
    """That it took."""
    fragments: int
    """Committed since the coordinator started."""
    refused: int
    """Delivered files that no agent of this job made."""
    duplicates: int
    """Delivered fragments of steps that were there already."""
    windows: tuple[WatchedWindow, ...]
    """The last 20."""
    owed_us: float = 0.0
    """What was lent for a slow rank's window, or spent by hand, and is to be earned before anything else is sampled."""


@dataclass(frozen=True)
class WatchResult:
    """The job as of `updated_at`."""

    job: str
    """Its name in the store."""
    updated_at: str
    """UTC, ISO 8601."""
    state: JobState
    step: int
    """The last that nine in ten of the ranks have reached; −1 before the first."""
    step_time_us: float | None
    """Median of the last 20."""
    usual_step_time_us: float | None
    """Median of those before."""
    world_size: int
    ranks: tuple[WatchedRank, ...]
    hosts: tuple[WatchedHost, ...]
    alerts: tuple[Alert, ...]
    """The last 100."""
    sampling: Sampling
    """What is sampled, and what that costs."""
    refused_datagrams: dict[str, int]
    """By reason."""
    warnings: tuple[KairWarning, ...] = ()

    def open_alerts(self) -> tuple[Alert, ...]:
        """Those that are still so; longer steps are, once they were noticed."""
        last = {(one.kind, one.ranks, one.hosts): one for one in self.alerts}
        return tuple(one for one in last.values() if not one.over)
