"""The rows of a timeline under an axis of times, with a cursor over their cells.

Also the styles of its bars and marks: a colour for each kind if the terminal has them.
"""

from collections.abc import Sequence
from functools import cache
from typing import ClassVar, Final

from rich.style import Style
from textual.binding import Binding, BindingType
from textual.message import Message

from kair_engine.results.timeline import TimelineKind, TimelineResult, TimelineRow
from kair_tui.render.terminal import Look
from kair_tui.render.timeline_drawing import (
    DrawnLine,
    Ink,
    Signs,
    axis,
    column_of,
    draw_rows,
    label,
    row_of,
    signs,
    solid,
)
from kair_tui.render.units import duration
from kair_tui.tui.widgets.drawn import CELL_MOVES
from kair_tui.tui.widgets.heat import Axis, Heat
from kair_tui.tui.widgets.lines import Piece, cut_in_the_middle
from kair_tui.tui.widgets.styles import styles_of

LABEL: Final = 18
"""Largest width of labels."""
FIGURE: Final = 9
"""Columns after the cells: how long others waited."""
_SMALLEST: Final = 10
_SHORTEST_LABEL: Final = 4


class TimelineRows(Heat, inherit_bindings=False):
    """Ranks down, time to the right; the cursor is on a row and a cell. Two rows can share a line."""

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
        """There is different room for cells."""

    _result: TimelineResult | None = None
    _ranks = 0
    """Rows of ranks, without those of their threads and streams."""
    _rows_drawn: Sequence[TimelineRow] = ()
    """The rows of the lines: not of a result that came while there was no room."""
    _lines: Sequence[DrawnLine] = ()
    _label_width = _SHORTEST_LABEL
    at = 0
    """The row under the cursor, as an index into the result's rows."""

    def on_mount(self) -> None:
        """Do without a scroll bar, which would reduce the requested cells."""
        self.styles.scrollbar_size_vertical = 0

    # Available room.

    @property
    def cells(self) -> int:
        """Return the number of cells in a row."""
        return max(self.size.width - self._label_width - FIGURE, _SMALLEST)

    @property
    def height(self) -> int:
        """Return the number of lines for rows, under the axis."""
        return max(self.size.height - self.HEADER, 1)

    def two_a_line(self, ranks: int) -> bool:
        """Return whether this many ranks have to share lines."""
        return self.look.colours != "none" and not self.look.draws_ascii and ranks > self.height

    @property
    def _is_solid(self) -> bool:
        """Whether waiting is drawn without shading: two ranks share a line, and their halves cannot be shaded."""
        return self.look.colours in ("256", "truecolor") and self.two_a_line(self._ranks)

    @property
    def signs(self) -> Signs:
        """Return the characters of the rows."""
        drawn_with = signs(ascii_only=self.look.draws_ascii, coloured=self.look.colours != "none")
        return solid(drawn_with) if self._is_solid else drawn_with

    def style_of(self, front: Ink, back: TimelineKind) -> Style:
        """Return the style of a cell with `front` before `back`."""
        return bar_style(self.look, front, back, solid=self._is_solid)

    def on_resize(self) -> None:
        """Request as many windows as cells."""
        self.post_message(self.Resized())

    # What is shown.

    def show(self, result: TimelineResult, rank: int, lane: str | None, time_us: float) -> None:
        """Replace the rows; the cursor goes to a rank's row, or the thread's or stream's, at that time."""
        same = self._result is not None and self._result.rows is result.rows
        self._result, self._ranks = result, sum(row.lane is None for row in result.rows)
        if not same:
            self._make_room(result)
        at = row_of(result.rows, rank, lane)
        at = row_of(result.rows, rank) if at is None else at
        if same:
            self._go_to(at or 0, column_of(result, time_us, self.cells))
        else:
            self.at, self.column = at or 0, column_of(result, time_us, self.cells)
            self.rearrange()

    def expect(self, ranks: Sequence[int]) -> None:
        """Keep room for these ranks' labels, so that windows are requested once; some may share a row."""
        if self._result is None and ranks:
            rank = str(max(ranks))
            rows = self.height * (2 if self.two_a_line(len(ranks)) else 1)
            longest = rank if len(ranks) <= rows else f"{rank} of {rank}-{rank}"
            self._label_width = min(max(_SHORTEST_LABEL, len(longest) + 1), LABEL)

    def _make_room(self, result: TimelineResult) -> None:
        """Make room for the longest label; a changed number of cells is reported."""
        width = min(max(_SHORTEST_LABEL, *(len(label(row)) + 1 for row in result.rows)), LABEL)
        if width != self._label_width:
            self._label_width = width
            self.post_message(self.Resized())

    @property
    def timeline_row(self) -> TimelineRow | None:
        """Return the row under the cursor."""
        rows = self._result.rows if self._result is not None else ()
        return rows[self.at] if self.at < len(rows) else None

    @property
    def rank(self) -> int | None:
        """Return the rank drawn there."""
        return None if self.timeline_row is None else self.timeline_row.rank

    @property
    def time_us(self) -> float:
        """Return the middle of the cell under the cursor, on the job's clock."""
        if self._result is None:
            return 0.0
        begin, end = self._result.begin_us, self._result.end_us
        return begin + (end - begin) * (self.column + 0.5) / self.cells

    # Drawing.

    def lay_out(self, width: int, height: int) -> None:  # noqa: ARG002
        """Lay out a line for every row, or for two ranks."""
        result, self._signs_of = self._result, cache(self._signs_of_line)
        if result is None:
            return
        self._rows_drawn = result.rows
        self._lines = draw_rows(result, self.cells, self.signs, two_a_line=self.two_a_line(self._ranks))
        self.rows, self.columns, self.left, self.right = (
            Axis(len(self._lines)),
            Axis(self.cells),
            self._label_width,
            FIGURE,
        )
        self.at = min(self.at, max(len(result.rows) - 1, 0))
        self.row, self.column = self._line_of(self.at), min(self.column, self.cells - 1)

    def header(self, line: int) -> tuple[Sequence[Piece], Sequence[tuple[int, Piece]], Sequence[Piece]]:  # noqa: ARG002
        """Return the axis."""
        assert self._result is not None
        dim = self.text_styles.dim
        return (), [(0, (self.safe(axis(self._result, self.cells)), dim))], [(f"{'awaited':>{FIGURE}}", dim)]

    def _rows_on(self, line: int) -> list[TimelineRow]:
        return [self._rows_drawn[at] for at in self._lines[line].rows]

    def label(self, row: int, line: int) -> Sequence[Piece]:  # noqa: ARG002
        """Return the label: a rank, thread or stream, or several ranks."""
        rows = self._rows_on(row)
        text = label(rows[0]) if len(rows) == 1 else f"{rows[0].first_rank}-{rows[-1].last_rank}"
        style = self.text_styles.dim if rows[0].lane is not None else self.text_styles.base
        return [(cut_in_the_middle(self.safe(text), self._label_width - 1, self.look), style)]

    def _signs_of_line(self, line: int) -> list[Piece]:
        return [(sign, self.style_of(run.front, run.back)) for run in self._lines[line].runs for sign in run.text]

    def cell(self, row: int, column: int, line: int) -> Piece:  # noqa: ARG002
        """Return a part of a bar, or a mark; nothing for a screen reader."""
        if self.look.plain:
            return " ", self.text_styles.base
        return self._signs_of(row)[column]

    def total(self, row: int, line: int) -> Sequence[Piece]:  # noqa: ARG002
        """Return how long others waited for it."""
        rows = self._rows_on(row)
        waited_us = max(one.imposed_us for one in rows) if rows[0].lane is None else 0.0
        figure = self.safe(duration(waited_us)) if waited_us else ""
        return [(f"{figure:>{FIGURE}}", self.text_styles.base)]

    # The cursor.

    def action_move(self, down: int, right: int) -> None:
        """Go to the adjacent cell; beyond the edge the view moves."""
        column = self.column + right
        if abs(right) == 1 and not 0 <= column < self.cells:
            self.post_message(self.Beyond(right))
        elif self._go_to(self.at + down, column):
            self.post_message(self.Moved())

    def action_page(self, by: int) -> None:
        """Move by as many rows as are in view."""
        self.action_move(by * self.height, 0)

    def point(self, row: int, column: int) -> None:
        """Put the cursor on a cell of a line."""
        if self._go_to(self._lines[row].rows[0], column):
            self.post_message(self.Moved())

    def _go_to(self, at: int, column: int) -> bool:
        """Put the cursor on the nearest cell; return whether it moved."""
        if self._result is None or not self._result.rows:
            return False
        before = self.at, self.column
        self.at = min(max(at, 0), len(self._result.rows) - 1)
        self.put(self._line_of(self.at), column)
        return before != (self.at, self.column)

    def _line_of(self, at: int) -> int:
        return next((number for number, line in enumerate(self._lines) if at in line.rows), 0)

    def action_open(self) -> None:
        """Report that the cell was clicked again."""
        self.post_message(self.Opened())


