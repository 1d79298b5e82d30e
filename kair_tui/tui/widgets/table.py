"""A table of any number of rows: only those in view are rendered."""

from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar

from rich.cells import cell_len, set_cell_size
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.strip import Strip
from textual.worker import Worker, get_current_worker

from kair_tui.render.answer import ALARM, DIM, GAP, SHORTEST_NAME, Cell, Column, Styled, fitting, shrinks
from kair_tui.render.terminal import Look
from kair_tui.render.units import count
from kair_tui.tui.filtering import Filter, Ordering, ordered
from kair_tui.tui.widgets.drawn import CursorMoved, RowCursor
from kair_tui.tui.widgets.lines import Piece, cut_in_the_middle, fitted

Row = TypeVar("Row")

AT_ONCE = 20_000
"""Rows up to which a new order is computed at once; beyond, in a thread."""
_MEASURED = 200
"""Rows examined for the columns' first widths."""
_MARGIN = 2
"""Columns of every line for the pointer."""


class Table(RowCursor, Generic[Row], can_focus=True):
    """Rows under a header, one of them under the cursor."""

    DEFAULT_CSS = "Table { height: 1fr; overflow-x: hidden; overflow-y: auto; }"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "choose", "open")]
    HEADER = 1

    class Moved(CursorMoved):
        """The cursor is on another row."""

        def __init__(self, table: "Table[Any]") -> None:
            super().__init__()
            self.table = table

        @property
        def control(self) -> "Table[Any]":
            """Return the table."""
            return self.table

    class Chosen(Moved):
        """Enter was pressed, or the row under the cursor was clicked."""

    class Ordered(Moved):
        """The rows have the latest filter and order."""

    class _Found(Message, bubble=False):
        """A thread has computed an order."""

        def __init__(self, rows: Sequence[Any], how: Ordering, places: Any) -> None:  # noqa: ANN401
            super().__init__()
            self.rows, self.how, self.places = rows, how, places

    def __init__(
        self,
        look: Look,
        columns: Sequence[Column[Row]],
        *,
        id: str | None = None,  # noqa: A002
    ) -> None:
        super().__init__(look, id=id)
        self._columns = tuple(columns)
        self._empty = ""
        self._all: Sequence[Row] = ()
        self._places: Any = None
        """Indices of the shown rows, in order; None for all in original order."""
        self._how = Ordering()
        self._widths = [0] * len(self._columns)
        self._laid_out: list[tuple[int, int]] = []
        """The columns that fit, by index, and their widths."""
        self._laid_out_for = 0
        self._filled = self._chosen_early = False

    @property
    def fields(self) -> tuple[str, ...]:
        """Return the fields for filters and sorting."""
        return tuple(dict.fromkeys(column.key for column in self._columns if column.key))

    @property
    def total(self) -> int:
        """Return the number of all rows, including filtered ones."""
        return len(self._all)

    @property
    def count(self) -> int:
        """Return the number of shown rows."""
        return len(self._all) if self._places is None else len(self._places)

    def counted(self, total: int | None = None) -> str:
        """Return the number of shown rows, and if filtered the total: `3 of 8`."""
        total = self.total if total is None else total
        return count(total) if self.count == total else f"{count(self.count)} of {count(total)}"

    @property
    def chosen(self) -> Row | None:
        """Return the row under the cursor."""
        return self.row(self.at) if self.at < self.count else None

    def row(self, at: int) -> Row:
        """Return a shown row by its index."""
        return self._all[at if self._places is None else int(self._places[at])]

    # What is shown.

    def show(self, rows: Sequence[Row], *, empty: str = "", columns: Sequence[Column[Row]] | None = None) -> None:
        """Replace the rows, and the columns if given; filter and order stay.

        `empty` is shown without rows.
        """
        self._columns = self._columns if columns is None else tuple(columns)
        self._all, self._places, self._empty, self._filled = rows, None, empty, True
        self._widths = [0] * len(self._columns)
        self._order(self._how)

    def filter(self, wanted: Filter) -> None:
        """Leave out rows that do not match."""
        self._order(Ordering(wanted, self._how.field, self._how.descending))

    def sort(self, field: str, *, descending: bool = False) -> None:
        """Order the rows by one of `fields`."""
        self._order(Ordering(self._how.wanted, field, descending))

    def _order(self, how: Ordering) -> None:
        self._how = how
        if how == Ordering():
            self._put(None)
        elif len(self._all) <= AT_ONCE:
            self._put(ordered(self._all, self.fields, how))
        else:
            # Not a partial: Textual logs a worker's arguments, even a million rows.
            self.run_worker(self._find, thread=True, exclusive=True, group="order")

    def _find(self) -> None:
        """Compute the order, in a thread."""
        worker: Worker[Any] = get_current_worker()
        rows, how = self._all, self._how
        places = ordered(rows, self.fields, how, stop=lambda: worker.is_cancelled)
        if places is not None:
            self.post_message(self._Found(rows, how, places))

    def on_table__found(self, message: _Found) -> None:
        """Show a thread's order, if it is still wanted."""
        if message.how == self._how and message.rows is self._all:
            self._put(message.places)

    def _put(self, places: Any) -> None:  # noqa: ANN401
        self._places, self.at = places, 0
        self._measure(range(min(self.count, _MEASURED)))
        self._laid_out_for = 0
        self.virtual_size = Size(self.scrollable_content_region.width, self.count + 1)
        self.scroll_to(y=0, animate=False)
        self.refresh()
        self.post_message(self.Ordered(self))
        self.post_moved()
        if self._filled and self._chosen_early:
            self._chosen_early = False
            self.action_choose()

    # Columns.

    def on_resize(self) -> None:
        """Keep the cursor in view."""
        self.bring_into_view()
        self.refresh()

    def _measure(self, places: range) -> bool:
        """Widen the columns for some rows; return whether any became wider."""
        before = list(self._widths)
        self._widths = [
            max(width, cell_len(self._title(column))) for width, column in zip(before, self._columns, strict=True)
        ]
        for row in map(self.row, places):
            for at, column in enumerate(self._columns):
                self._widths[at] = max(self._widths[at], cell_len(self._text(column.show(row))))
        return self._widths != before

    def _lay_out(self, width: int) -> None:
        """Lay out for the available width, which a scroll bar reduces."""
        self._laid_out_for, available = width, max(width - _MARGIN, 1)
        # Details only if no name has to be cut for them.
        places = list(range(len(self._columns)))
        if sum(self._widths) + GAP * (len(places) - 1) > available:
            places = [at for at in places if not self._columns[at].detail]
        kept = fitting([self._columns[at] for at in places], [self._widths[at] for at in places], available)
        keep = [places[at] for at in kept]
        widths = {at: self._widths[at] for at in keep}
        over = sum(widths.values()) + GAP * (len(keep) - 1) - available
        shrinking = [at for at in keep if shrinks(self._columns[at])]
        for shortest, at in ((shortest, at) for shortest in (SHORTEST_NAME, 1) for at in shrinking):
            cut = max(min(over, widths[at] - shortest), 0)
            widths[at], over = widths[at] - cut, over - cut
        self._laid_out = list(widths.items())

    def _text(self, cell: Cell) -> str:
        return self.safe(cell.text if isinstance(cell, Styled) else cell)

    # Drawing.

    def render_lines(self, crop: Region) -> list[Strip]:
        """Return visible lines; figures that need more room than earlier rows get it first."""
        first = self.scroll_offset.y + max(crop.y - 1, 0)
        width = self.scrollable_content_region.width
        wider = self._measure(range(first, min(first + crop.height, self.count)))
        if wider or width != self._laid_out_for:
            self._lay_out(width)
            self.refresh()
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        """Return one visible line."""
        styles, width = self.text_styles, self.scrollable_content_region.width
        at = y - 1 + self.scroll_offset.y
        if y == 0:
            return fitted(self._header(styles.title), width, styles.base, self.look).simplify()
        if at >= self.count:
            pieces = [("  ", styles.dim), (self._text(self._empty), styles.dim)] if not self.count and y == 1 else []
            return fitted(pieces, width, styles.base, self.look)
        on_cursor = at == self.at
        # One run per style: every run is sent with its colours.
        strip = fitted(self._line(self.row(at), on_cursor), width, styles.base, self.look).simplify()
        return strip.apply_style(styles.cursor) if on_cursor and self.has_focus else strip

    def _header(self, style: Style) -> list[Piece]:
        pieces: list[Piece] = [(" " * _MARGIN, style)]
        for at, width in self._laid_out:
            column = self._columns[at]
            pieces += [(self._cell(self._title(column), width, column), style), (" " * GAP, style)]
        return pieces[:-1]

    def _title(self, column: Column[Row]) -> str:
        title, glyphs = self._text(column.title), self.look.glyphs
        if not column.key or column.key != self._how.field:
            return title
        return f"{title} {glyphs.descending if self._how.descending else glyphs.ascending}"

    def _line(self, row: Row, on_cursor: bool) -> list[Piece]:
        styles = self.text_styles
        of_cell = {ALARM: styles.alarm, DIM: styles.dim}
        pointer = self.look.glyphs.pointer if on_cursor else ""
        pieces: list[Piece] = [(pointer.ljust(_MARGIN), styles.base)]
        for at, width in self._laid_out:
            column = self._columns[at]
            cell = column.show(row)
            style = of_cell.get(cell.style, styles.base) if isinstance(cell, Styled) else styles.base
            pieces += [(self._cell(self._text(cell), width, column), style), (" " * GAP, styles.base)]
        return pieces[:-1]

    def _cell(self, text: str, width: int, column: Column[Row]) -> str:
        length = cell_len(text)
        if length > width:
            return set_cell_size(cut_in_the_middle(text, width, self.look), width)
        return text + " " * (width - length) if column.align == "left" else " " * (width - length) + text

    # The cursor.

    def post_moved(self) -> None:
        """Report that the cursor is on another row."""
        self.post_message(self.Moved(self))

    def action_choose(self) -> None:
        """Choose the row under the cursor; before there are any, the first that comes."""
        self._chosen_early = not self._filled
        if self.chosen is not None:
            self.post_message(self.Chosen(self))

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to the row under the mouse; choose it if it already was there."""
        at = event.y - 1 + self.scroll_offset.y
        if event.y == 0 or at >= self.count:
            return
        if at == self.at:
            self.action_choose()
        self.move_to(at)
