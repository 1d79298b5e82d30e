"""Grids with a cell for every rank, darker the more it stands out; in the score grid flagged ranks have a sign.

The line over a grid of rows and columns that says which column is which.

A grid of what every worker costs.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.strip import Strip

from kair.app.candidates import Worker
from kair_engine.results.triage import RankedRank
from kair_tui.render.terminal import Look
from kair_tui.render.units import percent, score
from kair_tui.tui.widgets.drawn import CELL_MOVES, CursorMoved, DrawnScroll, RankOpened
from kair_tui.tui.widgets.grid_layout import Arrangement, Group, Spot, Zoom
from kair_tui.tui.widgets.lines import Line, Piece

LIMITS: Final = (2.0, 3.0, 5.0, 10.0)
"""Scores from which a cell is one level darker: they are values of t, seldom above 3 of healthy ranks."""

MARKED: Final = 5
"""The level above those of the ramp: the cell gets a sign of its own."""
_MERGED: Final = tuple(2**power for power in range(1, 15))


class OfRank(Protocol):
    """What a cell shows is of one rank."""

    @property
    def rank(self) -> int:
        """Return its number."""
        ...


Row = TypeVar("Row", bound=OfRank)


class CellGrid(DrawnScroll, Generic[Row], can_focus=True):
    """Cells that can be walked over with the arrow keys; enter opens the rank under the cursor."""

    DEFAULT_CSS = "CellGrid { height: auto; padding: 0 1; overflow: auto; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "open rank"),
        *CELL_MOVES,
        Binding("pageup,ctrl+u", "move(-10, 0)", "page up", show=False),
        Binding("pagedown,ctrl+d", "move(10, 0)", "page down", show=False),
        Binding("G", "move(1000000, 1000000)", "last rank", show=False),
        Binding("plus,equals_sign", "zoom(-1)", "zoom", key_display="+ -"),
        Binding("minus", "zoom(1)", "zoom out", show=False),
        Binding("n", "next_flagged(1)", "next slow rank", show=False),
        Binding("p", "next_flagged(-1)", "slow rank before", show=False),
    ]

    SHARE_OF_HEIGHT: ClassVar[float] = 0.45
    """How much of the screen it takes at most."""

    class Moved(CursorMoved):
        """Another cell is under the cursor."""

    def __init__(self, look: Look, *, id: str) -> None:  # noqa: A002
        super().__init__(look, id=id)
        self._ranks: dict[int, Row] = {}
        self._level: dict[int, int] = {}
        self._groups: Sequence[Group] = ()
        self._aligned = False
        self._hidden: Callable[[int], bool] = lambda _: False
        self._zooms: tuple[Zoom, ...] = (Zoom(1),)
        self._zoom: int | None = None
        """Which of them was chosen; None for the largest that fits."""
        self._arrangement = Arrangement((), Zoom(1), 1, 1)
        self._arranged_for: tuple[int, int] | None = None
        self._cursor: Spot | None = None
        self._rank: int | None = None
        self._strips: dict[int, Strip] = {}

    # What a grid of some sort says of its cells.

    def level(self, row: Row) -> int:
        """Return how dark it is, from 0; MARKED for one that has the sign."""
        raise NotImplementedError

    def figure(self, row: Row) -> str:
        """Return what is written into it where there is room."""
        raise NotImplementedError

    # What is shown.

    def show(self, ranking: Sequence[Row]) -> None:
        """A row for each rank, the worst first; the cursor goes there unless it is on a rank already."""
        same_ranks = self._ranks.keys() == {row.rank for row in ranking}
        self._ranks = {row.rank: row for row in ranking}
        self._level = {row.rank: self.level(row) for row in ranking}
        digits = len(str(max(self._ranks, default=0)))
        figures = max((len(self.figure(row)) for row in ranking), default=0)
        zooms = (
            Zoom(digits + figures + 6),
            Zoom(digits + 4),
            Zoom(2),
            Zoom(1),
            *(Zoom(1, ranks) for ranks in _MERGED if ranks < 2 * len(self._ranks)),
        )
        if self._rank not in self._ranks:
            self._rank = ranking[0].rank if ranking else None
        if same_ranks and zooms == self._zooms:
            self._redraw()
            return
        self._zooms = zooms
        self._rearrange()

    def group(self, groups: Sequence[Group], *, aligned: bool) -> None:
        """Put ranks together; `aligned` groups are rows of one table."""
        self._groups, self._aligned = groups, aligned
        self._rearrange()

    def hide(self, hidden: Callable[[int], bool]) -> None:
        """Leave the cells of ranks blank for which `hidden` is true."""
        self._hidden = hidden
        self._redraw()

    @property
    def rank(self) -> int | None:
        """Return the rank under the cursor: of several in one cell the most suspicious."""
        return self._rank

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return all ranks of the cell under the cursor."""
        return () if self._cursor is None else self._arrangement.ranks_in(self._cursor)

    def move_to(self, rank: int) -> None:
        """Put the cursor on a rank and bring it into view."""
        spot = self._arrangement.spot_of(rank)
        if spot is not None:
            self._rank = rank
            self._point(spot)

    def column_names(self) -> list[tuple[int, str]]:
        """Of a table, what stands over its columns: where on the screen each begins, and the name."""
        if not self._aligned or not self._groups:
            return []
        columns, arrangement = self._groups[0].columns, self._arrangement
        side = self.styles.padding.left
        found: list[tuple[int, str]] = []
        for spot in arrangement.line(0):
            name = columns[spot.cell * arrangement.zoom.ranks] if columns else ""
            if not found or found[-1][1] != name:
                found.append((spot.x + side, name))
        return found

    # Layout.

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002
        """What the cells need, up to a share of the screen; one line more for a bar under rows that are too long."""
        self._arrange(width)
        needed = self._arrangement.height + (1 if self._arrangement.width > width else 0)
        return min(max(needed, 1), self._room())

    def on_resize(self) -> None:
        """Cells flow anew."""
        self._arrange(self.scrollable_content_region.width)
        self._fit()

    def _room(self) -> int:
        return max(int(self.app.size.height * self.SHARE_OF_HEIGHT), 3)

    def _rearrange(self) -> None:
        self._arranged_for = None
        if self.is_mounted and self.size.width:
            self._arrange(self.scrollable_content_region.width)
            self._fit()
        self.refresh(layout=True)

    def _arrange(self, width: int) -> None:
        wanted = (width, self._room())
        if wanted == self._arranged_for or width <= 0:
            return
        self._arranged_for = wanted
        if self._zoom is not None:
            self._arrangement = self._with(self._zooms[self._zoom], width)
        else:
            found = [self._with(zoom, width) for zoom in self._zooms]
            # Rows of a table do not become fewer with smaller cells: those beyond the room are scrolled to.
            as_wide = (one for one in found if self._aligned and one.width <= width)
            fitting = (one for one in found if (one.height <= self._room() and one.width <= width))
            self._arrangement = next(fitting, None) or next(as_wide, found[-1])
        self._strips.clear()
        self._cursor = None if self._rank is None else self._arrangement.spot_of(self._rank)

    def _with(self, zoom: Zoom, width: int) -> Arrangement:
        return Arrangement(self._groups, zoom, width, self._room(), aligned=self._aligned)

    def _fit(self) -> None:
        self.virtual_size = Size(self._arrangement.width, self._arrangement.height)
        self._follow()

    # Drawing.

    def render_line(self, y: int) -> Strip:
        """Return one line of what is in view."""
        base = self.text_styles.base
        line = y + self.scroll_offset.y
        width = self.size.width
        if line >= self._arrangement.height or not self._ranks:
            return Strip.blank(width, base)
        strip = self._strips.get(line)
        if strip is None:
            strip = self._strips[line] = self._drawn(line)
        left = self.scroll_offset.x
        return strip.crop(left, left + width).adjust_cell_length(width, base)

    def _drawn(self, y: int) -> Strip:
        """Return cells of the same look in one segment: few of thousands differ from their neighbours."""
        styles, arrangement = self.text_styles, self._arrangement
        label = self.safe(arrangement.label(y))
        runs: list[tuple[str, Style]] = [(f"{label:<{arrangement.label_width}}", styles.dim)]
        x = arrangement.label_width
        for spot in arrangement.line(y):
            text, style = self._cell(spot)
            if spot == self._cursor:
                style += styles.cursor
            before, of = runs[-1]
            gap = " " * (spot.x - x)
            # A gap looks the same in the style of the cell before, but for the cursor's.
            if of is style:
                runs[-1] = (before + gap + text, of)
            elif of.reverse:
                runs += [(gap, styles.base), (text, style)]
            else:
                runs[-1:] = [(before + gap, of), (text, style)]
            x = spot.x + len(text)
        return Strip([Segment(text, style) for text, style in runs])

    def _cell(self, spot: Spot) -> tuple[str, Style]:
        styles, glyphs, zoom = self.text_styles, self.look.glyphs, self._arrangement.zoom
        ranks = [rank for rank in self._arrangement.ranks_in(spot) if not self._hidden(rank)]
        if not ranks:
            return " ", styles.base
        worst = max(ranks, key=lambda rank: self._level.get(rank, 0))
        level = self._level.get(worst, 0)
        sign = glyphs.alarm if level == MARKED else glyphs.levels[level]
        style = styles.alarm if level == MARKED else styles.levels[level]
        if zoom == self._zooms[0] and worst in self._ranks:
            number = f"{worst:>{self._zooms[1].width - 4}}"
            return f"{number} {sign} {self.figure(self._ranks[worst])}", style
        if zoom == self._zooms[1]:
            return f"{worst:>{zoom.width - 4}} {sign}", style
        return sign, style

    def _redraw(self) -> None:
        self._strips.clear()
        self.refresh()

    # The cursor.

    def action_move(self, down: int, right: int) -> None:
        """Go to the cell beside."""
        if self._cursor is not None:
            spot = self._arrangement.beside(self._cursor, right, down)
            ranks = self._arrangement.ranks_in(spot)
            self._rank = max(ranks, key=lambda rank: self._level.get(rank, 0), default=self._rank)
            self._point(spot)

    def action_next_flagged(self, by: int) -> None:
        """Go to the next rank that is marked, in the order of the ranking."""
        flagged = [rank for rank in self._ranks if self._level[rank] == MARKED]
        if flagged:
            at = flagged.index(self._rank) + by if self._rank in flagged else 0
            self.move_to(flagged[at % len(flagged)])

    def action_zoom(self, by: int) -> None:
        """Larger or smaller cells, in the place of the size that fits."""
        now = self._zooms.index(self._arrangement.zoom)
        self._zoom = min(max(now + by, 0), len(self._zooms) - 1)
        self._rearrange()

    def action_open(self) -> None:
        """Ask for the rank's screen."""
        if self._rank is not None:
            self.post_message(RankOpened(self._rank))

    def on_click(self, event: events.Click) -> None:
        """Put the cursor there; a second click opens."""
        offset = event.get_content_offset(self)
        if offset is None:
            return
        spot = self._arrangement.at(offset.x + self.scroll_offset.x, offset.y + self.scroll_offset.y)
        if spot is not None and spot == self._cursor:
            self.action_open()
        elif spot is not None:
            self._rank = max(self._arrangement.ranks_in(spot), key=lambda rank: self._level.get(rank, 0))
            self._point(spot)

    def _point(self, spot: Spot) -> None:
        """Redraw the two cells that change."""
        before, self._cursor = self._cursor, spot
        for one in (before, spot):
            if one is not None:
                self._strips.pop(one.y, None)
                place = Region(one.x, one.y, self._arrangement.zoom.width, 1).translate(-self.scroll_offset)
                self.refresh(place)
        self._follow()
        self.post_message(self.Moved())

    def _follow(self) -> None:
        if self._cursor is not None:
            cell = Region(self._cursor.x, self._cursor.y, self._arrangement.zoom.width, 1)
            self.scroll_to_region(cell, animate=False)


