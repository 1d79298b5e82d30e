"""The smallest faults that a recording can show."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from kair_engine.causes import Cause
from kair_engine.ranks import Rank
from kair_engine.results.kinds import Kind
from kair_engine.trace.model import KairWarning

InjectedFault = Literal["slow_device", "slow_operator", "slow_input", "slow_host", "stall", "slow_link"]


DetectionLimit = Literal["steps", "ranks", "peers", "smallest_share"]
"""What keeps a smaller fault from being found: too few steps, how much healthy ranks (or links) differ, a role of two
ranks, or that nothing is reported below a share of the step (a link: of its self time)."""


@dataclass(frozen=True)
class LongerRecording:
    """What the same job would show in more steps; null where it would still not show the fault."""

    steps: int
    """How many would be recorded."""
    smallest_us_per_step: float | None
    """The smallest one that would be found."""
    smallest_share_of_step: float | None
    """The same over the step time."""
    stalled_steps: int | None
    """In how many steps a rank has to stall to be found; null for other faults."""


class Reason(Kind, kw_only=True):
    """What limits the smallest fault, or why no size is found. Units are in the figures' names; shares are of 1."""

    # Templates may name `what` differs, ranks or links.
    kind: "ReasonKind" = field(init=False)
    """What limits it."""
    figures: dict[str, float] = field(init=False, hash=False)
    """By name; units are in the names, shares are of 1."""


class OneRank(Reason):
    """There is no peer."""

    template = "one rank only: there is no peer to compare it with"


class FewSteps(Reason):
    """So few steps do not separate a slow rank from a slow moment."""

    template = (
        "{steps:plural step}: a slow rank looks like a slow moment, and only a rank with most of the host's "
        "pauses between collectives is accused; record at least {fewest_steps:count}, better 10"
    )
    steps: int
    fewest_steps: int


class NoCompute(Reason):
    """No compute operations were recorded."""

    template = "the recording has no compute operations"


class NoOperator(Reason):
    """None in which ranks differ by as much."""

    template = (
        "no compute operator in which ranks differ by {differing_share_of_step:percent} of a step, so "
        "there is nothing to try it on"
    )
    differing_share_of_step: float


class NoInput(Reason):
    """No input fetches were recorded."""

    template = "the recording has no input fetches"


class NoSiblings(Reason):
    """No link has as many."""

    template = "no process group or pipeline edge has {siblings:plural sibling} with the same transfers"
    siblings: int


class MoreSteps(Reason):
    """With so many steps this much is found. Figures: steps, recorded_steps, and share_of_step; of stalls
    stalled_steps, recorded_stalled_steps."""

    steps: int
    recorded_steps: int
    share_of_step: float | None = None
    stalled_steps: int | None = None
    recorded_stalled_steps: int | None = None

    def wording(self) -> str:
        """Say how much is found then, and of stalls how much is now."""
        record = "record {steps:count} steps instead of {recorded_steps:count}, and "
        if self.stalled_steps is None:
            return record + "{share_of_step:percent} of the step is found"
        found = record + "{stalled_steps:count} stalled ones ({reason.stalled_share:whole percent}) are found"
        now = ", now {recorded_stalled_steps:count} ({reason.recorded_stalled_share:whole percent})"
        return found if self.recorded_stalled_steps is None else found + now

    @property
    def stalled_share(self) -> float:
        """Return in which part of the steps a rank has to stall."""
        return (self.stalled_steps or 0) / self.steps

    @property
    def recorded_stalled_share(self) -> float:
        """Return the same of the recorded steps."""
        return (self.recorded_stalled_steps or 0) / self.recorded_steps


class SmallestReported(Reason):
    """It is found almost as soon as it is reported at all. Figures: share_of_step; of a link also
    share_of_self_time."""

    share_of_step: float
    share_of_self_time: float | None = None

    def wording(self) -> str:
        """Name the share of the self time, where there is such a limit."""
        of_self = "" if self.share_of_self_time is None else "{share_of_self_time:whole percent} of its self time and "
        found = "found almost as soon as it is reported at all, from "
        return found + of_self + "{share_of_step:whole percent} of the step on"


class NoPeer(Reason):
    """Most ranks are alone in their role."""

    template = "most ranks are alone in their role: there is no peer to compare them with"


class OnePeer(Reason):
    """The only peer could as well be the fast one."""

    template = "one peer only, which could as well be the fast one: more ranks of the same role would help"


class TooDifferent(Reason):
    """It is found at no size."""

    template = "found at no size: the {what} differ too much already, or are too few"


class SpreadUnknown(Reason):
    """How much so many healthy ranks differ is little known."""

    template = "more steps do not help, more {what} would: how much {healthy:count} healthy ones differ is little known"
    healthy: int


class Spread(Reason):
    """Ranks differ for good."""

    template = (
        "more steps do not help: the {what} differ for good, by {spread_us:duration} a step ({share_of_step:percent}, "
        "standard deviation)"
    )
    spread_us: float
    share_of_step: float


if TYPE_CHECKING:
    ReasonKind = str
else:
    ReasonKind = Literal[tuple(Reason.kinds)]


@dataclass(frozen=True, kw_only=True)
class DetectableFault:
    """The smallest fault of one kind, on any one rank (or link), that the recording shows with the set probability."""

    fault: InjectedFault
    """What was put into the recording."""
    cause: Cause | None
    """What triage would call it; null for a stall, whose cause can be any."""
    operator: str | None = None
    """The one that was slowed down."""
    smallest_us_per_step: float | None = None
    """What it adds to the rank's self time, averaged over steps. Null: no size is found."""
    smallest_share_of_step: float | None = None
    """The same over the step time."""
    own_us_per_step: float | None = None
    """What a rank (or link) spends on this anyway, the median; null where that says nothing."""
    smallest_own_slowdown: float | None = None
    """That with the fault over that without."""
    spread_us_per_step: float | None = None
    """How much the ranks (or links) differ in it for good: the standard deviation within a role."""
    stalled_steps: int | None = None
    """Of a quarter of a step each: in how many of the steps the rank has to stall. Other faults: null."""
    longer: tuple[LongerRecording, ...] = ()
    """What more steps would show."""
    limited_by: DetectionLimit | None = None
    """What keeps a smaller one from being found; null where no size is."""
    because: Reason
    """What limits it, or why no size is found, and what would help."""
    reason: str = ""
    """The same as a sentence."""


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
    """The smallest of each kind."""
    probability: float
    """With which the smallest fault is found."""
    false_alarm_rate: float
    """Of a triage of a healthy job, at which that is so."""
    step_time_us: float
    """The mean over steps."""
    corrected_ranks: tuple[Rank, ...]
    """Ranks that stand out already: what makes them do so was taken out first, where there are steps enough."""
    corrected_links: tuple[str, ...]
    """Links that stand out already: what makes them do so was taken out first."""
    draws: int
    """How often each size of a fault was put into the recording."""
    seed: int
    """Of the random draws."""
    steps: tuple[int, ...]
    """Those that were analysed."""
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
