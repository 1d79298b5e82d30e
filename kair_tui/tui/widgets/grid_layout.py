"""The layout of rank grids: blocks of cells that flow into lines, or rows and columns."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from kair_engine.trace.model import Layout
from kair_tui.tui.widgets.heat import Axis


@dataclass(frozen=True)
class Group:
    """Ranks that belong together, in their order."""

    label: str
    ranks: tuple[int, ...]
    columns: tuple[str, ...] = ()
    """The column names of its ranks in a table; ranks with the same name belong together."""


def by_host(ranks: Iterable[int], hosts: Mapping[int, str | None]) -> tuple[Group, ...]:
    """Return a group per host, in the order of their lowest ranks."""
    members: dict[str, list[int]] = {}
    for rank in sorted(ranks):
        members.setdefault(hosts.get(rank) or "no host", []).append(rank)
    return tuple(Group(host, tuple(of)) for host, of in members.items())


def by_position(ranks: Iterable[int], layout: Layout | None) -> tuple[Group, ...]:
    """Return a group per pipeline stage, its ranks by data-parallel rank; () if neither is known.

    Ranks of one place are its tensor-parallel ranks, in order.
    """
    if layout is None or not (layout.pipeline_stage or layout.dp_rank):
        return ()
    members: dict[int, list[int]] = {}
    for rank in ranks:
        members.setdefault(layout.pipeline_stage.get(rank, 0), []).append(rank)
    found = []
    for stage in sorted(members):
        of_stage = tuple(sorted(members[stage], key=lambda rank: (layout.dp_rank.get(rank, 0), rank)))
        columns = tuple(str(layout.dp_rank[rank]) if rank in layout.dp_rank else "" for rank in of_stage)
        found.append(Group(f"pp {stage}", of_stage, columns))
    return tuple(found)


def position_words(groups: Sequence[Group]) -> str:
    """Return the meaning of rows and columns: `pp x dp x tp`."""
    return "pp x dp" + (" x tp" if any(_apart(group) > 1 for group in groups) else "")


def place_in_words(rank: int, layout: Layout | None) -> str:
    """Return a rank's place: `pp 3 dp 2 tp 1`, as far as known."""
    if layout is None:
        return ""
    stage, dp = layout.pipeline_stage.get(rank), layout.dp_rank.get(rank)
    known = [f"{name} {place}" for name, place in (("pp", stage), ("dp", dp)) if place is not None]
    if known and (layout.tp or 1) > 1:
        peers = (
            other
            for other in range(rank)
            if (layout.pipeline_stage.get(other), layout.dp_rank.get(other)) == (stage, dp)
        )
        known.append(f"tp {sum(1 for _ in peers)}")
    return " ".join(known)


def _apart(group: Group) -> int:
    """Return the number of ranks under one column name; 1 if each has its own."""
    named = len(set(group.columns))
    return len(group.columns) // named if named and len(group.columns) % named == 0 else 1


@dataclass(frozen=True)
class Zoom:
    """The size of a rank: `width` columns per cell, `ranks` per cell."""

    width: int
    ranks: int = 1


class Arrangement:
    """The cells of groups in rows of at most `width` columns of the screen.

    Each group begins a new row, unless there are more groups than fit `height` rows: then as many as needed stand side
    by side. With `aligned` each has one row, however long, so that the cells of all groups are aligned.
    """

    def __init__(self, groups: Sequence[Group], zoom: Zoom, width: int, height: int, *, aligned: bool = False) -> None:
        self.groups, self.zoom = groups, zoom
        self.label_width = max((len(group.label) for group in groups), default=0) + 2
        largest = max(map(self._cells, groups), default=1)
        room = max((width - self.label_width) // zoom.width, 1)
        self._across = largest if aligned else min(largest, room)
        """Cells in a row of one group."""
        self._down = -(-largest // self._across)
        """Rows of one group."""
        together = max((_apart(group) for group in groups), default=1) // zoom.ranks if aligned else 0
        block = Axis(self._across, zoom.width, tuple(range(together, self._across, together)) if together > 1 else ())
        most = 1 if aligned else max((width - self.label_width + 1) // (block.length + 1), 1)
        self.abreast = min(most, max(-(-len(groups) * self._down // max(height, 1)), 1))
        """Groups side by side."""
        between = range(self._across, self.abreast * self._across, self._across)
        self.columns = Axis(
            min(self.abreast, max(len(groups), 1)) * self._across, zoom.width, (*block.borders, *between)
        )
        self.rows = Axis(-(-len(groups) // self.abreast) * self._down)

    @cached_property
    def _place(self) -> dict[int, tuple[int, int]]:
        """Return each rank's group, and its index in it."""
        return {rank: (g, at) for g, group in enumerate(self.groups) for at, rank in enumerate(group.ranks)}

    @property
    def width(self) -> int:
        """Return the columns of the screen, including labels."""
        return self.label_width + self.columns.length

    def _cells(self, group: Group) -> int:
        return -(-len(group.ranks) // self.zoom.ranks)

    def ranks_in(self, row: int, column: int) -> tuple[int, ...]:
        """Return the ranks of a cell; empty without a cell."""
        group_across, across = divmod(column, self._across)
        group, first = self._group(row) + group_across, ((row % self._down) * self._across + across) * self.zoom.ranks
        return self.groups[group].ranks[first : first + self.zoom.ranks] if group < len(self.groups) else ()

    def _group(self, row: int) -> int:
        """Return the first group of a row."""
        return row // self._down * self.abreast

    def place_of(self, rank: int) -> tuple[int, int] | None:
        """Return the row and the column of a rank's cell."""
        if rank not in self._place:
            return None
        group, at = self._place[rank]
        down, across = divmod(at // self.zoom.ranks, self._across)
        return group // self.abreast * self._down + down, group % self.abreast * self._across + across

    def label(self, row: int) -> str:
        """Return a row's label: its first group, if that begins there."""
        return self.groups[self._group(row)].label if row % self._down == 0 else ""

    def cells_of(self, row: int) -> list[int]:
        """Return the columns of a row that have a cell."""
        return [column for column in range(self.columns.count) if self.ranks_in(row, column)]

    def beside(self, row: int, column: int, dx: int, dy: int) -> tuple[int, int]:
        """Return the next cell in a direction; the same one at the edge. Sideways continues in the next row."""
        if dy:
            row = min(max(row + dy, 0), self.rows.count - 1)
            return row, min(self.cells_of(row), key=lambda other: abs(other - column), default=column)
        line = self.cells_of(row)
        at, after = line.index(column) + dx, row + (1 if dx > 0 else -1)
        if 0 <= at < len(line) or abs(dx) > 1:
            return row, line[min(max(at, 0), len(line) - 1)]
        beyond = self.cells_of(after) if 0 <= after < self.rows.count else []
        return (after, beyond[0 if dx > 0 else -1]) if beyond else (row, column)
