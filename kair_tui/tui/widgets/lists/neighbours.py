"""The neighbourhood of a root cause as a tree: whom it made late, and under each who waited for that rank."""

from typing import ClassVar, Final

from rich.style import Style
from textual.binding import Binding, BindingType

from kair_tui.render.terminal import Look
from kair_tui.render.text import clean
from kair_tui.render.units import duration, percent
from kair_tui.render.views.blame.neighbours import Neighbour
from kair_tui.tui.widgets.lines.line import Piece, fitted
from kair_tui.tui.widgets.lists.select_list import Choices, Lines
from kair_tui.tui.widgets.styles import styles_of

TIME, SHARE = 9, 9
"""Columns of the figures at the end of a line."""
_SHORTEST: Final = 12


class Neighbours(Choices[Neighbour]):
    """Lines of the tree, one of them under the cursor."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "choose", "open rank")]

    def __init__(self, look: Look, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(look, self._lines_of, id=id)
        self._accused: frozenset[int] = frozenset()

    def accuse(self, ranks: frozenset[int]) -> None:
        """Ranks that a test of triage accuses, before they are shown: only those are marked."""
        self._accused = ranks

    def _lines_of(self, line: Neighbour, width: int) -> Lines:  # noqa: ARG002
        styles = styles_of(self.look)
        figures = (
            f"{clean(duration(line.time_us), ascii_only=self.look.ascii_only):>{TIME}}{percent(line.share):>{SHARE}}"
        )
        # The last column is the scroll bar's, or blank.
        room = max(self.size.width - 1 - len(figures), _SHORTEST)
        strip = fitted(self._text(line), room, styles.base, self.look)
        text = [(segment.text, segment.style or styles.base) for segment in strip]
        return [[*text, (figures, self._style_of_cause(line) if line.role == "cause" else styles.base)]]

    def _style_of_cause(self, line: Neighbour) -> Style:
        styles = styles_of(self.look)
        return styles.alarm if line.rank in self._accused else styles.strong

    def _text(self, line: Neighbour) -> list[Piece]:
        styles, glyphs = styles_of(self.look), self.look.glyphs
        text = clean(line.text, ascii_only=self.look.ascii_only)
        if line.role == "cause":
            sign = f"{glyphs.alarm} " if line.rank in self._accused else ""
            return [(f"{sign}rank {line.rank} {text}", self._style_of_cause(line))]
        *above, is_last = line.is_last
        guides = "".join(" " * len(glyphs.trunk) if over else glyphs.trunk for over in above)
        guides += glyphs.last_branch if is_last else glyphs.branch
        style = {"late": styles.strong, "waited": styles.base, "also": styles.dim}[line.role]
        return [(f"  {guides}", styles.dim), (text, style)]
