"""Stage 2's answer: one rank's outlying operations."""

from dataclasses import dataclass

from kair_engine.ranks import Rank
from kair_engine.results import Method
from kair_engine.trace.model import KairWarning


@dataclass(frozen=True)
class Outlier:
    """One operation of the rank that differs from the same operation on its peers."""

    step: int
    operator: str
    phase: str | None
    occurrence: int
    start_z: float | None
    duration_z: float | None
    score: float
    p_value: float | None
    start_us: float
    """From the step's begin on this rank."""
    duration_us: float
    expected_duration_us: float
    """Its peers' mean (paper) or median (robust)."""


@dataclass(frozen=True)
class PinpointResult:
    """Stage 2: the rank's outlying operations, the most outlying first."""

    rank: Rank
    method: Method
    outliers: tuple[Outlier, ...]
    tested: int
    """Operations compared."""
    total_outliers: int
    """Outliers found, of which the listed ones are the first."""
    warnings: tuple[KairWarning, ...]
