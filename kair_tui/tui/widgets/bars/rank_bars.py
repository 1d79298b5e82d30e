"""Bars of blamed ranks: the time that others waited for each, the longest first."""

from collections.abc import Sequence

from textual.strip import Strip
from textual.widget import Widget

from kair_engine.results.blame import RankBlame
from kair_tui.render.drawing.bars import bar
from kair_tui.render.terminal import Look
from kair_tui.render.text import clean
from kair_tui.render.units import count, duration, percent
from kair_tui.tui.widgets.lines.line import Piece, fitted
from kair_tui.tui.widgets.styles import styles_of

_SHORT_BAR = 8
_SHARE = 8


class RankBars(Widget):
    """Under each other where there is room for lines, else as many as fit into one."""

    DEFAULT_CSS = "RankBars { height: 1; }"

    def __init__(self, look: Look, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._look = look
        self._ranks: Sequence[RankBlame] = ()

    def show(self, ranks: Sequence[RankBlame]) -> None:
        """Replaces the bars."""
        self._ranks = ranks
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """One rank, or all that fit."""
        styles, width, height = styles_of(self._look), self.size.width, self.size.height
        if height == 1:
            return fitted(self._in_a_row(width), width, styles.base, self._look)
        if y == height - 1 and len(self._ranks) > height:
            left = len(self._ranks) - height + 1
            return fitted([(f"  {self._rest(left)}", styles.dim)], width, styles.base, self._look)
        pieces = self._one(self._ranks[y], width) if y < len(self._ranks) else []
        return fitted(pieces, width, styles.base, self._look)

    def _one(self, row: RankBlame, width: int) -> list[Piece]:
        styles = styles_of(self._look)
        name = f" {row.rank:>{self._digits}} "
        figures = f"{percent(row.share):>{_SHARE}}{self._safe(duration(row.blamed_us)):>9}{count(row.arrived_last):>6}"
        room = width - len(name) - len(figures) - 1
        return [(name, styles.base), (self._bar(row, room).ljust(room), styles.levels[2]), (figures, styles.base)]

    def _in_a_row(self, width: int) -> list[Piece]:
        styles = styles_of(self._look)
        pieces: list[Piece] = [(" by rank", styles.title)]
        taken = len(pieces[0][0])
        for at, row in enumerate(self._ranks):
            drawn = self._bar(row, _SHORT_BAR)
            item = [(f"  {row.rank} ", styles.base), (drawn, styles.levels[2]), (f" {percent(row.share)}", styles.base)]
            rest = len(self._ranks) - at
            needed = sum(len(text) for text, _ in item)
            if taken + needed + (len(self._rest(rest)) + 2 if rest > 1 else 0) > width:
                return [*pieces, (f"  {self._rest(rest)}", styles.dim)]
            pieces, taken = [*pieces, *item], taken + needed
        return pieces

    def _bar(self, row: RankBlame, width: int) -> str:
        peak = self._ranks[0].share
        return bar(row.share, None, peak, width, ascii_only=self._look.ascii_only)

    @property
    def _digits(self) -> int:
        return max(len(str(row.rank)) for row in self._ranks)

    def _rest(self, ranks: int) -> str:
        return f"and {count(ranks)} more"

    def _safe(self, text: str) -> str:
        return clean(text, ascii_only=self._look.ascii_only)
