"""What the analyses answer: frozen records of plain values, shared by tables, JSON and the screens.

Field names and meanings follow the command-line contract; units are in the names (`_us`, `_ns`, `_bytes`).
Floats are finite.
"""

from dataclasses import dataclass
from typing import Literal

from kair_engine.model import Layout, Notice
from kair_engine.whatif.result import FixPrice

STEP_BEGIN = "step begin"
"""Stands for the operator where a rank was late already when the step began."""

Method = Literal["robust", "paper"]
Verdict = Literal["straggler", "no_straggler", "inconclusive"]
Cause = Literal[
    "compute",
    "communication",
    "input",
    "host",
    "garbage_collection",
    "stage_imbalance",
    "sequence_imbalance",
    "unknown",
]
PricedBy = Literal["replay", "excess"]
"""The job replayed without the culprit; or the culprit's excess, no more than its punctuality would have spared."""
Pattern = Literal["persistent", "intermittent", "group", "job_wide"]
RoleInPath = Literal["victim", "culprit", "edge"]
GroupBy = Literal["rank", "host", "role"]


@dataclass(frozen=True)
class RankScore:
    """How far one rank stands out from the peers of its role; larger is more suspicious."""

    rank: int
    host: str | None
    role: str
    score: float
    p_value: float | None
    """Corrected for ranks × classes (family-wise); None where the method has no null distribution."""
    flagged: bool
    excess_us: dict[str, float]
    """Class of operations → µs per step beyond the role's median (trimmed mean over steps)."""
    large_delays: int | None = None
    """Steps in which it took 10 % of the step longer than its role; of one or two steps the host's pauses between
    collectives. None where the method does not count them."""


@dataclass(frozen=True)
class GroupScore:
    """The scores of a host or a role together."""

    group: str
    ranks: tuple[int, ...]
    mean_score: float
    max_score: float
    flagged: int


@dataclass(frozen=True)
class CommunicatorScore:
    """A process group whose collectives are slower than its siblings'; it names no rank."""

    group: str
    ranks: tuple[int, ...]
    operator: str
    """The collective that lost most."""
    own_us: float
    """Per step, waiting for members excluded."""
    expected_us: float
    """The siblings' median."""
    siblings: int
    p_value: float


@dataclass(frozen=True)
class OperatorScore:
    """A rank that is slow in one operator in every step."""

    rank: int
    operator: str
    excess_us: float
    """Per step beyond the medians of the role's calls (trimmed mean over steps)."""
    p_value: float


@dataclass(frozen=True)
class JobPattern:
    """What slows the job though no rank is at fault."""

    cause: Cause
    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    lost_us: float
    """Per step."""
    figures: dict[str, float]
    """What speaks for it. Stage imbalance: each stage's compute in µs per step. Sequence imbalance: `correlation` (of
    forward and backward within a rank) and `variation` (of the forward pass). Delays on changing ranks: `delays` and
    their `rate` (of all ranks' steps)."""


@dataclass(frozen=True)
class LocalizeResult:
    """Stage 1: a score for every rank, the highest first."""

    method: Method
    scores: tuple[RankScore, ...]
    groups: tuple[GroupScore, ...]
    """Filled when asked for by host or role."""
    slow_communicators: tuple[CommunicatorScore, ...]
    patterns: tuple[JobPattern, ...]
    matrix: tuple[tuple[float, ...], ...] | None
    """Pairwise K–S distances in rank order, only when asked for (paper method)."""
    steps: tuple[int, ...]
    warnings: tuple[Notice, ...]
    slow_operators: tuple[OperatorScore, ...] = ()
    step_time_us: float | None = None
    """What shares of the step refer to; None with the paper's method."""


@dataclass(frozen=True)
class Outlier:
    """One operation of the rank that differs from the same operation on its peers."""

    step: int
    operator: str
    stage: str | None
    occurrence: int
    start_z: float | None
    duration_z: float | None
    score: float
    p_value: float | None
    start_us: float
    """From the step's begin on this rank."""
    duration_us: float
    expected_duration_us: float
    """Its peers' mean (paper) or median (robust)."""


@dataclass(frozen=True)
class PinpointResult:
    """Stage 2: the rank's outlying operations, the most outlying first."""

    rank: int
    method: Method
    outliers: tuple[Outlier, ...]
    tested: int
    """Operations compared."""
    total_outliers: int
    """Outliers found, of which the listed ones are the first."""
    warnings: tuple[Notice, ...]


