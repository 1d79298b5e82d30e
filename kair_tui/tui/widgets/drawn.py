"""Bases of widgets that draw their own lines: styles, and a cursor over rows.

Textual's `OptionList`, `DataTable` and `Tree` hold an object per row, show options only whole, and draw guides that are
not ASCII; lists here have a million rows, findings longer than the screen, and terminals without Unicode.
"""

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar, Final

from textual.binding import Binding, BindingType
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.widget import Widget

from kair_tui.render.terminal import Look
from kair_tui.tui.widgets.styles import TextStyles, styles_of


class CursorMoved(Message):
    """Something else is under a cursor."""


class RankOpened(Message):
    """Enter was pressed on a rank, or it was clicked again."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank


class Drawing:
    """Gives widgets that draw their own lines their styles."""

    look: Look
    """The terminal's capabilities."""

    @cached_property
    def text_styles(self) -> TextStyles:
        """Return the styles for that."""
        return styles_of(self.look)

    def safe(self, text: str) -> str:
        """Return `text` made safe for the terminal."""
        return self.look.safe(text)


class Drawn(Drawing, Widget):
    """A widget that draws its lines."""

    def __init__(self, look: Look, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self.look = look


class DrawnScroll(Drawing, ScrollView):
    """A widget that draws only lines in view."""

    def __init__(self, look: Look, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self.look = look


class RefreshedByFocus(Widget):
    """A base that comes after the widget's own: its CSS comes from the first."""

    def on_focus(self) -> None:
        """Draw the cursor where the keyboard is."""
        self.refresh()

    def on_blur(self) -> None:
        """Draw the cursor where the keyboard is."""
        self.refresh()


CELL_MOVES: Final[Sequence[BindingType]] = (
    Binding("left,h", "move(0, -1)", "left", show=False),
    Binding("right,l", "move(0, 1)", "right", show=False),
    Binding("up,k", "move(-1, 0)", "up", show=False),
    Binding("down,j", "move(1, 0)", "down", show=False),
)
"""Keys of a cursor over cells, in rows and columns."""


class RowCursor(DrawnScroll, RefreshedByFocus, inherit_bindings=False):
    """Rows under `HEADER` fixed lines, one of them under the cursor; `at` is its index."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "up", show=False),
        Binding("down,j", "move(1)", "down", show=False),
        Binding("pageup,ctrl+u", "page(-1)", "page up", show=False),
        Binding("pagedown,ctrl+d", "page(1)", "page down", show=False),
        Binding("home", "edge(-1)", "first", show=False),
        Binding("end,G", "edge(1)", "last", show=False),
    ]
    HEADER: ClassVar[int] = 0
    at = 0

    @property
    @abstractmethod
    def count(self) -> int:
        """Return the number of rows."""

    @abstractmethod
    def post_moved(self) -> None:
        """Report that the cursor is on another row."""

    def action_move(self, by: int) -> None:
        """Move the cursor by so many rows."""
        self.move_to(self.at + by)

    def action_page(self, by: int) -> None:
        """Move it by so many screens."""
        self.move_to(self.at + by * max(self.rows_in_view - 1, 1))

    def action_edge(self, by: int) -> None:
        """Move it to the first row, or to the last."""
        self.move_to(0 if by < 0 else self.count - 1)

    def move_to(self, at: int) -> None:
        """Put the cursor on a row, or the nearest one; redraw the two changed lines."""
        at = min(max(at, 0), self.count - 1)
        if at < 0 or at == self.at:
            return
        before, self.at = self.at, at
        self.refresh_line(before + self.HEADER)
        self.refresh_line(at + self.HEADER)
        self.bring_into_view()
        self.post_moved()

    @property
    def rows_in_view(self) -> int:
        """Return the number of rows that fit under the header."""
        return max(self.scrollable_content_region.height - self.HEADER, 1)

    def bring_into_view(self) -> None:
        """Scroll to the cursor if it is out of view."""
        top = self.scroll_offset.y
        if not top <= self.at < top + self.rows_in_view:
            self.scroll_to(y=self.at if self.at < top else self.at - self.rows_in_view + 1, animate=False)
