"""Lines of text: pieces, headings, legends, paragraphs, progress, and pages to scroll through."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.strip import Strip

from kair_tui.render.terminal import Look
from kair_tui.render.units import count
from kair_tui.tui.widgets.drawn import Drawn, DrawnScroll
from kair_tui.tui.widgets.styles import styles_of

Piece = tuple[str, Style]
"""Safe text, and its style."""


def fitted(pieces: list[Piece], width: int, fill: Style, look: Look) -> Strip:
    """Return `pieces` as one line of exactly `width` cells, shortened with an ellipsis."""
    strip = Strip([Segment(text, style) for text, style in pieces if text])
    if strip.cell_length > width:
        strip = Strip([*strip.crop(0, max(width - 1, 0)), Segment(look.glyphs.ellipsis, fill)])
    return strip.adjust_cell_length(width, fill)


def cut_in_the_middle(text: str, width: int, look: Look) -> str:
    """Return `text` in at most `width` cells: both ends stay, because names often differ only at the end."""
    if cell_len(text) <= width:
        return text
    room = max(width - 1, 0)
    head, tail = text, text
    while cell_len(head) > (room + 1) // 2:
        head = head[:-1]
    while cell_len(tail) > room - cell_len(head):
        tail = tail[1:]
    return f"{head}{look.glyphs.ellipsis}{tail}"[: max(width, 0)]


class Line(Drawn):
    """One line of the screen, drawn from pieces."""

    DEFAULT_CSS = "Line { height: 1; width: 1fr; }"

    def pieces(self, width: int) -> list[Piece]:
        """Return the line's pieces."""
        raise NotImplementedError

    def fill(self) -> Style:
        """Return the style of the rest of the line."""
        return self.text_styles.base

    def render_line(self, y: int) -> Strip:
        """Return the line."""
        width = self.size.width
        return fitted(self.pieces(width) if y == 0 else [], width, self.fill(), self.look)


Remark = Sequence[tuple[str, Style | None]]
"""Text and its style; None for secondary text."""


class Heading(Line):
    """`ranks  by host                 score · <2 ▲ slow`; lit while the part has the keyboard."""

    _left: Remark = ()
    _right: Remark = ()
    _lit = False

    def __init__(self, look: Look, title: str, *, of: str) -> None:
        super().__init__(look)
        self._title = title
        self.of = of
        """The id of the widget below it."""

    def say(self, left: Remark, right: Remark = ()) -> None:
        """Replace the remark and the legend; the legend is dropped first."""
        self._left, self._right = left, right
        self.refresh()

    def light(self, lit: bool) -> None:
        """Set whether the part has the focus."""
        if lit != self._lit:
            self._lit = lit
            self.refresh()

    def pieces(self, width: int) -> list[Piece]:
        """Return the line."""
        pointer = self.look.glyphs.pointer if self._lit else " "
        head: list[Piece] = [
            (pointer, self.text_styles.strong),
            (self._title, self.text_styles.strong if self._lit else self.text_styles.title),
            ("  ", self.text_styles.base),
            *self._safe(self._left),
        ]
        tail = self._safe(self._right)
        gap = width - sum(len(text) for text, _ in head) - sum(len(text) for text, _ in tail) - 1
        return [*head, (" " * gap, self.text_styles.base), *tail] if gap > 0 else head

    def _safe(self, remark: Remark) -> list[Piece]:
        return [(self.safe(text), style or self.text_styles.dim) for text, style in remark]


def level_legend(look: Look, limits: Sequence[str]) -> list[Piece]:
    """Return the characters of a cell's levels, each with its limit; empty without limits."""
    if look.plain:
        return []
    words = [f"<{limits[0]}", *(f"{limit}+" for limit in limits)]
    signs = zip(look.glyphs.levels, words, styles_of(look).levels, strict=True)
    return [(f"{sign} {word}  ", style) for sign, word, style in signs]


_GAP = " "


class Legend(Line):
    """Characters in their own styles, with their meanings in words that can be read on any theme."""

    _shown: Sequence[Piece] = ()

    def show(self, pieces: Sequence[Piece]) -> None:
        """Replace them."""
        self._shown = pieces
        self.refresh()

    def pieces(self, width: int) -> list[Piece]:  # noqa: ARG002
        """Return the line."""
        parts = [(self.safe(text).partition(" "), style) for text, style in self._shown]
        words = self.text_styles.dim
        return [one for (sign, gap, word), of in parts for one in ((f" {sign}{gap}", of), (f"{word}{_GAP}", words))]


