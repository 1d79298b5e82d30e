"""The line over a grid of rows and columns that says which column is which."""

from typing import Any

from kair_tui.tui.widgets.cells.grid import CellGrid
from kair_tui.tui.widgets.lines.line import Line, Piece


class GridRuler(Line):
    """`dp 0    1    2`: it goes sideways with the grid."""

    _grid: CellGrid[Any] | None = None

    def measure(self, grid: CellGrid[Any]) -> None:
        """The grid whose columns it names."""
        self._grid = grid
        self.watch(grid, "scroll_x", self._moved, init=False)

    def _moved(self) -> None:
        self.refresh()

    def pieces(self, width: int) -> list[Piece]:
        """As many names as there is room for."""
        grid, dim = self._grid, self.text_styles.dim
        if grid is None:
            return []
        text = ""
        for x, name in grid.column_names():
            at = x - int(grid.scroll_offset.x)
            if at >= len(text) + (1 if text else 0) and at + len(name) <= width:
                text = text.ljust(at) + name
        label = " dp"
        return [(label + text[len(label) :] if text[: len(label)].strip() == "" else text, dim)]
