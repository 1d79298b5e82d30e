"""What random delays in a running job showed: how much the step grows by them, and what that says of a rank."""

from dataclasses import dataclass
from typing import Literal

from kair_engine.ranks import Rank
from kair_engine.trace.model import KairWarning

DelayedArm = Literal["accused", "others", "all", "rank"]
"""Who was delayed: the accused ranks, all but them, all ranks; or one rank among a random half."""

DelayPlace = Literal[
    "after_input",
    "before_forward",
    "before_backward",
    "in_backward",
    "before_optimizer",
    "each_micro_batch",
]

ConfirmVerdict = Literal["confirmed", "withdrawn", "shared", "not_here", "open"]
"""The accused hold up the job; others do, and the accused have slack; several are equally late; delays at this place
lengthen no step; not decided yet. Where nobody is accused: one rank holds up the job, or none alone does (shared)."""


@dataclass(frozen=True)
class DelayEffect:
    """By how much the step grows where some ranks are delayed; null before two such steps are known."""

    arm: DelayedArm
    """Who was delayed, in a word."""
    ranks: tuple[Rank, ...]
    """Their numbers."""
    n: int
    """Steps in which they were, of those that count."""
    dose_us: float
    """By how much, as measured."""
    effect: float | None = None
    """Growth over dose, of the step and the one after together: 1 is all of the delay, 0 none."""
    low: float | None = None
    """The lower end of the 95 % interval; of `--all` the intervals of all ranks hold together."""
    high: float | None = None
    """Its upper end."""
    growth_us: float | None = None
    """The same in time: the step grows by so much."""
    growth_low_us: float | None = None
    """The lower end of its interval."""
    growth_high_us: float | None = None
    """The upper end."""
    slack_us: float | None = None
    """What of the delay the job did not feel; 0 to the dose."""
    slack_low_us: float | None = None
    """The lower end of its interval."""
    slack_high_us: float | None = None
    """Null where the delay was not felt: the slack may be larger than the dose."""


@dataclass(frozen=True)
class SweptDose:
    """What one dose of a sweep showed."""

    dose_us: float
    """By how much, as measured."""
    n: int
    """Steps with this dose that count."""
    saving_us: float
    """The dose less the growth of the step with all others delayed: what the job would gain if the accused were
    faster by the dose."""
    low_us: float
    """The lower end of the 95 % interval."""
    high_us: float
    """The upper end."""


@dataclass(frozen=True)
class Worth:
    """What a fix of the accused is worth per step: where the savings of larger and larger doses level off."""

    worth_us: float
    """Where they level off."""
    low_us: float
    """The lower end of the 95 % interval."""
    high_us: float | None
    """Null where no dose was large enough: the worth is `low_us` or more."""
    doses: tuple[SweptDose, ...]
    """What each dose showed, ascending."""


@dataclass(frozen=True)
class ConfirmResult:
    """Whether a rank holds up the running job, proven by delays."""

    accused: tuple[Rank, ...]
    """Empty where nobody was."""
    place: DelayPlace
    """Where in the step the delay was."""
    dose_us: float
    """What was asked for; of a sweep the largest."""
    effects: tuple[DelayEffect, ...]
    """Who was delayed, and by how much steps grew: a row each."""
    p: float | None
    """How often chance would separate the accused from all others (or the first rank from the second) as clearly."""
    verdict: ConfirmVerdict
    """Whether a rank, host or link is accused, the whole job is slowed, nobody is, or that is open."""
    held_up_by: tuple[Rank, ...]
    """Who holds up the job, where that is decided."""
    saving_us: float | None
    """What the job would gain per step if the accused were faster by the dose."""
    saving_low_us: float | None
    """The lower end of the 95 % interval: a fix is worth so much or more."""
    saving_high_us: float | None
    """The upper end."""
    would_see_us: float | None
    """The difference between delayed accused and delayed others that 95 % of such runs would have shown."""
    steps_needed: int | None
    """How many more steps the decision would take at this rate; 0 where it is made, null where no number is known."""
    steps_covered: int
    """From the first to the last step looked at."""
    steps_used: int
    """Those of them that count: recorded, and no rank missed its turn."""
    noise_us: float | None
    """Standard deviation of a step without delays that self times do not explain; null where too few are known."""
    cost_us: float
    """By how much the delays lengthened the run, as estimated."""
    worth: Worth | None = None
    """Null without a sweep of doses."""
    warnings: tuple[KairWarning, ...] = ()
    """What the reader of the answer should know."""


@dataclass(frozen=True)
class ConfirmRun(ConfirmResult):
    """The answer of `kair confirm`: the result, and the run of the job that it is of."""

    job: str = ""
    """Its name."""
    state: Literal["running", "over", "unheard"] = "over"
    """Whether ranks are still delayed; unheard: they were, and the coordinator writes no more."""
    at: str = ""
    """UTC, ISO 8601: when this was so."""
    ended_because: str = ""
    """Why the delays ended before it was decided; empty where it is, or they go on."""
    first_step: int | None = None
    """From which on ranks were delayed."""
    last_step: int | None = None
    """The last that was looked at."""
    step_time_us: float | None = None
    """The median step before the delays."""
    excess_us: float | None = None
    """What the accused took longer than their peers, as `kair watch` had it; null where nobody is accused."""
    budget: float = 0.0
    """The share of the job's time that delays might cost."""
    allowed_us: float = 0.0
    """The same, of the time until now."""
    spent_us: float = 0.0
    """What delays cost the job since its coordinator began, at most."""
    ranks: int = 0
    """How many ranks the job has; 0 where that is not known."""
    steps_allowed: int | None = None
    """How many steps it may take."""
