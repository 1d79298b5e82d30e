"""Answers that accuse nobody: what was recorded, and how long it took.

The inventory of a recording: ranks, layout, steps, operators, clocks.

Step times: over the ranks, and on each.

The breakdown by operator: how long each ran on all ranks, by type, and how that differs between ranks.

The time-frequency view's answer: how often an operator ran, per window and rank.
"""

from dataclasses import dataclass, field
from typing import Literal

from kair_engine.ranks import Rank
from kair_engine.results import TimedOn
from kair_engine.results.watch import HangKind, JobState
from kair_engine.trace.identity import RankIdentity
from kair_engine.trace.model import KairWarning, Layout


@dataclass(frozen=True)
class ClockInfo:
    """How far the ranks' clocks agree."""

    source: Literal["collectives", "none", "recorded", "file"]
    """What makes them comparable; `file`: one host's recorder wrote all ranks into one file, by one clock."""
    residual_us: float | None
    """Median disagreement of collective ends after correction."""
    max_offset_us: float
    """The largest correction of a rank's clock."""


@dataclass(frozen=True)
class OperatorUse:
    """How often an operator ran, on all ranks together."""

    operator: str
    """Its name in the recording; null where no single one can be named."""
    count: int
    """How often it ran."""
    phases: tuple[str, ...]
    """Those it ran in; empty if the recording does not show them."""


@dataclass(frozen=True)
class RankRecord:
    """What one rank's recording holds of the chosen steps."""

    rank: Rank
    """Its number in the job."""
    files: int
    """That hold it."""
    steps: int
    """Of the chosen ones, those that it has whole."""
    operations: int
    """Of the chosen steps."""
    collectives: int
    """Collectives, sends and receives among them."""
    odd: tuple[str, ...]
    """Why it cannot be compared with its peers: codes of warnings; empty where it can."""


@dataclass(frozen=True)
class Attempt:
    """One start of a captured job's processes, by the steps that all ranks reported, sampled or not."""

    number: int
    """From 1 on."""
    began_at: str
    """When the first of its steps began, UTC, ISO 8601."""
    ranks: tuple[int, ...]
    """Their numbers, sorted."""
    first_step: int
    """The first that all ranks reported."""
    last_step: int
    """The last such one."""
    step_time_us: float
    """The median over all its steps and ranks."""


@dataclass(frozen=True)
class InfoResult:
    """What the recording holds."""

    format: str
    """Of the recording."""
    world_size: int
    """Ranks of the job, whether or not they left a trace."""
    ranks: tuple[Rank, ...]
    """Their numbers, sorted."""
    missing_ranks: tuple[Rank, ...]
    """Ranks of the job that left no trace."""
    hosts: dict[str, tuple[int, ...]]
    """The ranks of each host."""
    layout: Layout | None
    """How ranks are arranged; null where that is not known."""
    roles: dict[str, tuple[int, ...]]
    """The ranks of each role."""
    device: str | None
    """The model of the ranks' devices; null where none is recorded."""
    steps: tuple[int, ...]
    """That were recorded."""
    operations: int
    """Of the chosen steps, all ranks together; the rows that mark steps are none."""
    operations_by_kind: dict[str, int]
    """How many of each kind were recorded."""
    collectives: int
    """Of all chosen steps, with sends and receives: each once for all of its members."""
    matched_collectives: int
    """Those of which all members' parts were found."""
    clock: ClockInfo
    """How far the ranks' clocks agree."""
    warnings: tuple[KairWarning, ...]
    operators: tuple[OperatorUse, ...] = ()
    """Only when asked for, the most frequent first."""
    by_rank: tuple[RankRecord, ...] = ()
    """What is odd first."""
    timed_on: TimedOn = "host"
    """Whose step times all commands print: the devices' where hosts run ahead of them."""
    launch_queue_depth: dict[int, int] = field(default_factory=dict)
    """rank → how many launches can wait for its device before its host has to; empty where none was seen to wait."""
    launch_queue_per_stream: bool | None = None
    """Whether each stream has a queue that deep, or all of a process share it; null where no depth is known."""
    attempts: tuple[Attempt, ...] = ()
    """Of a captured job, the last at the end."""
    identities: tuple[RankIdentity, ...] = ()
    """Who the ranks are: process, device, software, as recordings and capture state it; only ranks of which any of that
    is known, by rank."""
    state: JobState | None = None
    """Of a captured job: what its coordinator wrote last, such as `training` or `over`; null of any other."""
    ending: str = ""
    """Of a captured job that stands still, or that a rank's end stopped: who, and where, in words."""
    parts_every: int | None = None
    """Of a captured job: one step in so many records its parts, as `kair watch` has it; null of any other."""
    hang: HangKind | None = None
    """Of a captured job with an `ending`: whether it stands still, or a rank died; null of any other."""


