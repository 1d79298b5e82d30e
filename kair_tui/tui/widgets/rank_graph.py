"""The graph of who waited for whom as a foldable list: each awaited rank, and below it who waited and why.

Also the neighbourhood of a root cause as a tree: whom it delayed, and who waited for those.
"""

from collections.abc import Iterator, Sequence
from typing import ClassVar, Final

from rich.style import Style
from textual.binding import Binding, BindingType

from kair_tui.render.blame_graph import WaitingLine
from kair_tui.render.drawing import bar
from kair_tui.render.units import duration, percent
from kair_tui.tui.widgets.lines import Piece, fitted
from kair_tui.tui.widgets.lists import Choices

TIME, SHARE = 9, 9
"""Columns of the figures at the end of a line."""

BAR: Final = 12
"""Columns of the bar before them, if there is room; twice as many on a wide screen."""
_WIDE, _NARROW = 110, 64
_UNFOLDED: Final = 3
"""Ranks that are unfolded at first."""


class _Waiting(Choices[WaitingLine]):
    """A list that marks the ranks accused by triage, and only those."""

    accused: frozenset[int] = frozenset()

    def accuse(self, ranks: frozenset[int]) -> None:
        """Set them, before anything is shown."""
        self.accused = ranks

    def marked(self, rank: int | None, text: str, otherwise: Style) -> Piece:
        """Return the text, marked if the rank is accused."""
        if rank not in self.accused:
            return (text, otherwise)
        return (f"{self.look.glyphs.alarm} {text}", self.text_styles.alarm)


