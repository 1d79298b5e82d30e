"""How a running job is doing, as its coordinator sees it: the answer of `kair watch`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from kair_engine.results.triage import Verdict
from kair_engine.results.whatif import PricedRanks
from kair_engine.results.windows import PricedWindow
from kair_engine.trace.model import KairWarning

JobState = Literal["waiting", "training", "stalled", "over", "unattended", "failed"]
"""`waiting` for the first steps; `unattended`: the coordinator has not written for a while; `failed`: its ranks have
ended, and at least one of them not in order."""
FRESH_S = 10.0
"""The status of 10,000 ranks is written every 5 s: an older one may not be written any more."""
FEWEST_PEERS = 3
"""Of two ranks nobody can say which one is as usual: each is compared with its own past."""
AlertKind = Literal["slow_rank", "longer_steps", "stalled", "silent_host", "rank_died", "high_slowdown"]
"""What is noticed; `high_slowdown` only where sampled windows are priced."""
HangKind = Literal["stalled", "rank_died", "ended"]
"""`ended`: the job was ended from outside, which is no alert."""
StandingKind = Literal["lives", "ended", "died", "unheard", "untold"]
"""`ended`: in order; `unheard`: its host is not heard; `untold`: it did not say where it is."""
EndKnownBy = Literal["", "kernel", "fault", "itself", "out_of_memory"]
"""Who reported how a process ended: the system's exit status, a handler in it that saw the signal, or Python's exit.
`out_of_memory` is assumed: the kernel killed it, and the count of such kills in its memory group rose. If nobody
reported it, SIGKILL and a lack of memory are likeliest, as everything else leaves a trace."""


@dataclass(frozen=True)
class StandingRank:
    """Where a rank stands in a job that stands still, or how it ended."""

    rank: int
    """Its number in the job."""
    host: str | None
    """Where it runs; null where that is not recorded."""
    state: StandingKind
    """Whether the rank ran it not at all, or less often."""
    step: int = -1
    """That it is in, or was; −1 where that is not known."""
    phase: str = ""
    """`forward`, `backward`, `optimizer`, `input`, `collective`; empty where it is in none of these."""
    where: str = ""
    """`train.py:33 loss_of`: the innermost frame that is no library's."""
    after: str = ""
    """What it recorded last, and how long ago."""
    signal: int = 0
    """That ended it, or holds it where it lives (SIGSTOP); 0 for none."""
    exit_status: int | None = None
    """With which it ended by itself; null where it did not, or nobody knows."""
    known_by: EndKnownBy = ""
    """Who reported how it ended; empty if nobody did."""
    error: str = ""
    """The exception that ended it."""
    at_ns: int = 0
    """When this was so, Unix time."""


@dataclass(frozen=True)
class Hang:
    """A job that stands still, or in which a rank died."""

    number: int
    """Counts a job's; what ranks answered is in the folder of that number, `hangs/` in the job's."""
    at: str
    """UTC, ISO 8601: when it was noticed."""
    kind: HangKind
    """As the alert's; `ended` if the same signal ended all ranks, for which no alert is made."""
    step: int
    """The last that nine in ten of the ranks reached."""
    missing: tuple[int, ...]
    """Who is to blame: who has not arrived, or died first; empty where nobody is known to be."""
    told: str
    """Who is missing, and where, in words."""
    ranks: tuple[StandingRank, ...]
    """Their numbers, sorted."""
    over: bool = False
    """The job goes on."""


@dataclass(frozen=True)
class WatchedRank:
    """A rank's last 20 steps."""

    rank: int
    """Its number in the job."""
    host: str | None
    """Where it runs; null where that is not recorded."""
    step: int
    """The last that it reported."""
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
    samples: float | None = None
    """How many it takes in a step, the median; None unless the job reports it for every rank."""
    sample_time_us: float | None = None
    """The median self time of a sample. If it is given, `self_time_excess` and `z` are of this time."""
    excess_us: float | None = None
    """What `self_time_excess` is in a step, µs; no more than others wait for the rank, where sizes are uneven or only
    two ranks are compared."""
    excess_of_step: float | None = None
    """The same as a share of the job's step time."""
    evened_out: bool = False
    """Whether it is slow for its samples, and is given so few of them that no other rank waits for it."""

    @property
    def has_peers(self) -> bool:
        """Whether it is compared with others, and not with its own past."""
        return self.peers + 1 >= FEWEST_PEERS


