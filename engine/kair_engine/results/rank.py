"""One rank's answer: where its step time goes, and how its operations complete, compared with its peers'."""

from typing import Literal

from kair_engine.frozen import dataclass
from kair_engine.ranks import Rank
from kair_engine.results import TimedOn
from kair_engine.results.step_bar import StepBar
from kair_engine.trace.model import KairWarning

StepPart = Literal["compute", "communication", "waiting", "input", "host", "rest"]


@dataclass(frozen=True)
class PartOfStep:
    """What one part of the step takes on the rank, and on its role."""

    part: StepPart
    """What the time goes into."""
    own_us: float
    """Per step, the mean over steps. The parts add up to the rank's step time."""
    share: float
    """Of the rank's step time."""
    typical_us: float | None
    """The median over the ranks of the role; None where the rank has no peer. Medians need not add up."""


@dataclass(frozen=True)
class SubgraphTime:
    """What one phase, or one scope that the program annotated, takes on the rank, and on its role."""

    subgraph: str
    """The phase, or the scope's name."""
    sort: Literal["phase", "scope"]
    """Which of the two it is."""
    calls: float
    """Per step, the mean over steps; of a phase 1 where it ran."""
    own_us: float
    """Per step: the self time of its operations, waiting excluded; on a device of what it runs there, else of threads.
    A scope has what its thread runs within it, and what that launches. Scopes may lie in one another."""
    typical_us: float | None
    """The median over the ranks of the role; None where the rank has no peer."""
    span_us: float | None
    """Per step, how long its thread is within the scope, waiting included; None of a phase."""
    typical_span_us: float | None
    """The median over the ranks of the role; None of a phase, and without a peer."""


@dataclass(frozen=True)
class CurvePoint:
    """What share of a step's operations had completed by a time since the step's begin, the mean over steps.

    Of all, or where hosts run ahead of those on devices.
    """

    time_us: float
    """Since the step's begin."""
    completed: float
    """The share of the rank's operations that had completed by then."""
    peers_low: float | None
    """Of the peers' shares the 10 % quantile; None where there is no peer."""
    peers_median: float | None
    """Their median."""
    peers_high: float | None
    """The 90 % quantile."""
    farthest: float | None
    """The share of the peer whose curve lies farthest from the rank's."""


@dataclass(frozen=True)
class CurveDistance:
    """The Kolmogorov–Smirnov distance from one peer: where their curves lie farthest apart."""

    peer: Rank
    """Whose curve lies farthest."""
    distance: float
    """Of 1: the difference of the two shares."""
    time_us: float
    """Since the step's begin."""
    completed: float
    """The share of the rank's operations that had completed by then."""
    peer_completed: float
    """The share of that peer's operations that had completed by then."""


@dataclass(frozen=True)
class RankProfileResult:
    """One rank and the peers of its role."""

    rank: Rank
    """Its number in the job."""
    host: str | None
    """Where it runs; null where that is not recorded."""
    role: str
    """The ranks that run the same program; only those are compared."""
    peers: int
    """Other ranks of its role."""
    step_time_us: float
    """The rank's, the mean over steps: what its parts add up to."""
    typical_step_time_us: float | None
    """The role's median."""
    parts: tuple[PartOfStep, ...]
    """They add up to the step."""
    subgraphs: tuple[SubgraphTime, ...]
    """Phases, then scopes, the longest first."""
    curve: tuple[CurvePoint, ...]
    """The rank's completion curve, and its peers'."""
    farthest: CurveDistance | None
    """From the peer at the largest distance."""
    mean_distance: float | None
    """From all peers: the paper's score, within the role."""
    steps: tuple[int, ...]
    """The chosen steps that the rank recorded."""
    warnings: tuple[KairWarning, ...]
    timed_on: TimedOn = "host"
    """Whose step times these are: the devices' where hosts run ahead of them."""
    ahead_us: float | None = None
    """How long, at the least, what its host launches waits for its device. Null where that is no longer than a launch
    takes, or hosts do not run ahead."""
    slack_us_per_step: float | None = None
    """So much longer its host could take in every step before its device waits; null where hosts do not run ahead."""
    bar: StepBar | None = None
    """The same parts in one bar, in which the bubble is separated from waiting for stragglers."""
