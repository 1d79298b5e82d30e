"""What changed between two runs: operators, sub-graphs, ranks, and the step time that follows from it.

A run's profile: what every operator takes on every rank, and how sure that is. Small enough to be kept.

Saved baselines, and what was done to them.
"""

from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal

from kair_engine.ranks import Rank
from kair_engine.results.localize import ChangeKind, OperatorChange
from kair_engine.results.step_bar import StepBar
from kair_engine.trace.identity import RankIdentity
from kair_engine.trace.model import KairWarning

CompareVerdict = Literal["changed", "no_change", "inconclusive"]
PoolKind = Literal["compute", "hosts", "communication"]


@dataclass(frozen=True)
class ComparedRun:
    """One of the two runs."""

    name: str
    """Of the job."""
    source: str
    """Where it was read from; of a saved baseline the job that it was made of."""
    world_size: int
    """Ranks of the job, whether or not they left a trace."""
    ranks: tuple[Rank, ...]
    """Their numbers, sorted."""
    steps: int
    """How many are compared."""
    step_time_us: float
    """The mean over steps."""
    bar: StepBar | None = None
    """Where its steps go; null of a saved baseline."""


@dataclass(frozen=True)
class PooledChange:
    """Operators of one kind of which none changed beyond chance alone, but which did together.

    Times are self times of a mean rank in a step, as those of single operators.
    """

    kind: PoolKind
    """What the time is: of hosts input and the time in which a host kept its device (or thread) idle."""
    operators: int
    """How many they are."""
    base_us: float
    """In the base run."""
    new_us: float
    """In the new run."""
    ratio: float | None
    """New over base; null where the base run has none."""
    p_value: float
    """Corrected for all pools."""
    step_us: float | None = None
    """What they add to the step together, by replay; null: not replayed."""
    share_of_step: float | None = None
    """The same over the base run's step time."""


@dataclass(frozen=True)
class SubgraphChange:
    """A phase of the step, or a pipeline stage: its ranks' own compute."""

    subgraph: str
    """Its name: `forward`, `stage 1`."""
    sort: Literal["phase", "stage"]
    """Which of both it is."""
    base_us: float
    """A rank's own compute in it per step, in the base run."""
    new_us: float
    """The same in the new run."""
    ratio: float | None
    """New over base; null where the base run has none."""
    p_value: float
    """Corrected for all phases and stages."""
    changed: bool
    """Whether that is beyond chance, and more than the smallest change that is reported."""


@dataclass(frozen=True)
class ComparedOperator:
    """An operator of both runs, or of one."""

    operator: str | None
    """Null: the time in which hosts kept their devices (or threads) idle, or compiled."""
    was: str | None
    """Its name in the base run, where that is another."""
    kind: ChangeKind
    """What the time is."""
    base_us: float | None
    """Null where the base run lacks it."""
    new_us: float | None
    """Null where the new run lacks it."""
    ratio: float | None
    """New over base; null where a run lacks it."""
    base_calls: float | None
    """Per step and rank."""
    new_calls: float | None
    """The same in the new run."""
    p_value: float | None
    """That it is the same on all ranks; null of operators too short to be tested."""


@dataclass(frozen=True)
class RankStanding:
    """A rank that one of the runs flags, and the other does not."""

    rank: Rank
    """Its number in the job."""
    host: str | None
    """Where it runs; null where that is not recorded."""
    base_flagged: bool
    """Whether the base run sets it apart from its peers."""
    new_flagged: bool
    """Whether the new run does."""
    base_score: float
    """Stage 1's score in the base run."""
    new_score: float
    """The same in the new run."""


