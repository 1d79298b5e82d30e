"""A list to choose from."""

from collections.abc import Callable, Sequence
from typing import ClassVar, Generic, TypeVar

from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from kair_tui.render.terminal import Look
from kair_tui.tui.widgets.focus import RefreshedByFocus
from kair_tui.tui.widgets.lines.line import Piece, fitted
from kair_tui.tui.widgets.styles import styles_of

Item = TypeVar("Item")
Lines = list[list[Piece]]


class Choices(ScrollView, RefreshedByFocus, Generic[Item], can_focus=True):
    """Items of one or more lines each, one of them under the cursor. `draw` gives an item's lines at a width."""

    DEFAULT_CSS = "Choices { height: 1fr; overflow-x: hidden; overflow-y: auto; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "up", show=False),
        Binding("down,j", "move(1)", "down", show=False),
        Binding("pageup,ctrl+u", "move(-10)", "page up", show=False),
        Binding("pagedown,ctrl+d", "move(10)", "page down", show=False),
        Binding("home", "move(-1000000)", "first", show=False),
        Binding("end,G", "move(1000000)", "last", show=False),
        Binding("enter", "choose", "open"),
    ]

    class Moved(Message):
        """The cursor is on another item."""

    class Chosen(Moved):
        """Enter was pressed, or the item was clicked."""

    def __init__(
        self,
        look: Look,
        draw: Callable[[Item, int], Lines],
        *,
        id: str | None = None,  # noqa: A002
        lit: bool = False,
    ) -> None:
        """With `lit` the cursor is seen though the keyboard is elsewhere."""
        super().__init__(id=id)
        self._lit = lit
        self.look = look
        self._draw = draw
        self.items: tuple[Item, ...] = ()
        self.at = 0
        self._lines: list[list[Piece]] = []
        self._tops: list[int] = [0]
        self._width = -1

    @property
    def chosen(self) -> Item | None:
        """The item under the cursor."""
        return self.items[self.at] if self.items else None

    def show(self, items: Sequence[Item]) -> None:
        """Replaces the items; the cursor goes to the first."""
        self.items, self.at, self._width = tuple(items), 0, -1
        self._lines, self._tops = [], [0]
        self._lay_out()
        self.scroll_home(animate=False)
        self.refresh()

    def on_resize(self) -> None:
        """Lines are made for the width."""
        self._lay_out()

    def _lay_out(self) -> None:
        width = self.scrollable_content_region.width
        if width == self._width or not width:
            return
        self._width, self._lines, self._tops = width, [], [0]
        for item in self.items:
            self._lines += self._draw(item, width)
            self._tops.append(len(self._lines))
        self.virtual_size = Size(width, len(self._lines))

    def render_line(self, y: int) -> Strip:
        """One line of what is in view."""
        styles, at, width = styles_of(self.look), y + self.scroll_offset.y, self.scrollable_content_region.width
        if at >= len(self._lines):
            return Strip.blank(width, styles.base)
        if (self.has_focus or self._lit) and at == self._tops[self.at]:
            # In the colours of ordinary text: reversed, a culprit's would be a block of red.
            pieces = [(text, styles.strong if style.bold else styles.base) for text, style in self._lines[at]]
            return fitted(pieces, width, styles.base, self.look).apply_style(styles.cursor)
        return fitted(self._lines[at], width, styles.base, self.look)

    def action_move(self, by: int) -> None:
        """Moves the cursor by so many items."""
        self.move_to(min(max(self.at + by, 0), len(self.items) - 1))

    def move_to(self, at: int) -> None:
        """Puts the cursor on an item and brings it into view."""
        if not self.items or at == self.at:
            return
        before, self.at = self.at, at
        # A list that is not shown, because the terminal is too small for it, has no lines.
        if len(self._tops) > len(self.items):
            for item in (before, at):
                self.refresh_line(self._tops[item])
            top, height = self._tops[at], self._tops[at + 1] - self._tops[at]
            self.scroll_to_region(Region(0, top, 1, height), animate=False)
        self.post_message(self.Moved())

    def action_choose(self) -> None:
        """Takes the item under the cursor."""
        if self.items:
            self.post_message(self.Chosen())

    def on_click(self, event: object) -> None:
        """Takes the item under the mouse."""
        line = getattr(event, "y", 0) + self.scroll_offset.y
        for item, (top, end) in enumerate(zip(self._tops, self._tops[1:], strict=False)):
            if top <= line < end:
                self.move_to(item)
                self.action_choose()