@dataclass(frozen=True)
class PathNode:
    """One stop of a blame path."""

    rank: int
    operator: str
    kind: str
    start_us: float
    """From the step's begin."""
    duration_us: float
    lateness_us: float
    """How much later than its peers' median it began (for a collective: arrived), on the job's clock."""
    role_in_path: RoleInPath


@dataclass(frozen=True)
class BlamePath:
    """From a symptom (an operation that waited) back to its root cause."""

    symptom: PathNode
    chain: tuple[PathNode, ...]
    cause: Cause
    waited_us: float
    """Waiting of all ranks that this path explains."""
    step: int
    """The step in which they waited."""


@dataclass(frozen=True)
class RootCause:
    """One rank's operator (or an edge between two) with the waiting it explains."""

    rank: int
    operator: str | None
    cause: Cause
    is_edge: bool
    blamed_us: float
    """Other ranks' waiting, summed over them, that this cause explains."""
    share: float
    """Of all waiting in the steps."""
    steps: tuple[int, ...]
    synchronisations: int
    """How many collectives (or receives) waited for it."""


@dataclass(frozen=True)
class RankBlame:
    """All waiting laid at one rank's door: it arrived last."""

    rank: int
    blamed_us: float
    share: float
    arrived_last: int
    """Collectives that waited for this rank more than the clocks' residual."""


@dataclass(frozen=True)
class BlameResult:
    """Stage 3: blame paths, and root causes ranked by the waiting they explain. The shares add up."""

    step: int | None
    """The step asked for; None where several were."""
    steps: tuple[int, ...]
    method: Method
    paths: tuple[BlamePath, ...]
    root_causes: tuple[RootCause, ...]
    by_rank: tuple[RankBlame, ...]
    waiting_us: float
    attributed_us: float
    unattributed_us: float
    collectives: int
    warnings: tuple[Notice, ...]


@dataclass(frozen=True)
class DegradedWindow:
    """A window in which a rank ran the operator less often than its peers."""

    rank: int
    window: int
    start_us: float
    count: int
    expected: float
    state: Literal["missing", "degraded"]


@dataclass(frozen=True)
class RankCounts:
    """How often one rank ran the operator, per window."""

    rank: int
    counts: tuple[int, ...]


@dataclass(frozen=True)
class FrequencyResult:
    """The time-frequency view [K, figure 4]."""

    operator: str
    """The operator or stage counted; `*` is every operation."""
    window_us: float
    windows: int
    counts: tuple[RankCounts, ...]
    degraded: tuple[DegradedWindow, ...]
    warnings: tuple[Notice, ...]


@dataclass(frozen=True)
class StepTime:
    """One step on one rank."""

    step: int
    rank: int
    begin_us: float
    """From the first step's earliest begin, on the job's clock."""
    duration_us: float
    operations: int
    complete: bool


@dataclass(frozen=True)
class StepSummary:
    """One step over all ranks."""

    step: int
    ranks: int
    median_us: float
    max_us: float
    slowest_rank: int
    complete: bool
    slow: bool
    """Complete, and on its slowest rank a tenth longer than the median of the complete steps."""


@dataclass(frozen=True)
class StepsResult:
    """The time of every step, over the ranks and on each."""

    summary: tuple[StepSummary, ...]
    steps: tuple[StepTime, ...]
    warnings: tuple[Notice, ...]


@dataclass(frozen=True)
class ClockInfo:
    """How far the ranks' clocks agree."""

    source: Literal["collectives", "none", "recorded"]
    residual_us: float | None
    """Median disagreement of collective ends after correction."""
    max_offset_us: float


@dataclass(frozen=True)
class OperatorUse:
    """How often an operator ran, on all ranks together."""

    operator: str
    count: int
    stages: tuple[str, ...]
    """Those it ran in; none where the recording does not tell."""


@dataclass(frozen=True)
class InfoResult:
    """What the recording holds."""

    format: str
    world_size: int
    ranks: tuple[int, ...]
    missing_ranks: tuple[int, ...]
    hosts: dict[str, tuple[int, ...]]
    layout: Layout | None
    roles: dict[str, tuple[int, ...]]
    device: str | None
    steps: tuple[int, ...]
    operations: int
    operations_by_kind: dict[str, int]
    collectives: int
    matched_collectives: int
    clock: ClockInfo
    warnings: tuple[Notice, ...]
    operators: tuple[OperatorUse, ...] = ()
    """Only when asked for, the most frequent first."""