@dataclass(frozen=True)
class CompareResult:
    """What changed between two runs, and how much of the step time's change that explains."""

    verdict: CompareVerdict
    """Whether a rank, host or link is accused, the whole job is slowed, nobody is, or that is open."""
    base: ComparedRun
    """The run before."""
    new: ComparedRun
    """The run after."""
    step_change_us: float
    """The new run's step time less the base run's."""
    step_change_share: float
    """The same over the base run's step time."""
    step_p_value: float
    """That the step times do not differ."""
    changes: tuple[OperatorChange, ...]
    """Beyond chance, what adds or saves most first."""
    pools: tuple[PooledChange, ...]
    """Of the other operators those that changed beyond chance only together, by kind; what adds or saves most first."""
    explained_us: float | None
    """What all changes and pools together add to the step, by replay; null where nothing was replayed."""
    unexplained_us: float | None
    """The rest of the step time's change: noise up to `noise_us`, beyond that what no reported change explains."""
    noise_us: float | None
    """So far apart the mean steps of two runs that do not differ are in one of a hundred comparisons, by how much steps
    of these runs vary; null of a single step."""
    standing: tuple[RankStanding, ...]
    """Ranks that one run flags and the other does not, the highest score in the new run first."""
    subgraphs: tuple[SubgraphChange, ...]
    """Phases in the order of a step, then pipeline stages."""
    operators: tuple[ComparedOperator, ...]
    """All of them, the largest difference first."""
    warnings: tuple[KairWarning, ...]


@dataclass(frozen=True)
class Amount:
    """Self time per step, in µs: one entry per rank of the run."""

    by_rank_us: tuple[float, ...]
    """20 %-trimmed mean over the steps that the rank recorded; 0 where it never ran."""
    error_us: tuple[float, ...]
    """Standard error of that, by Yuen's winsorised variance; steps that resemble one another count for less."""
    df: float
    """Degrees of freedom of these errors."""


@dataclass(frozen=True)
class OperatorProfile:
    """One operator; a name of None is the time in which hosts alone kept their devices (or threads) idle: of the kind
    `compilation` by compiling, of the kind `host` by all else."""

    operator: str | None
    kind: ChangeKind
    place: float
    """Where in the step it begins on average, as a share of the step."""
    calls: float
    """Per step, the mean of the ranks that run it."""
    amount: Amount


@dataclass(frozen=True)
class SubgraphProfile:
    """The compute of one phase."""

    phase: str
    amount: Amount


@dataclass(frozen=True)
class RunProfile:
    """What a run spends its steps on."""

    name: str
    source: str
    format: str
    has_device: bool
    world_size: int
    ranks: tuple[int, ...]
    hosts: dict[int, str]
    stages: dict[int, int]
    """rank → pipeline stage, where that is known."""
    sizes: tuple[int | None, int | None]
    """Pipeline stages and tensor-parallel ranks."""
    step_times_us: tuple[float, ...]
    operators: tuple[OperatorProfile, ...]
    phases: tuple[SubgraphProfile, ...]
    identity: dict[int, RankIdentity] = field(default_factory=dict)
    """rank → who it was and what it ran with, of a kept one, where that was known."""

    @property
    def step_time_us(self) -> float:
        """The mean over steps."""
        return fmean(self.step_times_us)


BaselineAction = Literal["save", "list", "use", "rm"]


@dataclass(frozen=True)
class SavedBaseline:
    """What a healthy run spent its steps on, kept under a name."""

    name: str
    """That name."""
    in_use: bool
    """Whether localize and triage compare runs with it."""
    saved_at: str
    """UTC, ISO 8601."""
    job: str
    """The run that it was made of."""
    source: str
    """Where that was read from."""
    world_size: int
    """Ranks of the job, whether or not they left a trace."""
    steps: int
    """How many it was made of."""
    operators: int
    """How many it knows."""
    step_time_us: float
    """The mean over steps."""


@dataclass(frozen=True)
class BaselineResult:
    """The store's baselines, after what was asked for was done."""

    store: str
    """The folder of the job store."""
    action: BaselineAction
    """What was asked for."""
    name: str | None
    """The baseline that was saved, put to use or removed; null of a list, and where none is in use any more."""
    current: str | None
    """The one in use."""
    baselines: tuple[SavedBaseline, ...]
    """By name."""
