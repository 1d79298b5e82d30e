"""Text wrapped at words, as high as it needs to be."""

import textwrap
from dataclasses import dataclass

from rich.style import Style
from textual.geometry import Size
from textual.strip import Strip
from textual.widget import Widget

from kair_tui.render.terminal import Look
from kair_tui.render.text import clean
from kair_tui.tui.widgets.lines.line import Piece, fitted
from kair_tui.tui.widgets.styles import styles_of

_SIDES = 1


@dataclass(frozen=True)
class Paragraph:
    """`lead` stands before the first line, the others are set under what follows it."""

    text: str
    style: Style
    lead: str = ""

    def lines(self, width: int, *, ascii_only: bool) -> list[Piece]:
        """Its lines, made safe, each at most `width` long where its words allow it."""
        text, lead = clean(self.text, ascii_only=ascii_only), clean(self.lead, ascii_only=ascii_only)
        margin = " " * len(lead)
        # Names and paths stay whole where they can: a hyphen is no place to break them.
        wrapped = textwrap.wrap(
            text, max(width, 20), initial_indent=lead, subsequent_indent=margin, break_on_hyphens=False
        )
        return [(line, self.style) for line in wrapped or [lead]]


class Paragraphs(Widget):
    """Paragraphs one under the other; none of them takes no line."""

    DEFAULT_CSS = "Paragraphs { height: auto; width: 1fr; }"

    def __init__(self, look: Look, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self.look = look
        self._paragraphs: tuple[Paragraph, ...] = ()
        self._lines: list[Piece] = []
        self._width = -1

    def show(self, *paragraphs: Paragraph) -> None:
        """Redraws where the text changed."""
        if paragraphs != self._paragraphs:
            self._paragraphs, self._width = paragraphs, -1
            self.refresh(layout=True)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002
        """As many lines as the words need at this width."""
        return len(self._wrapped(width))

    def render_line(self, y: int) -> Strip:
        """One line."""
        width, styles = self.size.width, styles_of(self.look)
        lines = self._wrapped(width)
        pieces = [(" " * _SIDES, styles.base), lines[y]] if y < len(lines) else []
        return fitted(pieces, width, styles.base, self.look)

    def _wrapped(self, width: int) -> list[Piece]:
        if width != self._width:
            room = width - 2 * _SIDES
            self._lines = [
                line for one in self._paragraphs for line in one.lines(room, ascii_only=self.look.ascii_only)
            ]
            self._width = width
        return self._lines