@dataclass(frozen=True)
class RankedRank:
    """One rank in the triage's ranking, the most suspicious first."""

    rank: int
    host: str | None
    role: str
    score: float
    flagged: bool
    self_time_excess_us: float
    """µs per step of its own time beyond its role's median, waiting excluded."""
    wait_imposed_us: float
    """µs per step that other ranks, summed, waited for it."""


@dataclass(frozen=True)
class Finding:
    """One culprit."""

    cause: Cause
    pattern: Pattern
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    operator: str | None
    edge: str | None
    """`from → to` where the delay lies between two operations or two ranks."""
    steps: tuple[int, ...]
    p_value: float | None
    """Family-wise: corrected for everything tried in this triage."""
    time_lost_us_per_step: float
    """What a step would be shorter by without this culprit."""
    slowdown: float
    """Step time over the step time without this culprit (1.0 = no effect)."""
    evidence: tuple[str, ...]
    suggestion: str
    throughput_gain: float = 0.0
    """Steps per time without this culprit, over those with it, less 1."""
    gpu_hours_per_day: float = 0.0
    """Of all devices of the job, what it costs."""
    cost_per_day: float | None = None
    """In the currency of what a GPU hour costs; null where that was not given."""
    priced_by: PricedBy = "excess"
    fix: tuple[str, ...] = ()
    """Options of `kair whatif` that undo it; empty where none do: `--fix rank=3+kind=compute`."""


@dataclass(frozen=True)
class TriageResult:
    """The whole investigation."""

    verdict: Verdict
    summary: str
    """The answer in one sentence."""
    findings: tuple[Finding, ...]
    ranking: tuple[RankedRank, ...]
    step_time_us: float
    waiting_us_per_step: float
    unattributed_us_per_step: float
    steps: tuple[int, ...]
    warnings: tuple[Notice, ...]
    together: FixPrice | None = None
    """All findings that were replayed, fixed at once; null for fewer than two."""


InjectedFault = Literal["slow_device", "slow_operator", "slow_input", "slow_host", "stall", "slow_link"]
DetectionLimit = Literal["steps", "ranks", "peers", "smallest_share"]
"""What keeps a smaller fault from being found: too few steps, how much healthy ranks (or links) differ, a role of two
ranks, or that nothing is reported below a share of the step (a link: of its own time)."""


@dataclass(frozen=True)
class LongerRecording:
    """What the same job would show in more steps; null where it would still not show the fault."""

    steps: int
    smallest_us_per_step: float | None
    smallest_share_of_step: float | None
    stalled_steps: int | None


@dataclass(frozen=True)
class DetectableFault:
    """The smallest fault of one kind, on any one rank (or link), that the recording shows with the set probability."""

    fault: InjectedFault
    cause: Cause | None
    """What triage would call it; null for a stall, whose cause can be any."""
    operator: str | None
    """The one that was slowed down."""
    smallest_us_per_step: float | None
    """What it adds to the rank's own time, in the mean over steps. Null: no size is found."""
    smallest_share_of_step: float | None
    """The same over the step time."""
    own_us_per_step: float | None
    """What a rank (or link) spends on this anyway, the median; null where that says nothing."""
    smallest_own_slowdown: float | None
    """That with the fault over that without."""
    spread_us_per_step: float | None
    """How much the ranks (or links) differ in it for good: the standard deviation within a role."""
    stalled_steps: int | None
    """Of a quarter of a step each: in how many of the steps the rank has to stall. Other faults: null."""
    longer: tuple[LongerRecording, ...]
    limited_by: DetectionLimit | None
    reason: str
    """What limits it, or why no size is found, and what would help."""


@dataclass(frozen=True)
class SensitivityResult:
    """What a recording can show: the smallest faults that triage would find in it."""

    faults: tuple[DetectableFault, ...]
    probability: float
    """With which the smallest fault is found."""
    false_alarm_rate: float
    """Of a triage of a healthy job, at which that is so."""
    step_time_us: float
    corrected_ranks: tuple[int, ...]
    """Ranks that stand out already: what makes them do so was taken out first."""
    corrected_links: tuple[str, ...]
    draws: int
    seed: int
    steps: tuple[int, ...]
    warnings: tuple[Notice, ...]
