"""Grids with a cell for every rank, darker the more it stands out; flagged ranks have a mark in the score grid.

Also a grid of every worker's cost.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar, Final, Generic, Protocol, TypeVar

from textual.binding import Binding, BindingType
from textual.geometry import Size

from kair.app.candidates import Worker
from kair_engine.results.triage import RankedRank
from kair_tui.render.terminal import Look
from kair_tui.render.units import percent, score
from kair_tui.tui.widgets.grid_layout import Arrangement, Group, Zoom
from kair_tui.tui.widgets.heat import Heat
from kair_tui.tui.widgets.lines import Piece

LIMITS: Final = (2.0, 3.0, 5.0, 10.0)
"""Scores at which a cell gets darker: they are values of t, seldom above 3 for healthy ranks."""

MARKED: Final = 5
"""The level above those of the ramp: the cell gets a mark."""
_MERGED: Final = tuple(2**power for power in range(1, 15))


class OfRank(Protocol):
    """A cell's value, which belongs to one rank."""

    @property
    def rank(self) -> int:
        """Return its number."""
        ...


Row = TypeVar("Row", bound=OfRank)


class CellGrid(Heat, Generic[Row]):
    """Cells with a cursor; enter opens the rank under it."""

    DEFAULT_CSS = "CellGrid { height: auto; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("pageup,ctrl+u", "move(-10, 0)", "page up", show=False),
        Binding("pagedown,ctrl+d", "move(10, 0)", "page down", show=False),
        Binding("plus,equals_sign", "zoom(-1)", "zoom", key_display="+ -"),
        Binding("minus", "zoom(1)", "zoom out", show=False),
        Binding("n", "next_flagged(1)", "next slow rank", show=False),
        Binding("p", "next_flagged(-1)", "slow rank before", show=False),
    ]
    LIT = True
    HAS_BORDERS = False
    HEADER = 0
    NAMES_COLUMNS: ClassVar[bool] = False
    """Whether a table of groups has a line with column names: `dp 0    1    2`."""
    SHARE_OF_HEIGHT: ClassVar[float] = 0.45
    """Largest share of the screen's height."""

    def __init__(self, look: Look, *, id: str) -> None:  # noqa: A002
        super().__init__(look, id=id)
        self._ranks: dict[int, Row] = {}
        self._level: dict[int, int] = {}
        self._groups: Sequence[Group] = ()
        self._aligned = False
        self._hidden: Callable[[int], bool] = lambda _: False
        self._zooms: tuple[Zoom, ...] = (Zoom(1),)
        self._zoom: int | None = None
        """The chosen zoom; None for the largest that fits."""
        self._arrangement = Arrangement((), Zoom(1), 1, 1)
        self._arranged_for: tuple[int, int] | None = None
        self._rank: int | None = None

    # What a kind of grid defines.

    def level(self, row: Row) -> int:
        """Return its darkness from 0; MARKED for one with a mark."""
        raise NotImplementedError

    def figure(self, row: Row) -> str:
        """Return its figure, shown if there is room."""
        raise NotImplementedError

    # What is shown.

    def show(self, ranking: Sequence[Row]) -> None:
        """Show a cell for each rank, the worst first; the cursor goes there unless it is on a rank already."""
        self._ranks = {row.rank: row for row in ranking}
        self._level = {row.rank: self.level(row) for row in ranking}
        digits = len(str(max(self._ranks, default=0)))
        figures = max((len(self.figure(row)) for row in ranking), default=0)
        self._zooms = (
            Zoom(digits + figures + 6),
            Zoom(digits + 4),
            Zoom(2),
            Zoom(1),
            *(Zoom(1, ranks) for ranks in _MERGED if ranks < 2 * len(self._ranks)),
        )
        if self._rank not in self._ranks:
            self._rank = ranking[0].rank if ranking else None
        self._arrange_anew()

    def group(self, groups: Sequence[Group], *, aligned: bool) -> None:
        """Group ranks; `aligned` groups are rows of one table."""
        self._groups, self._aligned = groups, aligned
        self.HEADER = int(self.NAMES_COLUMNS and aligned and bool(groups))
        self._arrange_anew()

    def hide(self, hidden: Callable[[int], bool]) -> None:
        """Blank the cells of ranks for which `hidden` is true."""
        self._hidden = hidden
        self.rearrange()

    @property
    def rank(self) -> int | None:
        """Return the rank under the cursor: of several in one cell the most suspicious."""
        return self._rank

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return all ranks of the cell under the cursor."""
        return self._arrangement.ranks_in(self.row, self.column) if self.rows.count else ()

    def move_to(self, rank: int) -> None:
        """Put the cursor on a rank and bring it into view."""
        place = self._arrangement.place_of(rank)
        if place is not None:
            self._rank = rank
            self.point(*place)

    # Layout.

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002
        """Return the lines needed by the cells, up to a share of the screen, and by a scroll bar under long rows."""
        self._arrange(width)
        needed = self._arrangement.rows.count + (1 if self._arrangement.width > width - 1 else 0)
        return min(max(needed, 1), self._room_for_rows()) + self.HEADER

    def _room_for_rows(self) -> int:
        return max(int(self.app.size.height * self.SHARE_OF_HEIGHT), 3)

    def _arrange_anew(self) -> None:
        self._arranged_for = None
        self.rearrange()
        self.refresh(layout=True)

    def _arrange(self, width: int) -> None:
        """Arrange for a width, of which a column on either side stays blank."""
        width, height = max(width - 2, 1), self._room_for_rows()
        if (width, height) == self._arranged_for:
            return
        self._arranged_for = width, height
        zooms = self._zooms if self._zoom is None else (self._zooms[self._zoom],)
        if self.look.plain:
            width, zooms = 1, self._zooms[:1]
        found = [Arrangement(self._groups, zoom, width, height, aligned=self._aligned) for zoom in zooms]
        # Smaller cells do not reduce the rows of a table: those beyond the room are scrolled to.
        as_wide = (one for one in found if self._aligned and one.width <= width)
        fitting = (one for one in found if one.rows.count <= height and one.width <= width)
        self._arrangement = next(fitting, None) or next(as_wide, found[-1])

    def lay_out(self, width: int, height: int) -> None:  # noqa: ARG002
        """Draw cells as large as fit."""
        self._arrange(width)
        of = self._arrangement
        self.rows, self.columns, self.left = of.rows, of.columns, of.label_width + 1
        self.row, self.column = (None if self._rank is None else of.place_of(self._rank)) or (0, 0)

    # Drawing.

    def header(self, line: int) -> tuple[Sequence[Piece], Sequence[tuple[int, Piece]], Sequence[Piece]]:  # noqa: ARG002
        """Return as many column names as fit."""
        dim, over, before, free = self.text_styles.dim, [], "", 0
        for column, name in enumerate(self._groups[0].columns[:: self._arrangement.zoom.ranks]):
            start = self.columns.start(column)
            if name != before and start >= free:
                over.append((start, (name, dim)))
                free = start + len(name) + 1
            before = name
        return [(" dp", dim)], over, ()

    def label(self, row: int, line: int) -> Sequence[Piece]:  # noqa: ARG002
        """Return the group that begins there."""
        return [(f" {self.safe(self._arrangement.label(row))}", self.text_styles.dim)]

    def total(self, row: int, line: int) -> Sequence[Piece]:  # noqa: ARG002
        """Return nothing."""
        return ()

    def cell(self, row: int, column: int, line: int) -> Piece:  # noqa: ARG002
        """Return a character, or if there is room the rank and its figure."""
        styles, glyphs, zoom = self.text_styles, self.look.glyphs, self._arrangement.zoom
        ranks = [rank for rank in self._arrangement.ranks_in(row, column) if not self._hidden(rank)]
        if not ranks:
            return " " * zoom.width, styles.base
        worst = self._worst(ranks)
        level = self._level.get(worst, 0)
        text = glyphs.alarm if level == MARKED else glyphs.levels[level]
        if zoom in self._zooms[:2]:
            text = f"{worst:>{self._zooms[1].width - 4}} {text}"
        if zoom == self._zooms[0] and worst in self._ranks:
            text = f"{text} {self.figure(self._ranks[worst])}"
        return text.ljust(zoom.width), styles.alarm if level == MARKED else styles.levels[level]

    def _worst(self, ranks: Sequence[int]) -> int:
        return max(ranks, key=lambda rank: self._level.get(rank, 0))

    # The cursor.

    def action_move(self, down: int, right: int) -> None:
        """Go to the adjacent cell."""
        if self.ranks:
            self.point(*self._arrangement.beside(self.row, self.column, right, down))

    def point(self, row: int, column: int) -> None:
        """Put the cursor on a cell, if it exists, and on its most suspicious rank."""
        if ranks := self._arrangement.ranks_in(row, column):
            self._rank = self._rank if self._rank in ranks else self._worst(ranks)
            super().point(row, column)

    def action_next_flagged(self, by: int) -> None:
        """Go to the next marked rank, in the order of the ranking."""
        flagged = [rank for rank in self._ranks if self._level[rank] == MARKED]
        if flagged:
            at = flagged.index(self._rank) + by if self._rank in flagged else 0
            self.move_to(flagged[at % len(flagged)])

    def action_zoom(self, by: int) -> None:
        """Draw larger or smaller cells instead of the size that fits."""
        now = self._zooms.index(self._arrangement.zoom)
        self._zoom = min(max(now + by, 0), len(self._zooms) - 1)
        self._arrange_anew()


_LOW_SCREEN: Final = 30
_SHARE_OF_LOW: Final = 0.25


class RankGrid(CellGrid[RankedRank]):
    """The score of every rank; where none is known, whom a finding accuses."""

    NAMES_COLUMNS = True
    has_scores = True
    """Whether scores are known."""

    def _room_for_rows(self) -> int:
        """Return fewer rows on a low screen, so that findings are visible."""
        height = self.app.size.height
        return max(int(height * _SHARE_OF_LOW), 3) if height < _LOW_SCREEN else super()._room_for_rows()

    def __init__(self, look: Look) -> None:
        super().__init__(look, id="grid")

    def level(self, row: RankedRank) -> int:
        """Return the level of its score, unless it is flagged."""
        return MARKED if row.flagged else sum(row.score >= limit for limit in LIMITS)

    def figure(self, row: RankedRank) -> str:
        """Return its score, where it is known."""
        return score(row.score) if self.has_scores else ""


COSTS: Final = (0.01, 0.05, 0.20, 0.50)
"""Costs at which a cell gets darker, as shares of the step."""


class WorkerHeat(CellGrid[Worker]):
    """Stages in rows and data-parallel ranks in columns if recorded, else ranks by host."""

    SHARE_OF_HEIGHT: ClassVar[float] = 0.3

    def __init__(self, look: Look) -> None:
        super().__init__(look, id="workers")

    limits: Sequence[float] = COSTS
    """Costs at which a cell gets darker."""
    alone = True
    """Whether cells show S_w, else their fix's saving."""

    def level(self, row: Worker) -> int:
        """Return the level of its costs."""
        return sum(row.costs >= limit for limit in self.limits)

    def figure(self, row: Worker) -> str:
        """Return S_w, or its costs as a share of the step."""
        return f"{1 + row.costs:.3f}" if self.alone else percent(row.costs)
