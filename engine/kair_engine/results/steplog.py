"""What the log of a job says of its steps: changes, periods, spikes, ranks that print, and what to record next."""

from typing import Literal

from kair_engine.frozen import dataclass
from kair_engine.ranks import Rank

ChangeKind = Literal["slower", "drift", "slow_start", "faster"]
"""Steps take longer from one step on; or longer and longer; or took longer at the begin; or are faster."""
Contrast = Literal["peers", "past", "place", "moment"]
"""What a rank is compared with: other ranks; itself before the change; itself at other steps of the period; itself at
other steps than the slow ones."""


@dataclass(frozen=True)
class LogAttempt:
    """The steps of one start of the job."""

    number: int
    """From 1 on."""
    first_step: int
    """That has a line."""
    last_step: int
    """That has a line."""
    lines: int
    """Steps, or means of several, that have a time."""
    steps_per_line: int
    """1 where each step has a line."""
    step_us: float | None
    """The median; null where the log has no times but for a factor."""
    noise: float
    """What a step varies by, as a share of it."""
    warm_up_steps: int
    """At its begin, which are left out."""


@dataclass(frozen=True)
class LogChange:
    """A part of an attempt whose steps take longer, or less long, than those before."""

    kind: ChangeKind
    """How they change."""
    attempt: int
    """In which start of the job."""
    since: int
    """The first step of it."""
    since_range: tuple[int, int]
    """The first and last step that it may begin with."""
    until: int | None
    """The last step of it; null where it lasts to the end of the attempt."""
    until_range: tuple[int, int] | None
    """The first and last step that it may end with; null where it lasts."""
    steps: int
    """So many steps are in it."""
    p_value: float
    """At most so likely by chance anywhere in the attempt."""
    share: float
    """How much longer its steps take, as a share of the usual step; less than 0 where they are faster."""
    usual_us: float | None
    """What a step takes without it; null where only ratios are known."""
    extra_us_per_step: float | None
    """What its steps take more; null where only ratios are known."""
    gpu_hours: float | None
    """What it cost all ranks together; null where the log does not say how many there are."""
    phase: str | None = None
    """The phase of the step that grew most, of those that the log has; null where none makes up half of it."""
    independent_only: bool = False
    """Whether `p_value` holds only if the times of steps do not depend on each other: of short logs."""
    sentence: str = ""
    """The same for people."""


@dataclass(frozen=True)
class LogPeriod:
    """Steps that take longer at regular distances."""

    attempt: int
    """In which start of the job."""
    every: int
    """Steps."""
    first: int
    """The first step that it shows in."""
    repeats: int
    """Times that it came."""
    shown: int
    """Times that the step took longer."""
    p_value: float
    """At most so likely by chance anywhere in the attempt."""
    share: float
    """What it costs of all steps."""
    extra_us: float | None
    """How much longer such a step takes; null where only ratios are known."""
    extra_us_per_step: float | None
    """The same as a mean over all steps."""
    gpu_hours: float | None
    """What it cost all ranks together; null where the log does not say how many there are."""
    sentence: str = ""
    """The same for people."""


@dataclass(frozen=True)
class LogSpike:
    """A single step that took longer."""

    attempt: int
    """In which start of the job."""
    step: int
    """Its number."""
    p_value: float
    """At most so likely by noise alone, anywhere in the attempt."""
    share: float
    """How much longer it took, as a share of the usual step."""
    extra_us: float | None
    """The same; null where only ratios are known."""
    gpu_hours: float | None
    """What it cost all ranks together; null where the log does not say how many there are."""


@dataclass(frozen=True)
class LogRank:
    """A rank whose own lines set it apart."""

    rank: Rank
    """Its number in the job."""
    phase: str
    """In what it takes longer."""
    contrast: Contrast
    """What it was compared with."""
    excess_us: float
    """Per step that it shows in."""
    share_of_change: float | None
    """The same as a share of what the job's steps take longer; null where these did not change."""
    since: int | None
    """The step in which it began; null where it is so all the time."""
    p_value: float
    """Of all ranks together."""
    sentence: str = ""
    """The same for people."""


@dataclass(frozen=True)
class NextRecording:
    """What to record so that the rank can be named."""

    reason: Literal["standing", "period", "ended", "spikes", "means", "nothing"]
    """What the log shows, which decides how."""
    steps: int
    """Of each rank, those that are recorded."""
    ranks: int
    """Ranks to record."""
    every: int | None
    """Of a period: its length."""
    skip_first: int | None
    """Of a period: `torch.profiler.schedule` skips so many steps."""
    trigger_us: float | None
    """Of what ended: record once three steps in a row took longer than this."""
    gpu_hours: float | None
    """What the recording costs; null where the log does not say how long a step takes, or how many ranks there are."""
    is_below_floor: bool
    """Whether the change is so small that no number of steps names a rank."""
    commands: tuple[str, ...] = ()
    """What to run, or to write into the job."""
    sentence: str = ""
    """The same for people."""


@dataclass(frozen=True)
class CoursePart:
    """Some steps in a row, for drawing."""

    attempt: int
    """In which start of the job."""
    first_step: int
    """Of the part."""
    last_step: int
    """Of the part."""
    usual: float
    """The median step over the attempt's."""
    longest: float
    """The longest step over the attempt's median."""


@dataclass(frozen=True)
class LogOfSteps:
    """All that the log of a job says of its steps."""

    format: str
    """Who wrote it: `Megatron-LM`, `torchtitan`, …"""
    world_size: int | None
    """As the log says it; null where it does not."""
    attempts: tuple[LogAttempt, ...]
    """Starts of the job, in their order."""
    changes: tuple[LogChange, ...]
    """The costliest first."""
    periods: tuple[LogPeriod, ...]
    """The costliest first."""
    spikes: tuple[LogSpike, ...]
    """The longest ten."""
    spikes_in_all: int
    """So many there are."""
    ranks: tuple[LogRank, ...]
    """Whose own lines set them apart, the costliest first."""
    ranks_printed: int
    """Ranks that print lines of their own; 0 where nothing says whose a line is."""
    smallest_share: float
    """A change since the middle of the last attempt, by this share of the step, would have been found."""
    skipped: int
    """Steps that loss scaling skipped, which are left out."""
    next: NextRecording
    """What to record."""
    course: tuple[CoursePart, ...] = ()
    """Steps over time, in at most 240 parts."""
    by_work: bool = False
    """Whether times were divided by how many samples or tokens a step had."""
