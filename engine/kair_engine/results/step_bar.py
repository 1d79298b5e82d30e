"""Where the GPU-time of a step goes, in one bar that adds up to all of it."""

from typing import Final, Literal, get_args

from kair_engine.frozen import dataclass
from kair_engine.ranks import Rank

BarPart = Literal["compute", "bubble", "communication", "stragglers", "job_wide", "other"]
BAR_PARTS: Final[tuple[BarPart, ...]] = get_args(BarPart)
"""In the order in which a bar shows them."""
JobWidePart = Literal["input", "host"]
JOB_WIDE_PARTS: Final[tuple[JobWidePart, ...]] = get_args(JobWidePart)
BubbleFrom = Literal["replay", "one_program"]
"""How the bubble is known: from a replay of the ideal job, or because ranks that all run one program have none."""


@dataclass(frozen=True)
class PartOfBar:
    """One part of the bar."""

    part: BarPart
    """What the time goes into."""
    us: float
    """Per step and rank, the mean over both."""
    share: float
    """Of the GPU-time; the shares of a bar add up to 1."""


@dataclass(frozen=True)
class PartOfJobWide:
    """What `job_wide` is made of: the rank waits for input, or for its host (launches, cores, garbage collection)."""

    part: JobWidePart
    """What the time goes into."""
    us: float
    """Per step and rank, the mean over both."""
    share: float
    """Of the GPU-time."""


@dataclass(frozen=True)
class RankBar:
    """The bar of one rank."""

    rank: Rank
    """Its number in the job."""
    parts: tuple[PartOfBar, ...]
    """They add up to the step."""


@dataclass(frozen=True)
class StepBar:
    """What ranks do in the time of a step; each moment of each rank counts once.

    - compute: operators and memory copies run;
    - bubble: waiting for other ranks that the ideal job has too, as a pipeline fills and drains;
    - communication: transfers that nothing covers;
    - stragglers: the waiting for other ranks that the ideal job does not have; all of it where `bubble_from` is null;
    - job_wide: waiting for input, or for the rank's own host;
    - other: launched and not yet begun, or of launches and communication that the recording does not show.
    """

    step_time_us: float
    """Per rank, the mean over ranks and steps: what the parts add up to."""
    parts: tuple[PartOfBar, ...]
    """All, in their order, those of nothing too."""
    job_wide: tuple[PartOfJobWide, ...]
    """What the part of that name is made of."""
    bubble_from: BubbleFrom | None
    """Null where the ideal job cannot be replayed: then nobody knows the bubble, and `stragglers` is all waiting."""
    steps: int
    """How many steps the bar is of: the first ones, of large recordings."""
    unknown_us: float = 0.0
    """Per rank and step, communication that was not matched across ranks: how much of it is waiting, nobody knows. It
    counts in `other`, in a bar of one rank in `communication`."""
    ranks: tuple[RankBar, ...] = ()
    """The ranks that wait longest for stragglers, at most 64, in that order; empty in a bar of one rank."""
    names_straggler: bool = False
    """Whether the verdict names one. Else ranks wait for whoever comes last, which is nobody's fault."""

    def share(self, part: BarPart) -> float:
        """Of the GPU-time."""
        return next((one.share for one in self.parts if one.part == part), 0.0)

    @property
    def unknown_share(self) -> float:
        """Of the GPU-time, communication of which nobody knows how much is waiting."""
        return self.unknown_us / self.step_time_us if self.step_time_us else 0.0

    @property
    def waiting_is_known(self) -> bool:
        """False where nothing is known to be waiting, since communication was not matched: that is no waiting of 0."""
        return self.waiting_share > 0 or self.unknown_us <= 0

    @property
    def waiting_share(self) -> float:
        """Waiting for other ranks in all."""
        return self.share("bubble") + self.share("stragglers")
