"""The breakdown by operator: how long each ran on all ranks, by type, and how that differs between ranks."""

from dataclasses import dataclass
from typing import Literal

from kair_engine.ranks import Rank
from kair_engine.trace.model import KairWarning

OperatorType = Literal[
    "compute", "memory", "communication", "waiting", "unmatched", "input", "garbage_collection", "idle"
]
"""What an operator's time is spent on. A collective has two: its transfer (`communication`), and `waiting` before that.

`unmatched` is communication whose other members are not recorded: how much of it is waiting nobody can tell. `idle` is
what hosts alone kept their devices (or threads) from work; it has no operator.
"""


@dataclass(frozen=True)
class TypeTime:
    """All operators of one type."""

    type: OperatorType
    """What the time is spent on."""
    total_us: float
    """Self time over the chosen steps and all ranks. What runs at once counts each by itself."""
    share: float
    """Of the time of all types."""
    median_us: float
    """Per step, the median of the ranks that have any."""
    min_us: float
    """Per step, of the rank that spent least."""
    max_us: float
    """Per step, of the rank that spent most."""
    max_rank: Rank
    """The rank that spent most."""


@dataclass(frozen=True)
class OperatorTime:
    """One operator, as far as it is of one type."""

    operator: str | None
    """None where hosts left devices or threads idle."""
    type: OperatorType
    """What the time is spent on."""
    total_us: float
    """Self time over the chosen steps and all ranks."""
    share: float
    """Of the time of all types."""
    calls: float
    """Per step, the mean of the ranks that ran it."""
    ranks: int
    """How many ran it."""
    median_us: float
    """Per step, the median of the ranks that ran it."""
    min_us: float
    """Per step, of the rank that spent least."""
    max_us: float
    """Per step, of the rank that spent most on it."""
    max_rank: Rank
    """The rank that spent most."""
    by_rank_us: tuple[float, ...] = ()
    """Per step, an entry for each of the result's `ranks`; only when asked for."""
    input_bytes: float | None = None
    """What a call is given, the median of the ranks whose recordings tell; None where none does."""
    by_rank_input_bytes: tuple[float | None, ...] = ()
    """The same of each of the result's `ranks`; only when asked for, and where some rank's recording tells."""


@dataclass(frozen=True)
class OperatorsResult:
    """Where the time of all ranks goes."""

    ranks: tuple[Rank, ...]
    steps: tuple[int, ...]
    step_time_us: float
    total_us: float
    """The time of all types: what shares are parts of."""
    by_type: tuple[TypeTime, ...]
    """Those that there are, the largest first."""
    operators: tuple[OperatorTime, ...]
    """Those that were asked for, the largest first, at most `limit` of them."""
    total_operators: int
    """How many there are of those that were asked for."""
    unlisted_us: float
    """The time of those that are not listed."""
    warnings: tuple[KairWarning, ...]
