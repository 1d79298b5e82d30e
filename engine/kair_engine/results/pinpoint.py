"""Stage 2's answer: one rank's outlying operations."""

from dataclasses import dataclass

from kair_engine.ranks import Rank
from kair_engine.results import Method
from kair_engine.trace.model import KairWarning


@dataclass(frozen=True)
class Outlier:
    """One operation of the rank that differs from the same operation on its peers."""

    step: int
    """Its number in the recording."""
    operator: str
    """Its name in the recording; null where no single one can be named."""
    phase: str | None
    """Forward, backward, optimizer or input; null if the recording does not show it."""
    occurrence: int
    """Which of the operator's runs in the step, from 0."""
    start_z: float | None
    """How far its begin lies from its peers', in standard deviations; null where that is not known."""
    duration_z: float | None
    """How far its duration lies from its peers', in standard deviations."""
    score: float
    """How far it stands out; larger is more suspicious."""
    p_value: float | None
    """How often chance alone shows as much, corrected for all that was tried; null where that is not known."""
    start_us: float
    """From the step's begin on this rank."""
    duration_us: float
    """How long it took."""
    expected_duration_us: float
    """Its peers' mean (paper) or median (robust)."""


@dataclass(frozen=True)
class PinpointResult:
    """Stage 2: the rank's outlying operations, the most outlying first."""

    rank: Rank
    """Whose operations were looked at."""
    method: Method
    """Robust statistics, or the published method."""
    outliers: tuple[Outlier, ...]
    """The most outlying first."""
    tested: int
    """Operations compared."""
    total_outliers: int
    """Outliers found, of which the listed ones are the first."""
    warnings: tuple[KairWarning, ...]
