"""The graph of who waited for whom as a list to fold: each rank that was waited for, under it by whom and why.

The neighbourhood of a root cause as a tree: whom it made late, and under each who waited for that rank.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from rich.style import Style
from textual.binding import Binding, BindingType

from kair_tui.render.blame_graph import Awaited, Edge, Neighbour
from kair_tui.render.drawing import bar
from kair_tui.render.units import duration, percent
from kair_tui.tui.widgets.lines import Piece, fitted
from kair_tui.tui.widgets.lists import Choices, Item

TIME, SHARE = 9, 9
"""Columns of the figures at the end of a line."""

BAR: Final = 12
"""Columns of the bar before them, where there is room; twice as many on a wide screen."""
_WIDE, _NARROW = 110, 64
_UNFOLDED: Final = 3
"""Ranks that show by whom they were waited for from the beginning."""


@dataclass(frozen=True)
class GraphLine:
    """A rank that was waited for, or an edge under it."""

    of: Awaited
    edge: Edge | None = None
    is_last: bool = False

    @property
    def time_us(self) -> float:
        """Return how long was waited."""
        return self.of.time_us if self.edge is None else self.edge.time_us

    @property
    def share(self) -> float:
        """Of all waiting."""
        return self.of.share if self.edge is None else self.edge.share

    @property
    def rank(self) -> int | None:
        """Return where it leads."""
        return (self.of.rank if self.of.rank is not None else self.of.by_rank) if self.edge is None else self.edge.rank

    @property
    def text(self) -> str:
        """Return what it says, the figures left out."""
        if self.edge is not None:
            return self.edge.text
        return self.of.text if self.of.rank is None else f"rank {self.of.rank} {self.of.text}"

    @property
    def detail(self) -> str:
        """Return what more there is to know."""
        return self.of.detail if self.edge is None else self.edge.detail


class Accusing(Choices[Item]):
    """A list that marks the ranks that a test of triage accuses, and only those."""

    accused: frozenset[int] = frozenset()

    def accuse(self, ranks: frozenset[int]) -> None:
        """Set them, before anything is shown."""
        self.accused = ranks


class RankGraph(Accusing[GraphLine]):
    """Ranks in the order of how long others waited for them, the first of them unfolded."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "choose", "open rank"),
        Binding("space", "fold", "fold"),
        Binding("right,l", "follow", "follow", key_display="right"),
        Binding("left,h", "back", "to the rank that it is under, or fold", show=False),
        Binding("z", "fold_all", "fold all", show=False),
    ]

    _graph: Sequence[Awaited] = ()
    _unfolded: frozenset[Awaited] = frozenset()

    def show_graph(self, graph: Sequence[Awaited]) -> None:
        """Replace it."""
        self._graph = graph
        self._unfolded = frozenset([one for one in graph if one.rank is not None][:_UNFOLDED])
        self.show(tuple(self._all_lines()))

    @property
    def awaited(self) -> int:
        """Return how many ranks were waited for."""
        return sum(max(len(one.members), 1) for one in self._graph)

    def _all_lines(self) -> Iterator[GraphLine]:
        for one in self._graph:
            yield from self._with_edges(one)
            if one in self._unfolded:
                yield from (line for member in one.members for line in self._with_edges(member))

    def _with_edges(self, one: Awaited) -> Iterator[GraphLine]:
        yield GraphLine(one)
        if one in self._unfolded:
            yield from (GraphLine(one, edge, edge is one.edges[-1]) for edge in one.edges)

    # Folding, and along edges.

    def action_fold(self) -> None:
        """Show by whom the rank under the cursor was waited for, or that no more."""
        if self.chosen is not None:
            self._fold_to(self._unfolded ^ {self.chosen.of}, self.chosen.of)

    def action_fold_all(self) -> None:
        """Fold all ranks, or unfold them where all are folded."""
        every = frozenset(one for one in self._graph if one.rank is not None)
        if self.chosen is not None:
            self._fold_to(frozenset() if self._unfolded else every, self.chosen.of)

    def action_follow(self) -> None:
        """Unfold the rank under the cursor; from an edge goes to the rank at its other end, if it was waited for."""
        line = self.chosen
        if line is None:
            return
        if line.edge is None:
            self._fold_to(self._unfolded | {line.of}, line.of)
            return
        many = next((one for one in self._graph if any(member.rank == line.rank for member in one.members)), None)
        listed = self._graph if many is None else many.members
        to = next((one for one in listed if one.rank == line.rank), None)
        if to is not None:
            self._fold_to(self._unfolded | {to} | ({many} if many is not None else set()), to)

    def action_back(self) -> None:
        """From an edge to its rank; from there folds."""
        line = self.chosen
        if line is not None and line.edge is not None:
            self._go_to(line.of)
        elif line is not None and line.of in self._unfolded:
            self.action_fold()

    def _fold_to(self, unfolded: frozenset[Awaited], to: Awaited) -> None:
        """The cursor is on `to` then, or on what that is folded into."""
        self._unfolded = unfolded
        self.show(tuple(self._all_lines()))
        self._go_to(to)

    def _go_to(self, to: Awaited) -> None:
        at = {line.of: at for at, line in reversed(list(enumerate(self.items))) if line.edge is None}
        many = next((one for one in self._graph if to in one.members), to)
        self.move_to(at.get(to, at.get(many, 0)))

    # Drawing.

    def line_of(self, item: GraphLine, width: int) -> list[Piece]:  # noqa: ARG002
        """Return what it says, a bar and its figures."""
        styles = self.text_styles
        # The last column is the scroll bar's, or blank.
        whole = self.size.width - 1
        figures = f"{self.safe(duration(item.time_us)):>{TIME}}{percent(item.share):>{SHARE}}"
        columns = 2 * BAR if whole >= _WIDE else BAR if whole >= _NARROW else 0
        peak = self._peak
        drawn = bar(item.share, None, peak, columns, ascii_only=self.look.ascii_only) if item.rank is not None else ""
        drawn = drawn.ljust(columns)
        room = whole - len(figures) - columns - 1
        strip = fitted(self._text(item), room, styles.base, self.look)
        text = [(segment.text, segment.style or styles.base) for segment in strip]
        of_bar = styles.levels[1] if item.edge is not None else styles.levels[2]
        return [*text, (" ", styles.base), (drawn, of_bar), (figures, styles.base)]

    @property
    def _peak(self) -> float:
        """Return the share that the longest bar stands for: what is left over is no rank's."""
        named = [one.share for one in self._graph if one.rank is not None or one.by_rank is not None]
        return max(named, default=1.0)

    def _text(self, line: GraphLine) -> list[Piece]:
        styles, glyphs = self.text_styles, self.look.glyphs
        if line.edge is not None:
            guide = glyphs.last_branch if line.is_last else glyphs.branch
            accused = line.edge.role == "late" and line.edge.rank in self.accused
            style = styles.alarm if accused else styles.base
            return [(f"    {guide}", styles.dim), (f"{self._sign(accused)}{self.safe(line.text)}", style)]
        fold = glyphs.unfolded if line.of in self._unfolded else glyphs.folded
        if line.of.rank is None:
            accused = line.of.by_rank in self.accused
            style = styles.alarm if accused else styles.base
            return [(f"{fold} {glyphs.hops} ", styles.base), (f"{self._sign(accused)}{self.safe(line.text)}", style)]
        accused = line.of.rank in self.accused
        of_rank = styles.alarm if accused else styles.strong
        return [
            (f"{fold} ", styles.base),
            (f"{self._sign(accused)}rank {line.of.rank}", of_rank),
            (f" {self.safe(line.of.text)}", styles.base),
        ]

    def _sign(self, accused: bool) -> str:
        return f"{self.look.glyphs.alarm} " if accused else ""


