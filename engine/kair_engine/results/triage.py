"""The verdict: findings, and every rank's place in the ranking.

Evidence: what speaks for a finding, as figures, and the analysis that shows the same ones.
"""

from typing import Literal

from kair_engine.causes import Cause
from kair_engine.frozen import dataclass
from kair_engine.ranks import Rank
from kair_engine.results.confirm import ConfirmRun
from kair_engine.results.evidence import Difference, Explanation, Happening
from kair_engine.results.evidence_kinds import Evidence
from kair_engine.results.localize import AgainstBaseline
from kair_engine.results.rank import PartOfStep
from kair_engine.results.step_bar import StepBar
from kair_engine.results.steplog import LogOfSteps
from kair_engine.results.warning_kinds import AnyWarning
from kair_engine.results.whatif import Fix, FixPrice
from kair_engine.trace.measures import EvidenceSource

Verdict = Literal["straggler", "job_wide", "no_straggler", "inconclusive"]


PricedBy = Literal["replay", "excess", "growth"]
"""The job replayed without the culprit; the culprit's excess, no more than its punctuality would have spared; or what
the job's recorded steps grew by since it is slow."""


Pattern = Literal["persistent", "intermittent", "group", "job_wide"]


@dataclass(frozen=True)
class RankedRank:
    """One rank in the triage's ranking, the most suspicious first."""

    rank: Rank
    """Its number in the job."""
    host: str | None
    """Where it runs; null where that is not recorded."""
    role: str
    """The ranks that run the same program; only those are compared."""
    score: float
    """How far it stands out; larger is more suspicious."""
    flagged: bool
    """Whether a test sets it apart from its peers."""
    self_time_excess_us: float
    """µs per step of its self time beyond its role's median, waiting excluded: in usual steps, without the extreme
    ones, which large delays are."""
    wait_imposed_us: float | None
    """µs per step that other ranks, summed, waited for it; None where nothing that was recorded shows it."""


@dataclass(frozen=True)
class TrackRecord:
    """How predictions for one cause came out: what a step was shorter by, once the job ran without it."""

    came: int
    """Of so many the job ran without it."""
    came_true: int
    """Of so many of those the prediction was right within a tenth."""


@dataclass(frozen=True)
class DeviceRecord:
    """A device, host or link that is slower than its peers in job after job, tested anew with each."""

    kind: Literal["device", "host", "nic"]
    """What it is of."""
    name: str
    """A device's UUID; where that is unknown its address behind the host; a host; a link behind its host."""
    jobs: int
    """Runs in which it had peers, since the change where there was one."""
    slow_in: int
    """In how many of them it was slower than these by a hundredth of the step or more."""
    slow_share: float
    """By how much, as a share of the step: the median over those."""
    jobs_before: int
    """Runs before the change; 0 where there was none."""
    slow_before: int
    """In how many of them it was slow."""
    since: str | None
    """When the first run after the change was, UTC, ISO 8601; null where there was none."""
    driver_before: str | None
    """The driver's version before the change; null where that did not change."""
    driver_since: str | None
    """The driver's version after it."""
    chance: float
    """At most so likely would any unit of the store come to this by chance, however often one looks."""
    by_address: bool
    """Whether a device is known by its address alone: it may be another one since."""
    always_rank: int | None
    """The rank that it had in all of these runs, whose own work it may be; null where it had several."""
    ranks: tuple[Rank, ...] = ()
    """Who runs on it in this job; empty where no job was asked about."""