@dataclass(frozen=True)
class StepTime:
    """One step on one rank."""

    step: int
    """Its number in the recording."""
    rank: Rank
    """Its number in the job."""
    begin_us: float
    """From the first step's earliest begin, on the job's clock."""
    duration_us: float
    """On the device where hosts run ahead: from the end of the step before to the end of its last operation."""
    operations: int
    """How many were recorded."""
    complete: bool
    """Whether all of the step was recorded."""
    host_us: float | None = None
    """What its host took for the step, from its mark's begin to its end; null where that is `duration_us`."""
    own_us: float | None = None
    """Without what it waited in collectives, of steps that capture recorded and did not sample; else null."""


@dataclass(frozen=True)
class StepSummary:
    """One step over all ranks."""

    step: int
    """Its number in the recording."""
    ranks: int
    """How many recorded the step."""
    median_us: float
    """The median over the ranks."""
    max_us: float
    """On the slowest rank."""
    slowest_rank: Rank
    """Where the step took longest; -1 in a log, which does not say it."""
    complete: bool
    """Whether all of the step was recorded."""
    slow: bool
    """Complete, and on its slowest rank a tenth longer than the median of the complete steps."""
    own_us: float | None = None
    """The longest own time of any rank, of steps that capture recorded and did not sample; else null."""
    own_rank: Rank | None = None
    """The rank whose own time that is."""


@dataclass(frozen=True)
class ScopeTime:
    """A part of the step on one rank, over all steps that capture kept."""

    scope: str
    """A phase, `self` (the step without waiting), `waiting` (in collectives), or a scope of the script."""
    rank: Rank | None
    """None for the median of all ranks."""
    steps: int
    """How many steps show it; sampled ones are left out, which the profiler makes longer."""
    median_us: float
    """Of a step."""
    peers_us: float | None
    """The median of the other ranks; None of all ranks, and where there is one alone."""
    since_step: int | None = None
    """The first step after the largest lasting change against the peers; None where chance explains what there is."""
    before_us: float | None = None
    """The median before that."""
    after_us: float | None = None
    """And from there on."""
    change_us: float | None = None
    """How much longer than the peers it became, beyond what it was before."""
    p_value: float | None = None
    """How likely chance makes such a change in any of the rows."""
    waits: bool = False
    """It is waiting, or became longer by waiting: another rank's fault."""


@dataclass(frozen=True)
class StepsResult:
    """The time of every step, over the ranks and on each."""

    summary: tuple[StepSummary, ...]
    """Every step over all ranks."""
    steps: tuple[StepTime, ...]
    """Every step on every rank."""
    step_time_us: float
    """The mean over the complete steps of the median rank's time (of the longest rank's, where no collective makes
    ranks wait for one another): the step time of all commands. Of that rank's steps where one was asked about."""
    warnings: tuple[KairWarning, ...]
    scopes: tuple[ScopeTime, ...] = ()
    """Those of a captured job, where they were asked for; the largest changes first."""
    timed_on: TimedOn = "host"
    """Whose times these are: the devices' where hosts run ahead of them."""
    attempts: tuple[Attempt, ...] = ()
    """Of a captured job, where scopes were asked for; the last at the end."""
    attempt: int | None = None
    """The one whose scopes these are; null where the job was not captured, or by an earlier version."""
    parts_every: int | None = None
    """Of steps that capture recorded: one in so many has its parts, of those of short steps; null of any other."""


OperatorType = Literal[
    "compute", "memory", "communication", "waiting", "unmatched", "input", "garbage_collection", "idle"
]
"""What an operator's time is spent on. A collective has two: its transfer (`communication`), and `waiting` before that.

`unmatched` is communication whose other members are not recorded: how much of it is waiting is unknown. `idle` is
what hosts alone kept their devices (or threads) from work; it has no operator.
"""


