"""One line of a screen, drawn from pieces of text."""

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from kair_tui.render.terminal import Look
from kair_tui.render.text import clean
from kair_tui.tui.widgets.styles import TextStyles, styles_of

Piece = tuple[str, Style]
"""Text that is safe to draw, and how."""


def fitted(pieces: list[Piece], width: int, fill: Style, look: Look) -> Strip:
    """`pieces` as one line of exactly `width` cells, shortened with an ellipsis."""
    strip = Strip([Segment(text, style) for text, style in pieces if text])
    if strip.cell_length > width:
        strip = Strip([*strip.crop(0, max(width - 1, 0)), Segment(look.glyphs.ellipsis, fill)])
    return strip.adjust_cell_length(width, fill)


class Line(Widget):
    """One line of the screen, drawn from pieces."""

    DEFAULT_CSS = "Line { height: 1; width: 1fr; }"

    def __init__(self, look: Look, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self.look = look
        self.text_styles: TextStyles = styles_of(look)

    def safe(self, text: str) -> str:
        """`text` as it may be sent to the terminal."""
        return clean(text, ascii_only=self.look.ascii_only)

    def pieces(self, width: int) -> list[Piece]:
        """What the line says."""
        raise NotImplementedError

    def fill(self) -> Style:
        """The style of what is left of the line."""
        return self.text_styles.base

    def render_line(self, y: int) -> Strip:
        """The line."""
        width = self.size.width
        return fitted(self.pieces(width) if y == 0 else [], width, self.fill(), self.look)