@dataclass(frozen=True)
class WatchedHost:
    """A host's agent."""

    host: str
    """The host's name."""
    ranks: int
    """Their numbers, sorted."""
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
    """A rank beyond its peers, the whole job longer than before, no step's end for long, a host not heard, a rank whose
    process ended otherwise than in order, or (of `watch --whatif`) S of a sampled window of 1.1 or more."""
    step: int
    """Its number in the recording."""
    ranks: tuple[int, ...]
    """Their numbers, sorted."""
    hosts: tuple[str, ...]
    """The ranks of each host."""
    excess: float | None
    """Of the self time, or of the job's step time, as a share; None where that is not what was noticed."""
    z: float | None
    """The excess in units of chance."""
    over: bool = False
    """It is no longer so."""
    per_sample: bool = False
    """The excess is of a sample's time: ranks take different numbers of samples."""
    excess_us: float | None = None
    """The excess in a step, µs; None where that is not what was noticed, or an earlier version noticed it."""
    excess_of_step: float | None = None
    """The same as a share of the job's step time."""
    told: str = ""
    """Of `stalled` and `rank_died`: who is missing, and where, in words; of `high_slowdown`: who is slowest, and
    triage's verdict."""


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
    """Their numbers, sorted."""
    why: str
    """`slow ranks`, `longer steps`, or `asked for`."""
    state: Literal["ordered", "over", "committed"]
    """`over`: training is past it, and its fragments are not all there."""
    missed: tuple[int, ...] = ()
    """Those of `ranks` that reported that they did not sample: they were past it, or their profiler was taken."""
    options: tuple[str, ...] = ()
    """What was recorded besides: `stacks`, `memory`, `shapes`."""


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
class WatchedVerdict:
    """What `kair triage` answered last."""

    step: int
    """The last that was recorded then."""
    verdict: Verdict
    """Triage's."""
    summary: str
    """The same in one sentence."""
    slow: tuple[PricedRanks, ...]
    """The findings that accuse ranks, the costliest first."""


@dataclass(frozen=True)
class WatchResult:
    """The job as of `updated_at`."""

    job: str
    """Its name in the store."""
    updated_at: str
    """UTC, ISO 8601."""
    state: JobState
    """Whether the rank ran it not at all, or less often."""
    step: int
    """The last that nine in ten of the ranks have reached; −1 before the first."""
    step_time_us: float | None
    """Median of the last 20."""
    usual_step_time_us: float | None
    """Median of those before."""
    world_size: int
    """Ranks of the job, whether or not they left a trace."""
    ranks: tuple[WatchedRank, ...]
    """Their numbers, sorted."""
    hosts: tuple[WatchedHost, ...]
    """The ranks of each host."""
    alerts: tuple[Alert, ...]
    """The last 100."""
    sampling: Sampling
    """What is sampled, and what that costs."""
    refused_datagrams: dict[str, int]
    """By reason."""
    warnings: tuple[KairWarning, ...] = ()
    attempt: int = 0
    """Which start of the job's processes this is, from 1 on; 0 where it is not known."""
    unwritten_since: str | None = None
    """Since when step times cannot be written into the store, UTC, ISO 8601; None where they can."""
    moved_at_step: int | None = None
    """The step from which on the store has the job, where its folder there was replaced by another one."""
    age_s: float = 0.0
    """How old the figures were when they were read; 0 of a job that is over."""
    unwritten_because: str | None = None
    """Of old figures, why no newer ones may be written, such as `the store is full`; None where that is not seen."""
    unheard_because: str | None = None
    """Why no rank is heard though some train; None where one is heard, or none is known to train."""
    hang: Hang | None = None
    """The last time that the job stood still, or a rank died; None where that was never so."""
    control: dict[str, str] = field(default_factory=dict)
    """What `kair capture set` changed, by its keys; empty where nothing."""
    priced_windows: tuple[PricedWindow, ...] = ()
    """What stragglers cost in each of the last 20 sampled windows; empty unless they are priced (`--whatif`)."""
    triage: WatchedVerdict | None = None
    """What triage answered last; null before it was asked, which is after an alert and at the end of the job."""
    silent_s: float = 0.0
    """For how long no step had ended, where that is long for this job; 0 where it is not, or the job does not train."""
    parts_every: int | None = None
    """One step in so many records its parts (forward, backward, …), as steps are short; all record their length and
    what they waited. Of ranks that differ the most; null before the first step."""

    def open_alerts(self) -> tuple[Alert, ...]:
        """Those that are still so; longer steps are, once they were noticed."""
        last = {(one.kind, one.ranks, one.hosts): one for one in self.alerts}
        return tuple(one for one in last.values() if not one.over)


def high_slowdowns(windows: Sequence[PricedWindow], *, is_high: bool = False) -> Iterator[Alert]:
    """Yield an alert for each window in which S became high, or no longer is; `is_high`: it was so before the first."""
    for one in windows:
        if one.is_high != is_high:
            is_high = one.is_high
            excess = one.slowdown - 1 if is_high else None
            told = _in_words(one) if is_high else ""
            yield Alert(one.at, "high_slowdown", one.last_step, (), (), excess, None, not is_high, told=told)


def _in_words(window: PricedWindow) -> str:
    """Return who is slowest, and the verdict: `rank 2 alone makes S 1.14; triage of these steps: straggler`."""
    rank, slowdown = next(iter(window.by_rank.items()), (None, 1.0))
    alone = "" if rank is None else f"rank {rank} alone makes S {slowdown:.2f}; "
    return f"{alone}triage of these steps: {window.verdict.replace('_', '-')}"
