"""The rows of a timeline under an axis of times, with a cursor over their cells.

Styles of a timeline's bars and marks: a colour for each kind where the terminal has them.
"""

from collections.abc import Sequence
from functools import cache
from typing import ClassVar, Final

from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip

from kair_engine.results.timeline import TimelineKind, TimelineResult, TimelineRow
from kair_tui.render.terminal import Look
from kair_tui.render.timeline_drawing import DrawnLine, Ink, Signs, axis, column_of, draw_rows, label, row_of, signs
from kair_tui.render.units import duration
from kair_tui.tui.widgets.drawn import CELL_MOVES, Drawn, RefreshedByFocus
from kair_tui.tui.widgets.lines import Piece, cut_in_the_middle, fitted
from kair_tui.tui.widgets.styles import styles_of

LABEL: Final = 18
"""Columns before the cells, at most."""
FIGURE: Final = 9
"""Columns behind them: what others waited."""
_SMALLEST: Final = 10
_SHORTEST_LABEL: Final = 4


class TimelineRows(Drawn, RefreshedByFocus, can_focus=True):
    """Ranks down, time to the right; the cursor is on a row and a cell."""

    DEFAULT_CSS = "TimelineRows { height: 1fr; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        *CELL_MOVES,
        Binding("pageup", "page(-1)", "page up", show=False),
        Binding("pagedown", "page(1)", "page down", show=False),
        Binding("home", "move(0, -1000000)", "begin of the view", show=False),
        Binding("end", "move(0, 1000000)", "end of the view", show=False),
    ]

    class Moved(Message):
        """The cursor is on another cell."""

    class Beyond(Message):
        """The cursor would leave the view, to the left (-1) or to the right (1)."""

        def __init__(self, by: int) -> None:
            super().__init__()
            self.by = by

    class Opened(Message):
        """The row under the cursor was clicked again."""

    class Resized(Message):
        """There is other room for cells."""

    def __init__(self, look: Look, *, id: str = "rows") -> None:  # noqa: A002
        super().__init__(look, id=id)
        self._result: TimelineResult | None = None
        self._lines: list[DrawnLine] = []
        self._labels: list[str] = []
        self._drawn: dict[int, Strip] = {}
        self._left = _SHORTEST_LABEL
        """Columns before the cells."""
        self._top = 0
        """The first line in view."""
        self.at = 0
        """The row under the cursor, as a place in the result's rows."""
        self.column = 0

    # The room there is.

    @property
    def cells(self) -> int:
        """Return cells of a row."""
        return max(self.size.width - self._left - FIGURE, _SMALLEST)

    @property
    def height(self) -> int:
        """Return lines for rows, under the axis."""
        return max(self.size.height - 1, 1)

    def two_a_line(self, ranks: int) -> bool:
        """Return whether so many ranks have to share lines."""
        return self._signs.halves is not None and ranks > self.height

    @property
    def _signs(self) -> Signs:
        return signs(ascii_only=self.look.ascii_only, coloured=self.look.colours != "none")

    def on_resize(self) -> None:
        """Pictures are of the size that they are drawn for."""
        self._draw()
        self.post_message(self.Resized())

    # What is shown.

    def show(self, result: TimelineResult, rank: int, lane: str | None, time_us: float) -> None:
        """Replace the rows; the cursor goes to a rank's row, or the thread's or stream's, at that time."""
        same = self._result is not None and self._result.rows is result.rows
        self._result = result
        if not same:
            self._make_room(result)
            self._draw()
        at = row_of(result.rows, rank, lane)
        at = row_of(result.rows, rank) if at is None else at
        self.point(at or 0, column_of(result, time_us, self.cells), quietly=True)

    def _make_room(self, result: TimelineResult) -> None:
        """For the longest label; whoever asked for as many windows as there were cells hears of it."""
        left = min(max(_SHORTEST_LABEL, *(len(label(row)) + 1 for row in result.rows)), LABEL)
        if left != self._left:
            self._left = left
            self.post_message(self.Resized())

    @property
    def row(self) -> TimelineRow | None:
        """Return the row under the cursor."""
        rows = self._result.rows if self._result is not None else ()
        return rows[self.at] if self.at < len(rows) else None

    @property
    def time_us(self) -> float:
        """Return the middle of the cell under the cursor, on the job's clock."""
        if self._result is None:
            return 0.0
        begin, end = self._result.begin_us, self._result.end_us
        return begin + (end - begin) * (self.column + 0.5) / self.cells

    def _draw(self) -> None:
        self._drawn.clear()
        if self._result is None or not self.size.width:
            return
        ranks = sum(row.lane is None for row in self._result.rows)
        self._lines = draw_rows(self._result, self.cells, self._signs, two_a_line=self.two_a_line(ranks))
        self._labels = [self._label([self._result.rows[at] for at in line.rows]) for line in self._lines]
        self.at = min(self.at, max(len(self._result.rows) - 1, 0))
        self.column = min(self.column, self.cells - 1)
        self._follow()
        self.refresh()

    def _label(self, rows: Sequence[TimelineRow]) -> str:
        text = label(rows[0]) if len(rows) == 1 else f"{rows[0].first_rank}-{rows[-1].last_rank}"
        return self.safe(text)

    # Drawing.

    def render_line(self, y: int) -> Strip:
        """Return the axis, then the lines in view."""
        styles, result = self.text_styles, self._result
        at = y - 1 + self._top
        if result is None or (y and at >= len(self._lines)):
            return Strip.blank(self.size.width, styles.base)
        if y == 0:
            times = self.safe(axis(result, self.cells))
            pieces = [(" " * self._left + times + f"{'imposed':>{FIGURE}}", styles.dim)]
            return fitted(pieces, self.size.width, styles.base, self.look)
        if at not in self._drawn:
            self._drawn[at] = self._strip(self._lines[at], self._labels[at], result)
        strip = self._drawn[at]
        if self.has_focus and self.at in self._lines[at].rows:
            before = self._left + self.column
            cell = strip.crop(before, before + 1).apply_style(styles.cursor)
            strip = Strip.join([strip.crop(0, before), cell, strip.crop(before + 1, self.size.width)])
        return strip

    def _strip(self, line: DrawnLine, text: str, result: TimelineResult) -> Strip:
        styles = self.text_styles
        rows = [result.rows[at] for at in line.rows]
        imposed = max(row.imposed_us for row in rows) if rows[0].lane is None else 0.0
        figure = self.safe(duration(imposed)) if imposed else ""
        short = cut_in_the_middle(text, self._left - 1, self.look)
        style = styles.dim if rows[0].lane is not None else styles.base
        bars: list[Piece] = [(run.text, bar_style(self.look, run.front, run.back)) for run in line.runs]
        pieces = [(f"{short:<{self._left}}", style), *bars, (f"{figure:>{FIGURE}}", styles.base)]
        return fitted(pieces, self.size.width, styles.base, self.look)

    # The cursor.

    def action_move(self, down: int, right: int) -> None:
        """Go to the cell beside; beyond the edge the view goes on."""
        column = self.column + right
        if abs(right) == 1 and not 0 <= column < self.cells:
            self.post_message(self.Beyond(right))
        else:
            self.point(self.at + down, column)

    def action_page(self, by: int) -> None:
        """By as many rows as are in view."""
        self.point(self.at + by * self.height, self.column)

    def point(self, at: int, column: int, *, quietly: bool = False) -> None:
        """Put the cursor on a cell, the nearest that there is; `quietly` without saying so."""
        if self._result is None or not self._result.rows:
            return
        before = self.at, self.column
        self.at = min(max(at, 0), len(self._result.rows) - 1)
        self.column = min(max(column, 0), self.cells - 1)
        self._follow()
        for row, cell in (before, (self.at, self.column)):
            line = self._line_of(row)
            self.refresh(Region(self._left + cell, 1 + line - self._top, 1, 1).intersection(self.size.region))
        if not quietly and before != (self.at, self.column):
            self.post_message(self.Moved())

    def _line_of(self, at: int) -> int:
        return next((number for number, line in enumerate(self._lines) if at in line.rows), 0)

    def _follow(self) -> None:
        line = self._line_of(self.at)
        top = min(max(self._top, line - self.height + 1), line)
        top = max(min(top, len(self._lines) - self.height), 0)
        if top != self._top:
            self._top = top
            self.refresh()

    def on_click(self, event: events.Click) -> None:
        """Put the cursor there; a second click opens."""
        line = event.y - 1 + self._top
        if event.y < 1 or line >= len(self._lines):
            return
        at, column = self._lines[line].rows[0], min(max(event.x - self._left, 0), self.cells - 1)
        if (at, column) == (self.at, self.column):
            self.post_message(self.Opened())
        else:
            self.point(at, column)