_SHORTEST: Final = 12


class Neighbours(Accusing[Neighbour]):
    """Lines of the tree, one of them under the cursor."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "choose", "open rank")]

    def line_of(self, item: Neighbour, width: int) -> list[Piece]:  # noqa: ARG002
        """Return what it says, and its figures."""
        styles = self.text_styles
        figures = f"{self.safe(duration(item.time_us)):>{TIME}}{percent(item.share):>{SHARE}}"
        # The last column is the scroll bar's, or blank.
        room = max(self.size.width - 1 - len(figures), _SHORTEST)
        strip = fitted(self._text(item), room, styles.base, self.look)
        text = [(segment.text, segment.style or styles.base) for segment in strip]
        return [*text, (figures, self._style_of_cause(item) if item.role == "cause" else styles.base)]

    def _style_of_cause(self, line: Neighbour) -> Style:
        styles = self.text_styles
        return styles.alarm if line.rank in self.accused else styles.strong

    def _text(self, line: Neighbour) -> list[Piece]:
        styles, glyphs = self.text_styles, self.look.glyphs
        text = self.safe(line.text)
        if line.role == "cause":
            sign = f"{glyphs.alarm} " if line.rank in self.accused else ""
            return [(f"{sign}rank {line.rank} {text}", self._style_of_cause(line))]
        *above, is_last = line.is_last
        guides = "".join(" " * len(glyphs.trunk) if over else glyphs.trunk for over in above)
        guides += glyphs.last_branch if is_last else glyphs.branch
        style = {"late": styles.strong, "waited": styles.base, "also": styles.dim}[line.role]
        return [(f"  {guides}", styles.dim), (text, style)]
