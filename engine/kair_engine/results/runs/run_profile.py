"""A run's profile: what every operator takes on every rank, and how sure that is. Small enough to be kept."""

from dataclasses import dataclass
from statistics import fmean

from kair_engine.results.runs.changes import ChangeKind


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
    """One operator; a name of None is the time in which hosts alone kept their devices (or threads) idle."""

    operator: str | None
    kind: ChangeKind
    place: float
    """Where in the step it begins in the mean, as a share of it."""
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

    @property
    def step_time_us(self) -> float:
        """The mean over steps."""
        return fmean(self.step_times_us)