@dataclass(frozen=True)
class TypeTime:
    """All operators of one type."""

    type: OperatorType
    """What the time is spent on."""
    total_us: float
    """Self time over the chosen steps and all ranks. What runs at once counts each by itself."""
    share: float
    """Of the ranks' time, what is not in the background: a moment of a rank counts for one type alone."""
    median_us: float
    """Per step, the median rank; this and what follows is without what runs in the background."""
    min_us: float
    """Per step, of the rank that spent least: 0 where a rank spent nothing."""
    max_us: float
    """Per step, of the rank that spent most."""
    max_rank: Rank
    """The rank that spent most."""
    background_us: float = 0.0
    """Of `total_us`, what ran while the rank did something else that counts: transfers behind kernels, say."""


@dataclass(frozen=True)
class OperatorTime:
    """One operator, as far as it is of one type."""

    operator: str | None
    """None where hosts left devices or threads idle."""
    type: OperatorType
    """What the time is spent on."""
    total_us: float
    """Self time over the chosen steps and all ranks, also what ran in the background."""
    share: float
    """Of the ranks' time."""
    calls: float
    """Per step, the mean of the ranks that ran it."""
    ranks: int
    """How many ran it."""
    median_us: float
    """Per step, the median of the ranks that ran it."""
    min_us: float
    """Per step, of the rank that spent least."""
    max_us: float
    """Per step, of the rank that spent most on it."""
    max_rank: Rank
    """The rank that spent most."""
    by_rank_us: tuple[float, ...] = ()
    """Per step, an entry for each of the result's `ranks`; only when asked for."""
    input_bytes: float | None = None
    """What a call is given, the median of the ranks whose recordings show it; None if no recording does."""
    by_rank_input_bytes: tuple[float | None, ...] = ()
    """The same of each of the result's `ranks`; only if asked for, and if some rank's recording shows it."""


@dataclass(frozen=True)
class OperatorsResult:
    """Where the time of all ranks goes."""

    ranks: tuple[Rank, ...]
    """Their numbers, sorted."""
    steps: tuple[int, ...]
    """Those that were analysed."""
    step_time_us: float
    """The mean over steps."""
    total_us: float
    """The time of all types; what runs at once counts each by itself."""
    by_type: tuple[TypeTime, ...]
    """Those that there are, the largest first."""
    operators: tuple[OperatorTime, ...]
    """Those that were asked for, the largest first, at most `limit` of them."""
    total_operators: int
    """How many there are of those that were asked for."""
    unlisted_us: float
    """The time of those that are not listed."""
    warnings: tuple[KairWarning, ...]
    ranks_time_us: float = 0.0
    """How long the steps took all ranks together: what shares are parts of."""


@dataclass(frozen=True)
class DegradedWindow:
    """A window in which a rank ran the operator less often than its peers."""

    rank: Rank
    """Its number in the job."""
    window: int
    """Which one, from 0."""
    start_us: float
    """Where the window begins, from the step's begin."""
    count: int
    """How often it ran."""
    expected: float
    """How often its peers ran it, the median."""
    state: Literal["missing", "degraded"]
    """Whether the rank ran it not at all, or less often."""


@dataclass(frozen=True)
class DegradedRegion:
    """A stretch of time in which a rank ran the operator less often than its peers."""

    rank: Rank
    """Its number in the job."""
    start_us: float
    """Where it begins, from the begin of the first step."""
    duration_us: float
    """How long it lasts."""
    count: int
    """How often the rank ran the operator in it."""
    expected: float
    """How often its peers ran it then, the median."""
    state: Literal["missing", "degraded"]
    """Whether the rank ran it not at all, or less often."""
    operator: str | None = None
    """What the rank ran for at least half of this time, the innermost operator; null if nothing did, and for ranks that
    are not among those that fall behind most."""


@dataclass(frozen=True)
class RankCounts:
    """How often one rank ran the operator, per window."""

    rank: Rank
    """Its number in the job."""
    counts: tuple[int, ...]
    """How often it ran in each window."""


@dataclass(frozen=True)
class FrequencyResult:
    """The time-frequency view [K, figure 4]."""

    operator: str
    """The operator or phase counted; `*` is every operation."""
    window_us: float
    """How long a window lasts."""
    windows: int
    """How many windows a step has."""
    counts: tuple[RankCounts, ...]
    """Of every rank."""
    degraded: tuple[DegradedWindow, ...]
    """Windows in which a rank ran it less often than its peers; the counts are of the part in which it did."""
    warnings: tuple[KairWarning, ...]
    regions: tuple[DegradedRegion, ...] = ()
    """The same without regard to windows: the stretches of time, the largest shortfall first."""
