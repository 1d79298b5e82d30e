"""Step times: over the ranks, and on each."""

from dataclasses import dataclass

from kair_engine.ranks import Rank
from kair_engine.results.common import TimedOn
from kair_engine.trace.model import KairWarning


@dataclass(frozen=True)
class StepTime:
    """One step on one rank."""

    step: int
    rank: Rank
    begin_us: float
    """From the first step's earliest begin, on the job's clock."""
    duration_us: float
    """On the device where hosts run ahead: from the end of the step before to the end of its last operation."""
    operations: int
    complete: bool
    host_us: float | None = None
    """What its host took for the step, from its mark's begin to its end; null where that is `duration_us`."""


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
class ScopeTime:
    """A part of the step on one rank, over all steps that capture kept."""

    scope: str
    """A phase, `self` (the step without waiting), `waiting` (in collectives), or a scope of the script."""
    rank: Rank | None
    """None for the median of all ranks."""
    steps: int
    """That tell it; sampled ones are left out, which the profiler makes longer."""
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
    steps: tuple[StepTime, ...]
    step_time_us: float
    """The mean over the complete steps of the median rank's time (of the longest rank's, where no collective makes
    ranks wait for one another): the step time of all commands."""
    warnings: tuple[KairWarning, ...]
    scopes: tuple[ScopeTime, ...] = ()
    """Those of a captured job, where they were asked for; the largest changes first."""
    timed_on: TimedOn = "host"
    """Whose times these are: the devices' where hosts run ahead of them."""