_DARK: Final[dict[TimelineKind, str]] = {
    "compute": "#4d7ba6",
    "communication": "#6ba477",
    "waiting": "#8a7240",
    "input": "#9a79b5",
    "host": "#c98a55",
    "rest": "#5a626e",
    "unknown": "#7b838f",
    "operation": "#587a86",
    "synchronisation": "#6d6f93",
}
_LIGHT: Final[dict[TimelineKind, str]] = {
    "compute": "#5b8dbd",
    "communication": "#5f9e6d",
    "waiting": "#dcb964",
    "input": "#a57fc0",
    "host": "#cc7a38",
    "rest": "#a4abb4",
    "unknown": "#8d949d",
    "operation": "#84a5b3",
    "synchronisation": "#a29fc4",
}
_SIXTEEN: Final[dict[TimelineKind, str]] = {
    "compute": "blue",
    "communication": "green",
    "waiting": "yellow",
    "input": "magenta",
    "host": "cyan",
}


@cache
def bar_style(look: Look, front: Ink, back: TimelineKind) -> Style:
    """Of a cell with that in front of that."""
    styles = styles_of(look)
    colours = _colours(look)
    behind = Style(bgcolor=colours[back]) if back in colours else Style()
    if front in colours:
        return styles.base + Style(color=colours[front]) + behind
    if front in ("rest", "unknown", "operation", "synchronisation"):
        return styles.dim + behind
    return (styles.base if front == "nothing" else styles.strong) + behind


def _colours(look: Look) -> dict[TimelineKind, str]:
    if look.colours == "none":
        return {}
    if look.colours == "16":
        return _SIXTEEN
    return _LIGHT if look.light else _DARK
