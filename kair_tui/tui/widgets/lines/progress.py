"""A progress bar of files parsed."""

from kair_tui.render.terminal import Look
from kair_tui.render.units import count
from kair_tui.tui.widgets.lines.line import Line, Piece

_WIDTH = 40


class Bar(Line):
    """A bar and two figures; nothing until there is something to do."""

    def __init__(self, look: Look) -> None:
        super().__init__(look)
        self._done = self._total = 0

    def show(self, done: int, total: int) -> None:
        """`done` of `total`."""
        self._done, self._total = done, total
        self.refresh()

    def pieces(self, width: int) -> list[Piece]:
        """`████░░░░ 3 of 8 files`."""
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