class RankGraph(_Waiting):
    """Ranks by how long others waited for them, the first of them unfolded."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "choose", "open rank"),
        Binding("space", "fold", "fold"),
        Binding("right,l", "follow", "follow", key_display="right"),
        Binding("left,h", "back", "to the rank that it is under, or fold", show=False),
        Binding("z", "fold_all", "fold all", show=False),
    ]

    _graph: Sequence[WaitingLine] = ()
    _unfolded: frozenset[WaitingLine] = frozenset()

    def show_graph(self, graph: Sequence[WaitingLine]) -> None:
        """Replace it."""
        self._graph = graph
        self._unfolded = frozenset([one for one in graph if one.role == "awaited"][:_UNFOLDED])
        self.show(tuple(self._lines_of(graph)))

    @property
    def awaited(self) -> int:
        """Return the number of awaited ranks."""
        return sum(len(one.ranks) for one in self._graph)

    def _lines_of(self, listed: Sequence[WaitingLine]) -> Iterator[WaitingLine]:
        for one in listed:
            yield one
            if one in self._unfolded:
                yield from self._lines_of(one.below)

    @property
    def _folds(self) -> WaitingLine | None:
        """Return the ranks under the cursor, or the parent of the edge there."""
        return next((one for one in reversed(self.items[: self.at + 1]) if not one.is_last), None)

    # Folding, and along edges.

    def action_fold(self) -> None:
        """Show who waited for the rank under the cursor, or hide it."""
        if (of := self._folds) is not None:
            self._fold_to(self._unfolded ^ {of}, of)

    def action_fold_all(self) -> None:
        """Fold all ranks, or unfold them if all are folded."""
        every = frozenset(one for one in self._graph if one.role == "awaited")
        if (of := self._folds) is not None:
            self._fold_to(frozenset() if self._unfolded else every, of)

    def action_follow(self) -> None:
        """Unfold the rank under the cursor; from an edge go to the rank at its other end, if awaited."""
        line = self.chosen
        if line is None:
            return
        if not line.is_last:
            self._fold_to(self._unfolded | {line}, line)
            return
        many = next((one for one in self._graph if one.role == "several" and line.rank in one.ranks), None)
        listed = self._graph if many is None else many.below
        to = next((one for one in listed if one.role == "awaited" and one.rank == line.rank), None)
        if to is not None:
            self._fold_to(self._unfolded | {to} | ({many} if many is not None else set()), to)

    def action_back(self) -> None:
        """Go from an edge to its rank; from there fold."""
        line, of = self.chosen, self._folds
        if line is not of and of is not None:
            self._go_to(of)
        elif line in self._unfolded:
            self.action_fold()

    def _fold_to(self, unfolded: frozenset[WaitingLine], to: WaitingLine) -> None:
        """Put the cursor on `to`, or on the line it is folded into."""
        self._unfolded = unfolded
        self.show(tuple(self._lines_of(self._graph)))
        self._go_to(to)

    def _go_to(self, to: WaitingLine) -> None:
        at = {line: at for at, line in reversed(list(enumerate(self.items)))}
        many = next((one for one in self._graph if to in one.below), to)
        self.move_to(at.get(to, at.get(many, 0)))

    # Drawing.

    def line_of(self, item: WaitingLine, width: int) -> list[Piece]:  # noqa: ARG002
        """Return its text, a bar and its figures."""
        styles = self.text_styles
        # The last column is the scroll bar's, or blank.
        whole = self.size.width - 1
        figures = f"{self.safe(duration(item.time_us)):>{TIME}}{percent(item.share):>{SHARE}}"
        columns = 2 * BAR if whole >= _WIDE else BAR if whole >= _NARROW else 0
        peak = self._peak
        drawn = bar(item.share, None, peak, columns, ascii_only=self.look.draws_ascii) if item.rank is not None else ""
        drawn = drawn.ljust(columns)
        room = whole - len(figures) - columns - 1
        strip = fitted(self._text(item), room, styles.base, self.look)
        text = [(segment.text, segment.style or styles.base) for segment in strip]
        of_bar = styles.levels[1] if item.is_last else styles.levels[2]
        return [*text, (" ", styles.base), (drawn, of_bar), (figures, styles.base)]

    @property
    def _peak(self) -> float:
        """Return the share of the longest bar; the remainder belongs to no rank."""
        named = [one.share for one in self._graph if one.rank is not None]
        return max(named, default=1.0)

    def _text(self, line: WaitingLine) -> list[Piece]:
        styles, glyphs = self.text_styles, self.look.glyphs
        text = self.safe(line.text)
        if line.is_last:
            guide = glyphs.last_branch if line.is_last[-1] else glyphs.branch
            blamed = line.rank if line.role == "because" else None
            return [(f"    {guide}", styles.dim), self.marked(blamed, text, styles.base)]
        fold = glyphs.unfolded if line in self._unfolded else glyphs.folded
        if line.role == "several":
            return [(f"{fold} {glyphs.hops} ", styles.base), self.marked(line.rank, text, styles.base)]
        who = f"rank {line.rank}"
        named = self.marked(line.rank, who, styles.strong)
        return [(f"{fold} ", styles.base), named, (text.removeprefix(who), styles.base)]


_SHORTEST: Final = 12


class Neighbours(_Waiting):
    """Lines of the tree, one of them under the cursor."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "choose", "open rank")]

    def line_of(self, item: WaitingLine, width: int) -> list[Piece]:  # noqa: ARG002
        """Return its text and its figures."""
        styles = self.text_styles
        figures = f"{self.safe(duration(item.time_us)):>{TIME}}{percent(item.share):>{SHARE}}"
        # The last column is the scroll bar's, or blank.
        room = max(self.size.width - 1 - len(figures), _SHORTEST)
        strip = fitted(self._text(item), room, styles.base, self.look)
        text = [(segment.text, segment.style or styles.base) for segment in strip]
        of_cause = styles.alarm if item.rank in self.accused else styles.strong
        return [*text, (figures, of_cause if item.role == "cause" else styles.base)]

    def _text(self, line: WaitingLine) -> list[Piece]:
        styles, glyphs = self.text_styles, self.look.glyphs
        text = self.safe(line.text)
        if line.role == "cause":
            return [self.marked(line.rank, f"rank {line.rank} {text}", styles.strong)]
        *above, is_last = line.is_last
        guides = "".join(" " * len(glyphs.trunk) if over else glyphs.trunk for over in above)
        guides += glyphs.last_branch if is_last else glyphs.branch
        style = {"late": styles.strong, "also": styles.dim}.get(line.role, styles.base)
        return [(f"  {guides}", styles.dim), (text, style)]