@dataclass(frozen=True)
class Finding:
    """One culprit."""

    cause: Cause
    """Why the time is lost."""
    pattern: Pattern
    """Whether it is of one rank all the time or now and then, of a group, or of the whole job."""
    ranks: tuple[Rank, ...]
    """Who is to blame; empty where nobody is."""
    hosts: tuple[str, ...]
    """Of those ranks, or of those that it was seen on."""
    operator: str | None
    """Its name in the recording; null where no single one can be named."""
    edge: str | None
    """`from → to` where the delay lies between two operations or two ranks."""
    steps: tuple[int, ...]
    """In which it shows."""
    p_value: float | None
    """Family-wise: corrected for everything tried in this triage."""
    time_lost_us_per_step: float
    """What a step would be shorter by without this culprit alone, with all others as they are."""
    slowdown: float
    """Step time over the step time without this culprit (1.0 = no effect)."""
    evidence: tuple[Evidence, ...]
    """What speaks for it, in the order in which it is shown."""
    throughput_gain: float = 0.0
    """Steps per time without this culprit, over those with it, less 1."""
    gpu_hours_per_day: float = 0.0
    """Of all devices of the job, what it costs."""
    cost_per_day: float | None = None
    """In the currency of what a GPU hour costs; null where that was not given."""
    currency: str | None = None
    """Of `cost_per_day`, such as `USD`; null where none was given."""
    priced_by: PricedBy = "excess"
    """A replay of the job without it, its excess where no replay can price it, or what recorded steps grew by."""
    seen_on: tuple[Rank, ...] = ()
    """Where it shows though nobody is to blame; empty where somebody is."""
    since: int | None = None
    """The step in which it began, where that was within the recording."""
    until: int | None = None
    """The last step in which it showed, where it was over by then; null where it lasts, or comes and goes."""
    every: int | None = None
    """It comes by a schedule, so many steps apart; null where it does not."""
    time_lost_us_per_slow_step: float | None = None
    """The same as `time_lost_us_per_step`, as a mean over `steps` and not over all steps; null but where it is over, or
    comes by a schedule."""
    fix: tuple[Fix, ...] = ()
    """What undoes it, all together; empty where no fix does."""
    scope: str | None = None
    """The part of the step that takes longer, by the history of steps: `forward`, `backward`, `optimizer`,
    `input`, `loop` (none of these) or a scope of the script; null where no part makes up half, or no history is known.
    """
    framework: str | None = None
    """Of the job: `torch`, or `xla` (JAX, TensorFlow); null where that is not known."""
    devices: tuple[str, ...] = ()
    """Of its ranks, as one looks them up: `node-7 GPU 3, GPU-5f3e…, 0000:1b:00.0`; empty where none is known."""
    explanations: tuple[Explanation, ...] = ()
    """What telemetry and logs say of the parts that could make it so; empty where there is no evidence."""
    track_record: TrackRecord | None = None
    """How earlier prices for this cause came out, in the same store; null where fewer than five did."""
    least_us_per_step: float | None = None
    """Where several are accused, its part of `accused_together`, at least: what fixing it first saves, or what it costs
    once all the other accused are fixed, whichever is less. Null where that was not replayed."""
    most_us_per_step: float | None = None
    """The same at most: whichever of the two is more."""
    suggestion: str = ""
    """What to do about it."""
    fix_options: tuple[str, ...] = ()
    """`fix` as options of `kair whatif`: `--fix rank=3+kind=compute`."""

    @property
    def shows(self) -> frozenset[str]:
        """Return the kinds of its evidence."""
        return frozenset(one.kind for one in self.evidence)

    @property
    def costs_us(self) -> float:
        """What it costs per step at most: of several that hide one another, more than it costs alone."""
        return max(self.time_lost_us_per_step, self.most_us_per_step or 0.0)


@dataclass(frozen=True)
class SmallestSeen:
    """The smallest slowness of one rank in every step that the history of steps would have shown."""

    us_per_step: float
    """More than its peers take, in every step."""
    share_of_step: float
    """The same as a share of the median step."""
    steps: int
    """That the history has."""


@dataclass(frozen=True)
class Absorbed:
    """A delay of ranks' hosts that costs nothing: they are ahead of their devices, which never wait for it."""

    ranks: tuple[Rank, ...]
    """Their numbers, sorted."""
    cause: Cause
    """Why the time is lost."""
    operator: str | None
    """Its name in the recording; null where no single one can be named."""
    longer_us_per_step: float
    """Than on the ranks' peers."""
    costs_us_per_step: float
    """What the replay saves without it."""
    ahead_us: float | None
    """From a launch to the begin of what it launches, the shortest of all; null where that is no longer than a launch
    takes: then the device waits now and then, for nothing that costs."""
    slack_us_per_step: float
    """So much longer the hosts could take in every step."""
    sentence: str = ""
    """The figures in words, for people."""


OpenKind = Literal[
    "unrecorded",
    "unmatched",
    "event",
    "uneven",
    "waiting",
    "unseen_waiting",
    "changed",
    "idle",
    "groups_differ",
    "no_peer",
    "few_steps",
]
"""`open_kinds.py` says what each is."""


