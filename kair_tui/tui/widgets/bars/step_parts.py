"""Bars of a step's parts, or of its phases and scopes: a line for each, with a mark where its role's median lies."""

from dataclasses import dataclass

from textual.strip import Strip
from textual.widget import Widget

from kair_engine.results.rank import PartOfStep, RankProfileResult, SubgraphTime
from kair_tui.render.drawing.bars import bar
from kair_tui.render.terminal import Look
from kair_tui.render.text import clean, short_name
from kair_tui.render.units import duration, percent, signed_duration
from kair_tui.tui.widgets.lines.line import fitted
from kair_tui.tui.widgets.styles import styles_of

_NAME, _FIGURE = 13, 8
_WIDE = 64
"""From here on there is room for the median and the share as figures."""


@dataclass(frozen=True)
class _Row:
    """A part, a phase or a scope."""

    name: str
    own_us: float
    typical_us: float | None
    share: float

    @property
    def difference_us(self) -> float | None:
        """What the rank spends beyond its role's median."""
        return None if self.typical_us is None else self.own_us - self.typical_us


class StepParts(Widget):
    """The parts of the step; the one that is most above its role's median stands out."""

    DEFAULT_CSS = "StepParts { height: 7; }"

    def __init__(self, look: Look, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._look = look
        self._rows: tuple[_Row, ...] = ()
        self._what = "part"

    def show(self, result: RankProfileResult | None, *, subgraphs: bool = False) -> None:
        """Replaces the parts; with `subgraphs` phases and scopes stand there, those first that differ most."""
        self._rows = () if result is None else tuple(map(_of_part, result.parts))
        self._what = "scope" if subgraphs else "part"
        if subgraphs and result is not None:
            found = [_of_subgraph(row, result.step_time_us) for row in result.subgraphs]
            self._rows = tuple(sorted(found, key=lambda row: -abs(row.difference_us or 0.0)))
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """The titles where there is room for them, then a part in each line."""
        styles, width = styles_of(self._look), self.size.width
        # Of scopes, which can be more than there are lines for, the first ones stand under their titles, too.
        y -= self._what != "part" or self.size.height > len(self._rows)
        if not self._rows or y >= len(self._rows):
            return Strip.blank(width, styles.base)
        if y < 0:
            return fitted([(self._titles(width), styles.dim)], width, styles.base, self._look)
        row = self._rows[y]
        figures = self._figures(row, width)
        room = width - len(figures) - 1
        most = row is self._most
        drawn = bar(row.own_us, row.typical_us, self._peak, room, ascii_only=self._look.ascii_only)
        pieces = [(figures, styles.strong if most else styles.base), (drawn, styles.levels[3 if most else 1])]
        return fitted(pieces, width, styles.base, self._look)

    def _figures(self, row: _Row, width: int) -> str:
        us = row.difference_us
        difference = "–" if us is None else signed_duration(us)
        cells = [duration(row.own_us), difference]
        if width >= _WIDE:
            typical = "–" if row.typical_us is None else duration(row.typical_us)
            cells = [duration(row.own_us), typical, difference, percent(row.share)]
        return f" {row.name:<{_NAME}}" + "".join(f"{self._plain(cell):>{_FIGURE + 1}}" for cell in cells) + " "

    def _titles(self, width: int) -> str:
        titles = ("per step", "role", "differs", "of step") if width >= _WIDE else ("per step", "differs")
        return f" {self._what:<{_NAME}}" + "".join(f"{title:>{_FIGURE + 1}}" for title in titles)

    def _plain(self, text: str) -> str:
        return clean(text, ascii_only=self._look.ascii_only)

    @property
    def _peak(self) -> float:
        return max(max(row.own_us, row.typical_us or 0.0) for row in self._rows)

    @property
    def _most(self) -> _Row:
        return max(self._rows, key=lambda row: row.difference_us or 0.0)


def _of_part(part: PartOfStep) -> _Row:
    return _Row(part.part, part.own_us, part.typical_us, part.share)


def _of_subgraph(one: SubgraphTime, step_us: float) -> _Row:
    name = clean(short_name(one.subgraph, _NAME))[:_NAME]
    return _Row(name, one.own_us, one.typical_us, one.own_us / max(step_us, 1e-3))
