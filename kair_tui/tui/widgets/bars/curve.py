"""A rank's completion curve in its peers' band, with its largest distance from one of them."""

from itertools import groupby

from rich.style import Style
from textual.geometry import Size
from textual.strip import Strip
from textual.widget import Widget

from kair_engine.results.rank import RankProfileResult
from kair_tui.render.drawing.curve import Layer, Picture, draw
from kair_tui.render.terminal import Look
from kair_tui.render.text import clean
from kair_tui.render.views.rank import axis
from kair_tui.tui.widgets.lines.line import Piece, fitted
from kair_tui.tui.widgets.styles import styles_of

_MARGIN = 7
"""Columns for the shares on the left."""


class CompletionCurve(Widget):
    """Shares completed from 0 to 100 % over the time since the step's begin."""

    DEFAULT_CSS = "CompletionCurve { height: 1fr; }"

    def __init__(self, look: Look, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._look = look
        self._result: RankProfileResult | None = None
        self._picture: Picture | None = None
        self._drawn_for = Size(0, 0)

    def show(self, result: RankProfileResult | None) -> None:
        """Replaces the curve."""
        self._result, self._picture = result, None
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """A row of the picture, or the axis under it."""
        styles, width, height = styles_of(self._look), self.size.width, self.size.height
        if self._result is None or width <= _MARGIN + 1 or height < 3:
            return Strip.blank(width, styles.base)
        picture = self._drawn(self._result)
        if y < height - 1:
            return fitted(self._row(picture, y, height - 1), width, styles.base, self._look)
        line = clean(axis(self._result, picture.distance_at, width - _MARGIN - 1), ascii_only=self._look.ascii_only)
        return fitted([(" " * _MARGIN, styles.dim), (line, styles.dim)], width, styles.base, self._look)

    def _drawn(self, result: RankProfileResult) -> Picture:
        """The picture for the size there is now: lines are drawn before a widget is told that its size is another."""
        if self._picture is None or self._drawn_for != self.size:
            self._drawn_for = self.size
            width, height = self.size.width - _MARGIN - 1, self.size.height - 1
            self._picture = draw(
                result.curve, result.farthest, width=width, height=height, ascii_only=self._look.ascii_only
            )
        return self._picture

    def _row(self, picture: Picture, y: int, rows: int) -> list[Piece]:
        styles = styles_of(self._look)
        of_layer: dict[Layer, Style] = {
            "": styles.base,
            "band": styles.dim,
            "median": styles.base,
            "distance": styles.levels[3],
            "rank": styles.strong,
        }
        label = {0: "100 %", rows // 2: "50 %", rows - 1: "0 %"}.get(y, "")
        pieces: list[Piece] = [(f"{label:>{_MARGIN - 1}} ", styles.dim)]
        signs = zip(picture.layers[y], picture.rows[y], strict=True)
        for layer, run in groupby(signs, key=lambda sign: sign[0]):
            pieces.append(("".join(sign for _, sign in run), of_layer[layer]))
        return pieces