_DARK: Final[dict[TimelineKind, str]] = {
    "compute": "#5f87af",
    "communication": "#5faf87",
    "waiting": "#87875f",
    "input": "#af87af",
    "host": "#d7875f",
    "rest": "#626262",
    "unknown": "#878787",
    "operation": "#5f8787",
    "synchronisation": "#5f5f87",
}
_LIGHT: Final[dict[TimelineKind, str]] = {
    "compute": "#5f87af",
    "communication": "#5faf5f",
    "waiting": "#d7af5f",
    "input": "#af87af",
    "host": "#d7875f",
    "rest": "#a8a8a8",
    "unknown": "#949494",
    "operation": "#87afaf",
    "synchronisation": "#afafd7",
}
_SOLID_WAITING: Final = {False: "#4a4430", True: "#efe0bb"}
"""Waiting by whether the theme is light, as bright as its shaded character: cells of two ranks have no such halves."""
_SIXTEEN: Final[dict[TimelineKind, str]] = {
    "compute": "blue",
    "communication": "green",
    "waiting": "yellow",
    "input": "magenta",
    "host": "cyan",
}


@cache
def bar_style(look: Look, front: Ink, back: TimelineKind, *, solid: bool = False) -> Style:
    """Return the style of a cell with `front` before `back`; `solid` if waiting is drawn without shading."""
    styles = styles_of(look)
    colours = _colours(look)
    if solid:
        colours = {**colours, "waiting": _SOLID_WAITING[look.light]}
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
