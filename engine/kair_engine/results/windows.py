"""What stragglers cost in each window of sampled steps: S, M_W and the heat map of S_w over time."""

from dataclasses import field
from typing import Final

from kair_engine.frozen import dataclass
from kair_engine.results.triage import Verdict
from kair_engine.results.whatif import ERROR_GATE
from kair_engine.trace.model import KairWarning

HIGH: Final = 1.1
"""S of a window from which on the paper's monitor alerts [W]."""


@dataclass(frozen=True)
class PricedWindow:
    """One run of consecutive sampled steps, priced by itself."""

    first_step: int
    """The first of them."""
    last_step: int
    """The last of them."""
    at: str
    """When the last one ended, UTC, ISO 8601; if the recording has no time of day, when it was priced."""
    slowdown: float
    """S of these steps (1.0 = no effect)."""
    m_w: float | None
    """M_W: share of the slowdown that goes away with the slowest 3 % of workers; null without a slowdown."""
    slowest_ranks: tuple[int, ...]
    """Those workers."""
    by_rank: dict[int, float]
    """S_w of each rank, the largest first; of very large jobs only the slowest."""
    heatmap: tuple[tuple[float, ...], ...]
    """S_w of every worker: stages × data-parallel ranks, or all ranks in one row."""
    staged: bool
    """Whether rows are stages and columns data-parallel ranks."""
    simulation_error: float
    """As in `kair whatif`: beyond 5 % S is shown but raises no alert."""
    verdict: Verdict
    """Triage's, of the recording of these steps alone."""

    @property
    def is_high(self) -> bool:
        """Whether S is high, beyond what noise explains and within what the simulation can show."""
        return self.slowdown >= HIGH and self.verdict != "no_straggler" and self.simulation_error <= ERROR_GATE


@dataclass(frozen=True)
class WindowsResult:
    """The last windows, the oldest first."""

    windows: tuple[PricedWindow, ...]
    """Those that could be priced."""
    warnings: tuple[KairWarning, ...] = field(default=())
    """Of those that could not."""
