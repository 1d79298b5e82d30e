"""The heading of a part of a screen, with a remark beside it and a legend at the end of the line."""

from collections.abc import Sequence

from rich.style import Style

from kair_tui.render.terminal import Look
from kair_tui.tui.widgets.lines.line import Line, Piece

Remark = Sequence[tuple[str, Style | None]]
"""Text and its style; None for what is secondary."""


class Heading(Line):
    """`ranks  by host                 score · <2 ▲ slow`; lit while the part has the keyboard."""

    def __init__(self, look: Look, title: str, *, of: str) -> None:
        super().__init__(look)
        self._title = title
        self.of = of
        """The id of the widget that it stands over."""
        self._left: Remark = ()
        self._right: Remark = ()
        self._lit = False

    def say(self, left: Remark, right: Remark = ()) -> None:
        """Replaces the remark and the legend; the legend goes first where there is no room."""
        self._left, self._right = left, right
        self.refresh()

    def light(self, lit: bool) -> None:
        """Whether the part has the keyboard."""
        if lit != self._lit:
            self._lit = lit
            self.refresh()

    def pieces(self, width: int) -> list[Piece]:
        """The line."""
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