@dataclass(frozen=True)
class OpenItem:
    """A part of the step that no finding explains: how much, on whom, in which steps."""

    kind: OpenKind
    """What is open."""
    ranks: tuple[Rank, ...]
    """Whom it is about: who is waited for, or who takes longer; empty where that is nobody in particular."""
    steps: tuple[int, ...]
    """In which steps; empty where it is in all of them. Of `changed`, those since the change."""
    us_per_step: float
    """What it costs a step, as a mean over all steps; of `unrecorded` at least so much."""
    share_of_step: float
    """The same as a share of the step."""
    cause: Cause | None = None
    """Why the time is lost."""
    operator: str | None = None
    """What runs meanwhile on these ranks; null where that was not recorded."""
    where: str | None = None
    """The link, process group, host or scope that it is in: `rank 1 → rank 2`, `mesh_cp`; null where none is known."""
    took_us: float | None = None
    """How long the longest of `steps` took, of `changed` the median one of them; null for all other kinds."""
    usual_us: float | None = None
    """How long the median step of the others took; null with `took_us`."""
    replayed_us: float | None = None
    """Of `waiting` for ranks that a test sets apart: what a replay without their delay saves; null where none does."""
    more_steps: int | None = None
    """So many more recorded steps would settle it; null where more steps do not, or how many is not known."""
    sentence: str = ""
    """How much, on whom, in which steps."""
    settled_by: str = ""
    """What would settle it."""

    @property
    def is_whole(self) -> bool:
        """Whether it is the whole step, since no rank can be tested."""
        return self.kind in {"no_peer", "few_steps"} and self.share_of_step >= 1


@dataclass(frozen=True)
class TriageResult:
    """The whole investigation."""

    verdict: Verdict
    """Whether a rank, host or link is accused, the whole job is slowed, nobody is, or that is open."""
    findings: tuple[Finding, ...]
    """Culprits, and what slows the job though nobody is to blame; the costliest first."""
    ranking: tuple[RankedRank, ...]
    """Every rank, the most suspicious first."""
    step_time_us: float
    """The mean over steps."""
    waiting_us_per_step: float | None
    """What all ranks, summed, waited; None where nothing that was recorded shows it."""
    unattributed_us_per_step: float | None
    """What was waited for no known cause, summed over ranks; None where no waiting is traced to its cause."""
    steps: tuple[int, ...]
    """Those that were analysed."""
    warnings: tuple[AnyWarning, ...]
    together: FixPrice | None = None
    """All findings that were replayed, fixed at once; null for fewer than two."""
    accused_together: FixPrice | None = None
    """Of them those that accuse somebody, however many, fixed at once; null for fewer than two."""
    parts: tuple[PartOfStep, ...] = ()
    """Where the step goes, of a recording of one rank alone; else empty, as `kair rank` has it."""
    absorbed: tuple[Absorbed, ...] = ()
    """Delays of hosts that are ahead of their devices and cost nothing: nobody is accused of them."""
    against_baseline: AgainstBaseline | None = None
    """What takes longer than in the chosen baseline, which no peer shows; null where none is chosen. No finding: a
    baseline shows that it is slower, not why."""
    unseen: SmallestSeen | None = None
    """Where no rank is accused, and the history of steps is known: a rank that is slower by this would have been."""
    history_steps: int = 0
    """Steps of the history that were looked at, sampled or not; 0 where none is known."""
    is_sampled: bool = True
    """Whether operations of these steps were recorded; else the verdict is by the times of steps alone."""
    confirmed: ConfirmRun | None = None
    """What `kair confirm` found last of the rank that is accused first, else of any; null where it was not asked."""
    differences: tuple[Difference, ...] = ()
    """What few ranks have and the others have not, what changed since the attempt before or since a healthy job."""
    happenings: tuple[Happening, ...] = ()
    """Events near the begin of what was found."""
    sources: tuple[EvidenceSource, ...] = ()
    """Where evidence next to the recording is from; empty if nothing was found there."""
    records: tuple[DeviceRecord, ...] = ()
    """Of the job's devices, hosts and links those that are slow in job after job of the store."""
    bar: StepBar | None = None
    """Where the GPU-time of the steps goes; null where no times are recorded."""
    open: tuple[OpenItem, ...] = ()
    """What no finding explains, the largest first."""
    smallest_share: float | None = None
    """The smallest share of the step that would have been found or listed in `open`: nothing larger is hidden in the
    recording. Null where that is not known."""
    log: LogOfSteps | None = None
    """What the job's log says of its steps; null where no log was asked about."""
    summary: str = ""
    """The answer in one sentence."""
