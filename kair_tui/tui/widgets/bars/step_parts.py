"""Bars of a step's parts: a line for each, with a mark where its role's median lies."""

from textual.strip import Strip
from textual.widget import Widget

from kair_engine.results.rank import PartOfStep, RankProfileResult
from kair_tui.render.drawing.bars import bar
from kair_tui.render.terminal import Look
from kair_tui.render.text import clean
from kair_tui.render.units import duration, percent
from kair_tui.render.views.rank import difference_text, difference_us, typical_text
from kair_tui.tui.widgets.lines.line import fitted
from kair_tui.tui.widgets.styles import styles_of

_NAME, _FIGURE = 13, 8
_WIDE = 64
"""From here on there is room for the median and the share as figures."""


class StepParts(Widget):
    """The parts of the step; the one that is most above its role's median stands out."""

    DEFAULT_CSS = "StepParts { height: 7; }"

    def __init__(self, look: Look, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._look = look
        self._parts: tuple[PartOfStep, ...] = ()

    def show(self, result: RankProfileResult | None) -> None:
        """Replaces the parts."""
        self._parts = () if result is None else result.parts
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """The titles where there is room for them, then a part in each line."""
        styles, width = styles_of(self._look), self.size.width
        y -= self.size.height > len(self._parts)
        if not self._parts or y >= len(self._parts):
            return Strip.blank(width, styles.base)
        if y < 0:
            return fitted([(self._titles(width), styles.dim)], width, styles.base, self._look)
        row = self._parts[y]
        figures = self._figures(row, width)
        room = width - len(figures) - 1
        most = row is self._most
        drawn = bar(row.own_us, row.typical_us, self._peak, room, ascii_only=self._look.ascii_only)
        pieces = [(figures, styles.strong if most else styles.base), (drawn, styles.levels[3 if most else 1])]
        return fitted(pieces, width, styles.base, self._look)

    def _figures(self, row: PartOfStep, width: int) -> str:
        cells = [duration(row.own_us), difference_text(row)]
        if width >= _WIDE:
            cells = [duration(row.own_us), typical_text(row), difference_text(row), percent(row.share)]
        return f" {row.part:<{_NAME}}" + "".join(f"{self._plain(cell):>{_FIGURE + 1}}" for cell in cells) + " "

    def _titles(self, width: int) -> str:
        titles = ("per step", "role", "differs", "of step") if width >= _WIDE else ("per step", "differs")
        return f" {'part':<{_NAME}}" + "".join(f"{title:>{_FIGURE + 1}}" for title in titles)

    def _plain(self, text: str) -> str:
        return clean(text, ascii_only=self._look.ascii_only)

    @property
    def _peak(self) -> float:
        return max(max(row.own_us, row.typical_us or 0.0) for row in self._parts)

    @property
    def _most(self) -> PartOfStep:
        return max(self._parts, key=lambda row: difference_us(row) or 0.0)
