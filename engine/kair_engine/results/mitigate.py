"""What is done about a job's stragglers: the answer of `kair mitigate`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from kair_engine.trace.model import KairWarning

MitigateAction = Literal[
    "status",
    "plan",
    "leave",
    "approve",
    "deny",
    "undo",
    "history",
    "audit",
    "control",
    "simulate",
    "drain",
    "run",
    "shards",
]


@dataclass(frozen=True)
class MitigationPlan:
    """Which rank takes how many samples of a step, from a step on."""

    version: int
    """Plans are numbered as they are ordered; 0 is what the job began with."""
    from_step: int
    """Not before; the ranks take it as soon as none of them has fetched farther."""
    sizes: tuple[int, ...]
    """Per rank."""
    kind: Literal["sizes", "leave"]
    """`leave`: the job checkpoints after that step, ends, and is started anew with these sizes."""
    ordered_at: str | None = None
    """UTC, ISO 8601; null of what the job began with."""
    ordered_by: str | None = None
    """`auto`, or a user."""
    proposal: int | None = None
    """The number of the proposal that it carries out."""
    began: int | None = None
    """The step from which on it was in force; null where it was not yet, or that is no longer remembered."""
    batches: tuple[int, ...] = ()
    """Per rank, in how many batches it takes its samples of a step; empty where all take as many."""
    deadline_us: int | None = None
    """A rank that computes longer in a step leaves its other batches for a later one; null where none does."""
    learning_rate: float = 1.0
    """The job's own learning rate is multiplied by this: other than 1 where a step has other samples than the job's."""
    claims: bool = False
    """Whether ranks claim their samples while a step runs, in place of `sizes`, `batches` and the deadline."""


@dataclass(frozen=True)
class MitigationProposal:
    """What a policy would do, and what that is worth."""

    number: int
    """As `kair mitigate approve JOB NUMBER` takes it."""
    proposed_at: str
    """UTC, ISO 8601."""
    action: str
    """`adjust_bs`, `adjust_lr` (other samples a step, and another learning rate), `backup_workers` (a deadline),
    `claim` (ranks claim their samples while a step runs) or `kill_restart`."""
    sizes: tuple[int, ...]
    """Per rank; empty where none change."""
    figures: Mapping[str, float]
    """By what it was decided: times in seconds, shares, counts."""
    decision: Literal["open", "approved", "denied", "replaced"]
    """`replaced` before anybody decided; `why` has the reason."""
    decided_by: str | None
    """`auto`, or a user; null while it is open."""
    batches: tuple[int, ...] = ()
    """As of a plan; empty where these stay."""
    deadline_us: int | None = None
    """As of a plan; null where it stays."""
    learning_rate: Literal["linear", "sqrt", "keep"] | None = None
    """How it follows the samples of a step; null where that stays."""
    why: str | None = None
    """Why it was replaced; null where it was not."""


@dataclass(frozen=True)
class RankRate:
    """What a sample costs a rank."""

    rank: int
    """The rank."""
    us_per_sample: float
    """What one more sample takes."""
    fixed_us: float
    """Of a step, whatever its samples; 0 until two sizes were seen."""
    samples: int
    """In the plan in force."""


@dataclass(frozen=True)
class MitigationShards:
    """How far workers that claim shards are in the newest epoch."""

    epoch: int
    """Counted from 0."""
    todo: int
    """Shards that nobody has."""
    doing: int
    """In a worker's hands."""
    done: int
    """Trained."""
    quarantined: int
    """Left out, since their workers failed again and again."""
    epochs: int = 0
    """How many there are to be."""


@dataclass(frozen=True)
class SimulatedPolicy:
    """One policy in simulated jobs, averaged over draws."""

    policy: str
    """Its name, as `--policy` takes it."""
    pattern: str
    """What is wrong in the jobs that it was played against; `as recorded` of a job that was watched."""
    ranks: int
    """Of each job."""
    speed_up: float
    """Over even batches that are never changed."""
    resizes: float
    """In a thousand steps."""
    restarts: float
    """In a job."""
    redone_share: float
    """Of the samples, those that came again since a deadline cut them off."""
    step_us: float | None = None
    """With it, the mean step of the recorded job; null, as all below, where the jobs are not recorded."""
    saved_us: float | None = None
    """Of the recorded mean step, averaged over what was assumed and drawn; below 0 if it is longer."""
    least_saved_us: float | None = None
    """At the least of these."""
    most_saved_us: float | None = None
    """At the most of these."""
    sizes: tuple[int, ...] = ()
    """Per rank, what it ordered last; empty where it left them."""
    deadline: float | None = None
    """Ranks leave off after this many times what the median unit computes; null where none was ordered."""
    spare: int = 0
    """So many of the slowest units are not waited for."""
    first_after: int | None = None
    """Steps until its first order; null where it ordered nothing."""


