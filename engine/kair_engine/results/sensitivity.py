"""The smallest faults that a recording can show."""

from dataclasses import dataclass, field
from typing import Literal

from kair_engine.causes import Cause
from kair_engine.ranks import Rank
from kair_engine.trace.model import KairWarning

InjectedFault = Literal["slow_device", "slow_operator", "slow_input", "slow_host", "stall", "slow_link"]


DetectionLimit = Literal["steps", "ranks", "peers", "smallest_share"]
"""What keeps a smaller fault from being found: too few steps, how much healthy ranks (or links) differ, a role of two
ranks, or that nothing is reported below a share of the step (a link: of its self time)."""


@dataclass(frozen=True)
class LongerRecording:
    """What the same job would show in more steps; null where it would still not show the fault."""

    steps: int
    smallest_us_per_step: float | None
    smallest_share_of_step: float | None
    stalled_steps: int | None


ReasonKind = Literal[
    "one_rank",
    "few_steps",
    "no_compute",
    "no_operator",
    "no_input",
    "no_siblings",
    "more_steps",
    "smallest_reported",
    "no_peer",
    "one_peer",
    "too_different",
    "spread_unknown",
    "spread",
]


@dataclass(frozen=True)
class Reason:
    """What limits the smallest fault, or why no size is found. Units are in the figures' names; shares are of 1."""

    kind: ReasonKind
    figures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class DetectableFault:
    """The smallest fault of one kind, on any one rank (or link), that the recording shows with the set probability."""

    fault: InjectedFault
    cause: Cause | None
    """What triage would call it; null for a stall, whose cause can be any."""
    operator: str | None
    """The one that was slowed down."""
    smallest_us_per_step: float | None
    """What it adds to the rank's self time, in the mean over steps. Null: no size is found."""
    smallest_share_of_step: float | None
    """The same over the step time."""
    own_us_per_step: float | None
    """What a rank (or link) spends on this anyway, the median; null where that says nothing."""
    smallest_own_slowdown: float | None
    """That with the fault over that without."""
    spread_us_per_step: float | None
    """How much the ranks (or links) differ in it for good: the standard deviation within a role."""
    stalled_steps: int | None
    """Of a quarter of a step each: in how many of the steps the rank has to stall. Other faults: null."""
    longer: tuple[LongerRecording, ...]
    limited_by: DetectionLimit | None
    because: Reason
    """What limits it, or why no size is found, and what would help."""


@dataclass(frozen=True)
class UntestedLinks:
    """Process groups or pipeline edges that do the same transfers, and are too few to be compared."""

    links: tuple[str, ...]
    """By their names, as slow ones are named."""
    us_per_step: float
    """What the transfers of the slowest of them take a step. Slow ones among them are not found at any size."""


@dataclass(frozen=True)
class SensitivityResult:
    """What a recording can show: the smallest faults that triage would find in it."""

    faults: tuple[DetectableFault, ...]
    probability: float
    """With which the smallest fault is found."""
    false_alarm_rate: float
    """Of a triage of a healthy job, at which that is so."""
    step_time_us: float
    corrected_ranks: tuple[Rank, ...]
    """Ranks that stand out already: what makes them do so was taken out first, where there are steps enough."""
    corrected_links: tuple[str, ...]
    draws: int
    seed: int
    steps: tuple[int, ...]
    warnings: tuple[KairWarning, ...]
    absorbs_us_per_step: float | None = None
    """So much longer any rank's host could take in every step, and nobody would wait for it: the least over ranks. Null
    where hosts do not run ahead of their devices."""
    absorbs_once_us: float | None = None
    """The same of a single delay: how far every host is ahead at all times. Null where one is not at times, or where
    hosts do not run ahead."""
    untested_links: tuple[UntestedLinks, ...] | None = ()
    """Links that the smallest slow link does not hold for, those with the longest transfers first; null where that is
    not known."""
