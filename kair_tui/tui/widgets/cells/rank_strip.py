"""One figure of every rank in a line: a cell for each, of several that share one the largest."""

from collections.abc import Sequence

from textual.strip import Strip
from textual.widget import Widget

from kair_tui.render.drawing.heat import RAMP, RAMP_ASCII, level, resampled
from kair_tui.render.terminal import Look
from kair_tui.tui.widgets.lines.line import Piece, fitted
from kair_tui.tui.widgets.styles import styles_of

_WIDEST = 6
"""Columns of a cell where ranks are few."""
_ABOVE = 1.25
"""Times the median from which on a cell is marked by its colour."""


class RankStrip(Widget):
    """`rank 0 ▂▂▂█▂▂ rank 255`."""

    DEFAULT_CSS = "RankStrip { height: 1; }"

    def __init__(self, look: Look, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._look = look
        self._ranks: Sequence[int] = ()
        self._values: Sequence[float] = ()
        self._usual = 0.0

    def show(self, ranks: Sequence[int], values: Sequence[float], usual: float) -> None:
        """Replaces the figures, one for each of `ranks`; `usual` is their median."""
        self._ranks, self._values, self._usual = ranks, values, usual
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """The line."""
        styles, width = styles_of(self._look), self.size.width
        pieces = self._pieces(width) if y == 0 and self._values else []
        return fitted(pieces, width, styles.base, self._look)

    def _pieces(self, width: int) -> list[Piece]:
        styles = styles_of(self._look)
        first, last = f" rank {self._ranks[0]} ", f" rank {self._ranks[-1]}"
        room = max(width - len(first) - len(last) - 1, 1)
        cells = resampled(self._values, room, max)
        columns = min(max(room // len(cells), 1), _WIDEST)
        ramp, peak = RAMP_ASCII if self._look.ascii_only else RAMP, max(cells)
        drawn = [
            (
                (ramp[level(value, peak, len(ramp))] * max(columns - 1, 1)).ljust(columns),
                styles.levels[3] if value > _ABOVE * self._usual else styles.levels[1],
            )
            for value in cells
        ]
        return [(first, styles.dim), *drawn, (last, styles.dim)]
