"""A line that says what signs mean."""

from collections.abc import Sequence

from kair_tui.render.terminal import Look
from kair_tui.tui.widgets.lines.line import Line, Piece

_GAP = " "


class Legend(Line):
    """Signs with their words, set apart."""

    def __init__(self, look: Look, *, id: str) -> None:  # noqa: A002
        super().__init__(look, id=id)
        self._told: Sequence[Piece] = ()

    def show(self, told: Sequence[Piece]) -> None:
        """Replaces them."""
        self._told = told
        self.refresh()

    def pieces(self, width: int) -> list[Piece]:  # noqa: ARG002
        """The line."""
        return [(f" {self.safe(text)}{_GAP}", style) for text, style in self._told]