@dataclass(frozen=True)
class RecordedReplay:
    """The recorded job that policies were replayed on."""

    steps: int
    """That were recorded, by all ranks."""
    step_us: float
    """Their mean length, of the rank that took longest."""
    played: int
    """Steps that each policy was played for: the recorded ones in order, or drawn from them where they are few."""
    fixed_shares: tuple[float, ...]
    """Shares of a rank's own time that were assumed not to depend on its batch, each in turn."""
    sizes: tuple[int, ...]
    """Per rank, the samples of a step at first."""
    units: tuple[tuple[int, ...], ...]
    """Ranks that are resized together."""
    saves: str | None
    """The policy that saves most; null where none surely saves a twentieth of a step."""
    is_assumed: bool = False
    """Whether ranks are taken to be independent, since the recording does not show who meets in every micro-batch."""
    is_in_per_cent: bool = False
    """Whether no samples are known, so that sizes are per cent of the present ones."""


@dataclass(frozen=True)
class AuditedRange:
    """Samples of an epoch, as places of its order."""

    epoch: int
    """Counted from 0."""
    begin: int
    """The first place."""
    end: int
    """The first place after them."""
    file: str | None = None
    """The places are records of that; null where shards are no files."""


@dataclass(frozen=True)
class WorkerSamples:
    """What a worker that claims shards has trained."""

    worker: str
    """Its name."""
    samples: int
    """Those that count, over all epochs."""


@dataclass(frozen=True)
class MitigationAudit:
    """Whether every sample was trained once an epoch."""

    samples: int
    """Of an epoch."""
    epochs: int
    """Whole ones."""
    counted: int
    """Samples, over all epochs."""
    missing: tuple[AuditedRange, ...]
    """Never trained."""
    twice: tuple[AuditedRange, ...]
    """Trained twice or more often."""
    workers: tuple[WorkerSamples, ...] = ()
    """Of workers that claim shards, those first that trained the most."""


@dataclass(frozen=True)
class MitigateResult:
    """Where a job's data stands, what is in force, proposed and ordered."""

    store: str
    """The store; empty in Python and on the full screen, where policies are replayed."""
    action: MitigateAction
    """What was asked for."""
    job: str
    """The job's name; empty where policies are simulated without one."""
    step: int | None = None
    """The next; null before the job said anything."""
    epoch: int | None = None
    """Of the next step."""
    samples: int | None = None
    """Of an epoch."""
    done: int | None = None
    """Samples of this epoch that were trained."""
    doing: int | None = None
    """Samples that are fetched ahead."""
    attempt: int | None = None
    """How often the job was started anew."""
    plan: MitigationPlan | None = None
    """In force."""
    coming: tuple[MitigationPlan, ...] = ()
    """Heard by the job, and not in force yet."""
    in_force: tuple[MitigationPlan, ...] = ()
    """What the ranks took, each from its step on: the oldest that is remembered first, the plan in force last."""
    said_at: str | None = None
    """When the job said where it stands; UTC, ISO 8601."""
    shards: MitigationShards | None = None
    """Of workers that claim shards; null where no shard service keeps its database in the job's folder."""
    rates: tuple[RankRate, ...] = ()
    """Of a job that is captured, too."""
    proposals: tuple[MitigationProposal, ...] = ()
    """The newest first."""
    history: tuple[MitigationPlan, ...] = ()
    """Plans that were ordered, the newest first."""
    simulated: tuple[SimulatedPolicy, ...] = ()
    """With `simulate`."""
    replay: RecordedReplay | None = None
    """With `simulate` and a recording."""
    audited: MitigationAudit | None = None
    """With `audit`."""
    commands: tuple[str, ...] = ()
    """With `drain`: what takes the host out of its scheduler's hands, as a shell has it."""
    drained: bool = False
    """Whether they were run."""
    warnings: tuple[KairWarning, ...] = ()
