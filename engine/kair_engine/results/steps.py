"""Step times: over the ranks, and on each."""

from dataclasses import dataclass

from kair_engine.ranks import Rank
from kair_engine.trace.model import KairWarning


@dataclass(frozen=True)
class StepTime:
    """One step on one rank."""

    step: int
    rank: Rank
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
    slowest_rank: Rank
    complete: bool
    slow: bool
    """Complete, and on its slowest rank a tenth longer than the median of the complete steps."""


@dataclass(frozen=True)
class StepsResult:
    """The time of every step, over the ranks and on each."""

    summary: tuple[StepSummary, ...]
    steps: tuple[StepTime, ...]
    step_time_us: float
    """The mean over the complete steps of the median rank's time (of the longest rank's, where no collective makes
    ranks wait for one another): the step time of all commands."""
    warnings: tuple[KairWarning, ...]
