"""What was predicted of jobs and what came of it; and the records of devices, links and hosts over all jobs."""

from dataclasses import field
from typing import Literal

from kair_engine.frozen import dataclass
from kair_engine.ranks import Rank
from kair_engine.results.triage import DeviceRecord, Pattern, PricedBy
from kair_engine.trace.model import KairWarning

PredictionKind = Literal["finding", "proposal"]
Came = Literal["came_true", "less", "more", "open", "not_comparable"]
"""`came_true`: what was saved differs from the prediction by no more than a tenth of it and the noise of both step
times; `open`: the job has not run without it; `not_comparable`: it has, and nothing follows from that."""
RanWithout = Literal["same_run", "next_attempt", "next_job"]
WhyNotComparable = Literal[
    "few_steps", "noisy", "other_samples", "other_work", "other_world_size", "other_framework", "together"
]
"""`few_steps`: too few of them without it, or with it; `noisy`: steps differ by more than what was predicted;
`other_samples`: ranks take other numbers of samples now; `other_work`: a step has other operations, or nothing shows
that it has the same; `together`: others of the job ended at the same step."""


@dataclass(frozen=True, kw_only=True)
class LedgerEntry:
    """One prediction, and what came of it."""

    kind: PredictionKind
    """What predicted: a finding's price, or a proposal of `kair mitigate`."""
    job: str
    """The name of its job."""
    run: str
    """Which run of the job: `attempt 2`, or the digest of the recording."""
    at: str
    """When it was predicted last, while the fault was there; UTC, ISO 8601."""
    about: str
    """The finding's cause; of a proposal its action: `adjust_bs`."""
    ranks: tuple[Rank, ...] = ()
    """Who was accused; empty where nobody was."""
    hosts: tuple[str, ...] = ()
    """Where these ran."""
    devices: tuple[str, ...] = ()
    """UUIDs of their devices, as far as these are known."""
    part: str | None = None
    """The part that evidence explained it by; null where none did."""
    pattern: Pattern | None = None
    """As of the finding; null of a proposal."""
    since: int | None = None
    """The step in which it began, where that was known."""
    first_step: int = 0
    """The first step that the prediction was made from."""
    last_step: int = 0
    """The last of them."""
    step_time_us: float = 0.0
    """What a step took then."""
    predicted_us: float = 0.0
    """What a step is shorter by without it."""
    throughput_gain: float = 0.0
    """Steps per time without it, over those with it, less 1."""
    priced_by: PricedBy | None = None
    """As of the finding; null of a proposal, which is replayed."""
    number: int | None = None
    """Of the proposal."""
    sizes: tuple[int, ...] = ()
    """Samples of each rank in a step, as proposed."""
    decision: str | None = None
    """Of the proposal: `open`, `approved`, `denied` or `replaced`."""
    came: Came = "open"
    """What came of it."""
    without: RanWithout | None = None
    """What ran without it: the same run, a later attempt, or the next job; null while nothing did."""
    without_run: str | None = None
    """That job, and its run; null where it is the same."""
    from_step: int | None = None
    """The first step without it."""
    actual_us: float | None = None
    """What a step is shorter by in fact; null where that is not known."""
    noise_us: float | None = None
    """By how much that may be off: twice its standard error."""
    ratio: float | None = None
    """`actual_us` over `predicted_us`."""
    steps_with: int = 0
    """Steps that were compared, with it."""
    steps_without: int = 0
    """And without it."""
    why: WhyNotComparable | None = None
    """Why nothing can be compared; null where it can."""

    @property
    def begin(self) -> int:
        """The step from which on it was there."""
        return self.first_step if self.since is None else self.since

    @property
    def has_come(self) -> bool:
        """Whether the job ran without it, comparably."""
        return self.came in ("came_true", "less", "more")


@dataclass(frozen=True, kw_only=True)
class RunOfRank:
    """A rank of a run that was triaged."""

    rank: int
    """The rank."""
    role: str
    """Peers have the same."""
    host: str | None
    """Where it ran."""
    device: str | None
    """The UUID of its device; where only its address is known, that behind the host: `node-7 0000:1b:00.0`."""
    nics: tuple[str, ...]
    """In use, or nearest to its device."""
    driver: str | None
    """The version of the device's driver."""
    excess_share: float
    """What it takes longer by itself than its peers, as a share of the step."""
    accused: bool
    """Whether a finding accuses it."""


@dataclass(frozen=True, kw_only=True)
class JobRun:
    """A run that was triaged in all its steps, as far as later runs are compared with it."""

    job: str
    """The name of its job."""
    run: str
    """As of an entry."""
    at: str
    """When it ran, if its clock shows that, else when it was triaged; UTC, ISO 8601."""
    world_size: int
    """Ranks of the job."""
    framework: str | None
    """`torch` or `xla`; null where that is not known."""
    samples: float | None
    """Of all ranks in a step; null if the job does not report it."""
    operations: float | None
    """Recorded operations of a rank in a step; null of a run that was not recorded."""
    step_time_us: float
    """The median over its steps."""
    noise_us: float | None
    """The standard error of that; null if there are too few steps."""
    steps: int
    """How many there were."""
    causes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """What was found: cause → hosts that it was found on."""
    ranks: tuple[RunOfRank, ...] = ()
    """Those that can be compared."""


@dataclass(frozen=True)
class CameOfCause:
    """The predictions for one cause, or of one action."""

    about: str
    """The cause or action."""
    predictions: int
    """How many were made."""
    came: int
    """Of how many the job ran without it, comparably."""
    came_true: int
    """Within a tenth."""
    less: int
    """A step became shorter by less."""
    more: int
    """A step became shorter by more."""
    open: int
    """The job has not run without it."""
    not_comparable: int
    """It has, and nothing follows from that."""
    median_ratio: float | None
    """What was saved over what was predicted, the median; null where nothing came."""


@dataclass(frozen=True)
class LedgerSummary:
    """How predictions came out in all."""

    predictions: int
    """How many were made."""
    came: int
    """Of how many the job ran without it, comparably."""
    came_true: int
    """Within a tenth."""


@dataclass(frozen=True)
class LedgerResult:
    """What was predicted, and what came true."""

    store: str
    """The store."""
    summary: LedgerSummary
    """In all."""
    causes: tuple[CameOfCause, ...]
    """By cause, those first that were predicted most often."""
    entries: tuple[LedgerEntry, ...]
    """The newest first."""
    records: tuple[DeviceRecord, ...]
    """Devices, hosts and links that are slow in job after job."""
    warnings: tuple[KairWarning, ...]
    """About lines that are damaged and left out."""