_SIDES = 1
WIDEST_PROSE: Final = 100
"""Columns of a line of sentences."""


@dataclass(frozen=True)
class Paragraph:
    """A text; `lead` stands before its first line, and the others are indented below it."""

    text: str
    style: str = "base"
    """A name in `TextStyles`."""
    lead: str = ""

    def lines(self, width: int, look: Look) -> list[Piece]:
        """Return its lines, made safe, at most `width` long if its words permit, and never too long to read."""
        text, lead = look.safe(self.text), look.safe(self.lead)
        margin = " " * len(lead)
        # Names and paths stay whole if possible: they are not broken at hyphens.
        room = max(min(width, WIDEST_PROSE), 20)
        wrapped = textwrap.wrap(text, room, initial_indent=lead, subsequent_indent=margin, break_on_hyphens=False)
        style: Style = getattr(styles_of(look), self.style)
        return [(line, style) for line in wrapped or [lead]]


class Paragraphs(Drawn):
    """Paragraphs one below the other; without any, no line."""

    DEFAULT_CSS = "Paragraphs { height: auto; width: 1fr; }"

    _paragraphs: tuple[Paragraph, ...] = ()
    _lines: Sequence[Piece] = ()
    _width = -1

    def show(self, *paragraphs: Paragraph) -> None:
        """Redraw if the text changed."""
        if paragraphs != self._paragraphs:
            self._paragraphs, self._width = paragraphs, -1
            self.refresh(layout=True)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002
        """Return the number of lines at this width."""
        return len(self._wrapped(width))

    def render_line(self, y: int) -> Strip:
        """Return one line."""
        width, styles = self.size.width, self.text_styles
        lines = self._wrapped(width)
        pieces = [(" " * _SIDES, styles.base), lines[y]] if y < len(lines) else []
        return fitted(pieces, width, styles.base, self.look)

    def _wrapped(self, width: int) -> Sequence[Piece]:
        if width != self._width:
            room = width - 2 * _SIDES
            self._lines = [line for one in self._paragraphs for line in one.lines(room, self.look)]
            self._width = width
        return self._lines


_WIDTH = 40


class Bar(Line):
    """A bar and two figures, or nothing before there are any; Textual's `ProgressBar` is not ASCII."""

    _done = _total = 0

    def show(self, done: int, total: int) -> None:
        """Show `done` of `total`."""
        self._done, self._total = done, total
        self.refresh()

    def pieces(self, width: int) -> list[Piece]:
        """Return `████░░░░ 3 of 8 files`."""
        if not self._total:
            return []
        glyphs, cells = self.look.glyphs, min(_WIDTH, width // 2)
        full = cells * self._done // self._total
        return [
            (" ", self.text_styles.base),
            (glyphs.full * full, self.text_styles.base),
            (glyphs.empty * (cells - full), self.text_styles.dim),
            (f"  {count(self._done)} of {count(self._total)} files parsed", self.text_styles.base),
        ]


class TextPage(DrawnScroll, can_focus=True):
    """Read-only text; its lines are cut, not wrapped, and scroll sideways."""

    DEFAULT_CSS = "TextPage { height: 1fr; padding: 0 1; overflow: auto; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("k", "scroll_up", "up", show=False),
        Binding("down,j", "scroll_down", "scroll", key_display="up/down"),
        Binding("ctrl+u", "page_up", "page up", show=False),
        Binding("space,ctrl+d", "page_down", "page down", show=False),
        Binding("G", "scroll_end", "end", show=False),
    ]

    _lines: Sequence[Piece] = ()

    def show(self, lines: Sequence[Piece]) -> None:
        """Replace the text; lines are made safe here."""
        self._lines = [(self.safe(text), style) for text, style in lines]
        self.virtual_size = Size(max((cell_len(text) for text, _ in self._lines), default=0), len(self._lines))
        self.scroll_home(animate=False)
        self.refresh()

    @property
    def text(self) -> str:
        """Return all of it."""
        return "\n".join(text for text, _ in self._lines)

    def render_line(self, y: int) -> Strip:
        """Return one visible line."""
        base, at = self.text_styles.base, y + self.scroll_offset.y
        width = self.size.width
        if at >= len(self._lines):
            return Strip.blank(width, base)
        text, style = self._lines[at]
        left = self.scroll_offset.x
        return Strip([Segment(text, style)]).crop(left, left + width).adjust_cell_length(width, base)
