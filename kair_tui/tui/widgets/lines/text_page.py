"""Lines of text to scroll through, however many."""

from collections.abc import Sequence
from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from kair_tui.render.terminal import Look
from kair_tui.render.text import clean
from kair_tui.tui.widgets.lines.line import Piece
from kair_tui.tui.widgets.styles import styles_of


class TextPage(ScrollView, can_focus=True):
    """Text that is only read; its lines are cut, not wrapped, and scroll sideways."""

    DEFAULT_CSS = "TextPage { height: 1fr; padding: 0 1; overflow: auto; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "scroll_up", "up", show=False),
        Binding("down,j", "scroll_down", "scroll", key_display="up/down"),
        Binding("left", "scroll_left", "left", show=False),
        Binding("right", "scroll_right", "right", show=False),
        Binding("pageup,ctrl+u", "page_up", "page up", show=False),
        Binding("pagedown,space,ctrl+d", "page_down", "page down", show=False),
        Binding("home", "scroll_home", "top", show=False),
        Binding("end,G", "scroll_end", "end", show=False),
    ]

    def __init__(self, look: Look) -> None:
        super().__init__()
        self._look = look
        self._lines: list[Piece] = []

    def show(self, lines: Sequence[Piece]) -> None:
        """Replaces the text; lines are made safe here."""
        ascii_only = self._look.ascii_only
        self._lines = [(clean(text, ascii_only=ascii_only), style) for text, style in lines]
        self.virtual_size = Size(max((cell_len(text) for text, _ in self._lines), default=0), len(self._lines))
        self.scroll_home(animate=False)
        self.refresh()

    @property
    def text(self) -> str:
        """All of it."""
        return "\n".join(text for text, _ in self._lines)

    def render_line(self, y: int) -> Strip:
        """One line of what is in view."""
        base, at = styles_of(self._look).base, y + self.scroll_offset.y
        width = self.size.width
        if at >= len(self._lines):
            return Strip.blank(width, base)
        text, style = self._lines[at]
        left = self.scroll_offset.x
        return Strip([Segment(text, style)]).crop(left, left + width).adjust_cell_length(width, base)
