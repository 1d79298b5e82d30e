"""The time-frequency view's answer: how often an operator ran, per window and rank."""

from dataclasses import dataclass
from typing import Literal

from kair_engine.ranks import Rank
from kair_engine.trace.model import KairWarning


@dataclass(frozen=True)
class DegradedWindow:
    """A window in which a rank ran the operator less often than its peers."""

    rank: Rank
    window: int
    start_us: float
    count: int
    expected: float
    state: Literal["missing", "degraded"]


@dataclass(frozen=True)
class RankCounts:
    """How often one rank ran the operator, per window."""

    rank: Rank
    counts: tuple[int, ...]


@dataclass(frozen=True)
class FrequencyResult:
    """The time-frequency view [K, figure 4]."""

    operator: str
    """The operator or phase counted; `*` is every operation."""
    window_us: float
    windows: int
    counts: tuple[RankCounts, ...]
    degraded: tuple[DegradedWindow, ...]
    warnings: tuple[KairWarning, ...]
