"""A grid of what every worker costs."""

from typing import ClassVar, Final

from kair_engine.whatif.candidates import Worker
from kair_tui.render.terminal import Look
from kair_tui.render.units import percent
from kair_tui.tui.widgets.cells.grid import CellGrid

COSTS: Final = (0.01, 0.05, 0.20, 0.50)
"""Of the ideal step: costs from which a cell is one level darker."""


class WorkerHeat(CellGrid[Worker]):
    """Stages in rows and data-parallel ranks in columns where the recording knows them, else ranks by host."""

    SHARE_OF_HEIGHT: ClassVar[float] = 0.3

    def __init__(self, look: Look) -> None:
        super().__init__(look, id="workers")

    def level(self, row: Worker) -> int:
        """By its costs."""
        return sum(row.costs >= limit for limit in COSTS)

    def figure(self, row: Worker) -> str:
        """Its costs, as a share of the ideal step."""
        return percent(row.costs)
