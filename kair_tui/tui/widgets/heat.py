"""A map of cells in rows and columns, of which only those in view are drawn.

Also one figure of every rank in a line: a cell for each, of several that share one the largest.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.strip import Strip

from kair_tui.render.drawing import RAMP, RAMP_ASCII, level, resampled
from kair_tui.render.terminal import Look
from kair_tui.tui.widgets.drawn import CELL_MOVES, CursorMoved, Drawn, DrawnScroll, RankOpened
from kair_tui.tui.widgets.lines import Piece, fitted

_KEPT: Final = 500
"""Lines kept as they were drawn."""


@dataclass(frozen=True)
class Axis:
    """Places of `count` items of `size` cells each, with a border of `gap` cells before each of `borders`."""

    count: int = 0
    size: int = 1
    borders: tuple[int, ...] = ()
    gap: int = 1

    @property
    def length(self) -> int:
        """Return cells from the first to the last."""
        return self.count * self.size + len(self.borders) * self.gap

    def start(self, item: int) -> int:
        """Return the first cell of an item."""
        return item * self.size + bisect_right(self.borders, item) * self.gap

    def at(self, cell: int) -> int | None:
        """Return the item that a cell belongs to; None for a border, and beyond the last."""
        item = bisect_right(range(self.count), cell, key=self.start) - 1
        return item if item >= 0 and cell < self.start(item) + self.size else None

    def within(self, begin: int, end: int) -> range:
        """Return the items of which a cell lies between `begin` and `end`."""
        first = max(bisect_right(range(self.count), begin, key=self.start) - 1, 0)
        return range(first, bisect_right(range(self.count), end - 1, key=self.start))


class Heat(DrawnScroll, can_focus=True):
    """Cells under a header, between a label and a row total. A kind of map defines their content."""

    DEFAULT_CSS = "Heat { height: 1fr; overflow: auto; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "open rank"),
        *CELL_MOVES,
        Binding("pageup,ctrl+u", "page(-1)", "page up", show=False),
        Binding("pagedown,ctrl+d", "page(1)", "page down", show=False),
        Binding("home", "move(0, -1000000)", "first column", show=False),
        Binding("end", "move(0, 1000000)", "last column", show=False),
        Binding("ctrl+home", "move(-1000000, 0)", "first row", show=False),
        Binding("ctrl+end,G", "move(1000000, 0)", "last row", show=False),
    ]
    LIT: ClassVar[bool] = False
    """Whether the cursor is visible without the focus."""
    HAS_BORDERS: ClassVar[bool] = True
    """Whether borders between cells are drawn, or blank."""
    HEADER = 1
    """Fixed lines over the cells."""

    class Moved(CursorMoved):
        """Another cell is under the cursor."""

    def __init__(self, look: Look, *, id: str) -> None:  # noqa: A002
        super().__init__(look, id=id)
        self.rows = self.columns = Axis()
        self.row = self.column = 0
        self.left = self.right = 0
        """Columns of the screen for labels and totals."""
        self._width = 0
        """Width of all three: a scroll bar has its own column."""
        self._bordered: frozenset[int] = frozenset()
        self._strips: dict[int, Strip] = {}

    # What a kind of map defines.

    @property
    def rank(self) -> int | None:
        """Return the rank of the row under the cursor."""
        raise NotImplementedError

    def lay_out(self, width: int, height: int) -> None:
        """Set `rows`, `columns`, `left`, `right` for cells in this room, and the cursor's row and column."""
        raise NotImplementedError

    def label(self, row: int, line: int) -> Sequence[Piece]:
        """Return the label of one line of a row."""
        raise NotImplementedError

    def cell(self, row: int, column: int, line: int) -> Piece:
        """Return one line of a cell, exactly as wide as it is."""
        raise NotImplementedError

    def total(self, row: int, line: int) -> Sequence[Piece]:
        """Return the total of a row."""
        raise NotImplementedError

    def header(self, line: int) -> tuple[Sequence[Piece], Sequence[tuple[int, Piece]], Sequence[Piece]]:
        """Return a header line: over labels, over cells from given columns on, in order, and over totals."""
        raise NotImplementedError

    def ticks(self, apart: int, text_of: Callable[[int], str]) -> list[tuple[int, Piece]]:
        """Return column headings, at least `apart` columns of the screen from one another."""
        found = []
        for column in range(0, self.columns.count, -(-apart // self.columns.size)):
            start, text = self.columns.start(column), self.safe(text_of(column))
            if start + len(text) <= self.columns.length:
                found.append((start, (text, self.text_styles.dim)))
        return found

    # Layout.

    def rearrange(self) -> None:
        """Lay everything out again."""
        if not self.is_mounted or not self.size.width:
            return
        self._strips.clear()
        shown, height = self.scrollable_content_region.width, max(self.size.height - self.HEADER, 1)
        self._width = shown + self.scrollbar_size_vertical
        self.lay_out(self._width, height)
        if self.rows.length > height and (bar := self.styles.scrollbar_size_vertical):
            self._width -= bar
            self.lay_out(self._width, height)
        self._bordered = frozenset(self.columns.borders)
        self.virtual_size = Size(self.left + self.columns.length + self.right, self.rows.length + self.HEADER)
        self._follow()
        self.refresh()

    def on_resize(self) -> None:
        """Give cells the available room."""
        self.rearrange()

    def watch_scroll_x(self, old_value: float, new_value: float) -> None:
        """Drop cached lines, which are for the columns in view."""
        self._strips.clear()
        super().watch_scroll_x(old_value, new_value)

    def on_focus(self) -> None:
        """Draw the cursor where the keyboard is."""
        self._redraw(self.row, self.column)

    def on_blur(self) -> None:
        """Draw the cursor where the keyboard is."""
        self._redraw(self.row, self.column)

    # Drawing.

    def render_line(self, y: int) -> Strip:
        """Return one visible line."""
        width = self.size.width
        if y < self.HEADER:
            return self._heading(y) if self.rows.count else Strip.blank(width, self.text_styles.base)
        line = y - self.HEADER + self.scroll_offset.y
        if line >= self.rows.length:
            return Strip.blank(width, self.text_styles.base)
        strip = self._strips.get(line)
        if strip is None or strip.cell_length != width:
            if len(self._strips) > _KEPT:
                self._strips.clear()
            strip = self._strips[line] = self._drawn(line)
        return strip

    @property
    def _room(self) -> int:
        """Return columns of the screen for cells."""
        return max(self._width - self.left - self.right, 1)

    def _heading(self, line: int) -> Strip:
        before, over, behind = self.header(line)
        pieces: list[Piece] = []
        x, offset = 0, self.scroll_offset.x
        for start, (text, style) in over:
            if start < offset or start + cell_len(text) > offset + self._room:
                continue  # A part of a name or number would be another one.
            pieces += [(" " * (start - x), self.text_styles.base), (text, style)]
            x = start + cell_len(text)
        cells = Strip([Segment(text, style) for text, style in pieces if text])
        return self._joined(before, cells.crop(offset, offset + self._room), behind)

    def _drawn(self, line: int) -> Strip:
        row = self.rows.at(line)
        if row is None:
            return self._joined((), self._cells(None, 0), ())
        of_row = line - self.rows.start(row)
        return self._joined(self.label(row, of_row), self._cells(row, of_row), self.total(row, of_row))

    def _cells(self, row: int | None, line: int) -> Strip:
        """Return the visible cells of one line of a row; None for the border between two rows."""
        columns, offset, glyphs = self.columns, self.scroll_offset.x, self.look.glyphs
        shown = columns.within(offset, offset + self._room)
        between, sign = (glyphs.horizontal, glyphs.cross) if row is None else (" ", glyphs.vertical)
        border = (sign if self.HAS_BORDERS else " ").ljust(columns.gap, between)
        ordinary = self.text_styles.levels[0]  # as most cells next to a border: no change of colour has to be sent
        pieces: list[Piece] = []
        for column in shown:
            if pieces and column in self._bordered:
                pieces.append((border, ordinary))
            text, style = (glyphs.horizontal * columns.size, ordinary) if row is None else self.cell(row, column, line)
            if row == self.row and column == self.column and (self.has_focus or self.LIT):
                style += self.text_styles.cursor
            if pieces and pieces[-1][1] is style:
                pieces[-1] = (pieces[-1][0] + text, style)
            else:
                pieces.append((text, style))
        left = offset - (columns.start(shown.start) if shown else 0)
        return Strip([Segment(text, style) for text, style in pieces]).crop(left, left + self._room)

    def _joined(self, before: Sequence[Piece], cells: Strip, behind: Sequence[Piece]) -> Strip:
        base, width = self.text_styles.base, self.size.width
        drawn = min(self._room, self.columns.length)
        parts = (
            fitted(list(before), self.left, base, self.look),
            cells.adjust_cell_length(drawn, base),
            fitted(list(behind), self.right, base, self.look),
        )
        return Strip.join(parts).adjust_cell_length(width, base)

    # The cursor.

    def action_move(self, down: int, right: int) -> None:
        """Go to the adjacent cell."""
        self.point(self.row + down, self.column + right)

    def action_page(self, by: int) -> None:
        """Move by as many rows as are in view."""
        self.point(self.row + by * max((self.size.height - self.HEADER) // self.rows.size, 1), self.column)

    def point(self, row: int, column: int) -> None:
        """Put the cursor on the nearest cell, and redraw the two changed ones."""
        if self.rows.count:
            self.put(row, column)
            self.post_message(self.Moved())

    def put(self, row: int, column: int) -> None:
        """Do so without reporting it."""
        before = self.row, self.column
        self.row = min(max(row, 0), self.rows.count - 1)
        self.column = min(max(column, 0), self.columns.count - 1)
        for changed in (before, (self.row, self.column)):
            self._redraw(*changed)
        self._follow()

    def action_open(self) -> None:
        """Open the row's rank."""
        if self.rank is not None:
            self.post_message(RankOpened(self.rank))

    def on_click(self, event: events.Click) -> None:
        """Put the cursor there; a second click opens."""
        offset = event.get_content_offset(self)
        if offset is None or offset.y < self.HEADER:
            return
        row = self.rows.at(offset.y - self.HEADER + self.scroll_offset.y)
        column = self.columns.at(offset.x - self.left + self.scroll_offset.x)
        if row is None:
            return
        if row == self.row and column in (None, self.column):
            self.action_open()
        else:
            self.point(row, self.column if column is None else column)

    def _redraw(self, row: int, column: int) -> None:
        if not 0 <= row < self.rows.count:
            return
        top = self.rows.start(row)
        for line in range(top, top + self.rows.size):
            self._strips.pop(line, None)
        x = self.left + self.columns.start(column) - self.scroll_offset.x
        y = self.HEADER + top - self.scroll_offset.y
        self.refresh(Region(x, y, self.columns.size, self.rows.size).intersection(self.size.region))

    def _follow(self) -> None:
        x = _into_view(self.columns.start(self.column), self.columns.size, self.scroll_offset.x, self._room)
        height = self.scrollable_content_region.height - self.HEADER
        y = _into_view(self.rows.start(self.row), self.rows.size, self.scroll_offset.y, max(height, 1))
        if (x, y) != self.scroll_offset:
            self.scroll_to(x, y, animate=False, immediate=True)  # a screen would be painted twice


def _into_view(start: int, size: int, offset: int, room: int) -> int:
    """Return where to scroll to: nowhere if it is visible, else so that its surroundings are visible."""
    if offset <= start and start + size <= offset + room:
        return offset
    margin = room // 4
    return max(start - margin, 0) if start < offset else max(start + size + margin - room, 0)


_HOST: Final = 16
"""Longest host name in columns."""


class RankHeat(Heat):
    """A map with a row for each of some ranks."""

    _ranks: Sequence[int] = ()
    """In the order of their rows."""
    _rank_width = _host_width = 0

    def host_of(self, rank: int) -> str:
        """Return a rank's host; empty if there is only one."""
        raise NotImplementedError

    @property
    def rank(self) -> int | None:
        """Return the rank of the row."""
        return self._ranks[self.row] if self._ranks else None

    def move_to(self, rank: int) -> None:
        """Move the cursor to the row of a rank, if it is shown."""
        if rank in self._ranks:
            self.point(self._ranks.index(rank), self.column)

    def measure_labels(self, ranks: Collection[int]) -> None:
        """Keep room for these ranks and their hosts."""
        self._rank_width = max(len(str(max(ranks, default=0))), len("rank"))
        self._host_width = min(max(map(len, map(self.host_of, ranks)), default=0), _HOST)
        self.left = 1 + self._rank_width + 2 + (self._host_width + 2 if self._host_width else 0)

    def label_of(self, rank: str, host: str, style: Style) -> list[Piece]:
        """Return a rank and its host, or their titles."""
        host = host[: max(self._host_width, len("host"))] if self._host_width else ""
        return [(f" {rank:>{self._rank_width}}  ", style), (host, self.text_styles.dim)]


_WIDEST = 6
"""Columns of a cell where ranks are few."""
_ABOVE = 1.25
"""Ratio to the median at which a cell is coloured."""


class RankStrip(Drawn):
    """`rank 0 ▂▂▂█▂▂ rank 255`."""

    DEFAULT_CSS = "RankStrip { height: 1; }"

    _ranks: Sequence[int] = ()
    _values: Sequence[float] = ()
    _usual = 0.0

    def show(self, ranks: Sequence[int], values: Sequence[float], usual: float) -> None:
        """Replace the figures, one for each of `ranks`; `usual` is their median."""
        self._ranks, self._values, self._usual = ranks, values, usual
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Return the line."""
        styles, width = self.text_styles, self.size.width
        pieces = self._pieces(width) if y == 0 and self._values else []
        return fitted(pieces, width, styles.base, self.look)

    def _pieces(self, width: int) -> list[Piece]:
        styles = self.text_styles
        first, last = f" rank {self._ranks[0]} ", f" rank {self._ranks[-1]}"
        room = max(width - len(first) - len(last) - 1, 1)
        cells = resampled(self._values, room, max)
        columns = min(max(room // len(cells), 1), _WIDEST)
        ramp, peak = RAMP_ASCII if self.look.draws_ascii else RAMP, max(cells)
        drawn = [
            (
                (ramp[level(value, peak, len(ramp))] * max(columns - 1, 1)).ljust(columns),
                styles.levels[3] if value > _ABOVE * self._usual else styles.levels[1],
            )
            for value in cells
        ]
        return [(first, styles.dim), *drawn, (last, styles.dim)]