_LOW_SCREEN: Final = 30
_SHARE_OF_LOW: Final = 0.25


class RankGrid(CellGrid[RankedRank]):
    """The score of every rank."""

    def _room(self) -> int:
        """On a low screen less, for what was found to be seen."""
        height = self.app.size.height
        return max(int(height * _SHARE_OF_LOW), 3) if height < _LOW_SCREEN else super()._room()

    def __init__(self, look: Look) -> None:
        super().__init__(look, id="grid")

    def level(self, row: RankedRank) -> int:
        """By its score, unless it is flagged."""
        return MARKED if row.flagged else sum(row.score >= limit for limit in LIMITS)

    def figure(self, row: RankedRank) -> str:
        """Return its score."""
        return score(row.score)


class GridRuler(Line):
    """`dp 0    1    2`: it goes sideways with the grid."""

    _grid: CellGrid[Any] | None = None

    def measure(self, grid: CellGrid[Any]) -> None:
        """The grid whose columns it names."""
        self._grid = grid
        self.watch(grid, "scroll_x", self._moved, init=False)

    def _moved(self) -> None:
        self.refresh()

    def pieces(self, width: int) -> list[Piece]:
        """As many names as there is room for."""
        grid, dim = self._grid, self.text_styles.dim
        if grid is None:
            return []
        text = ""
        for x, name in grid.column_names():
            at = x - int(grid.scroll_offset.x)
            if at >= len(text) + (1 if text else 0) and at + len(name) <= width:
                text = text.ljust(at) + name
        label = " dp"
        return [(label + text[len(label) :] if text[: len(label)].strip() == "" else text, dim)]


COSTS: Final = (0.01, 0.05, 0.20, 0.50)
"""Of the step: costs from which a cell is one level darker."""


class WorkerHeat(CellGrid[Worker]):
    """Stages in rows and data-parallel ranks in columns where the recording knows them, else ranks by host."""

    SHARE_OF_HEIGHT: ClassVar[float] = 0.3

    def __init__(self, look: Look) -> None:
        super().__init__(look, id="workers")

    def level(self, row: Worker) -> int:
        """By its costs."""
        return sum(row.costs >= limit for limit in COSTS)

    def figure(self, row: Worker) -> str:
        """Return its costs, as a share of the step."""
        return percent(row.costs)
