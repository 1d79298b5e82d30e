"""The layout of rank grids: blocks of cells that flow into lines, or rows and columns."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from kair_engine.trace.model import Layout

_GAP = 1


@dataclass(frozen=True)
class Group:
    """Ranks that belong together, in their order."""

    label: str
    ranks: tuple[int, ...]
    columns: tuple[str, ...] = ()
    """What stands over each of them in a table; ranks under the same belong together."""


def by_host(ranks: Iterable[int], hosts: Mapping[int, str | None]) -> tuple[Group, ...]:
    """Return a group per host, in the order of their lowest ranks."""
    members: dict[str, list[int]] = {}
    for rank in sorted(ranks):
        members.setdefault(hosts.get(rank) or "no host", []).append(rank)
    return tuple(Group(host, tuple(of)) for host, of in members.items())


def by_position(ranks: Iterable[int], layout: Layout | None) -> tuple[Group, ...]:
    """A group per pipeline stage, its ranks in the order of their data-parallel ranks; () where neither is known.

    Ranks of one place are its tensor-parallel ranks, in their order.
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
    """Return what rows and columns are: `pp x dp x tp`."""
    return "pp x dp" + (" x tp" if any(_apart(group) > 1 for group in groups) else "")


def place_in_words(rank: int, layout: Layout | None) -> str:
    """Return where a rank is: `pp 3 dp 2 tp 1`; as much of it as is known."""
    if layout is None:
        return ""
    stage, dp = layout.pipeline_stage.get(rank), layout.dp_rank.get(rank)
    known = [f"{name} {place}" for name, place in (("pp", stage), ("dp", dp)) if place is not None]
    if known and (layout.tp or 1) > 1:
        beside = (
            other
            for other in range(rank)
            if (layout.pipeline_stage.get(other), layout.dp_rank.get(other)) == (stage, dp)
        )
        known.append(f"tp {sum(1 for _ in beside)}")
    return " ".join(known)


def _apart(group: Group) -> int:
    """Return how many ranks stand under one column's name; 1 where each has its own."""
    named = len(set(group.columns))
    return len(group.columns) // named if named and len(group.columns) % named == 0 else 1


@dataclass(frozen=True)
class Zoom:
    """How a rank is drawn: `width` columns a cell, `ranks` of them in one."""

    width: int
    ranks: int = 1


@dataclass(frozen=True)
class Spot:
    """Where a cell is: its line and column, and the group and the cell of it."""

    x: int
    y: int
    group: int
    cell: int


class Arrangement:
    """The cells of groups in lines of at most `width` columns.

    Each group begins a line of its own, unless there are more of them than fit `height` lines: then they stand beside
    each other as often as needed. With `aligned` each has one line, however long, so that the cells of all groups stand
    under each other.
    """

    def __init__(self, groups: Sequence[Group], zoom: Zoom, width: int, height: int, *, aligned: bool = False) -> None:
        self.groups = groups
        self.zoom = zoom
        self.label_width = max((len(group.label) for group in groups), default=0) + 2
        largest = max((self.cells(group) for group in range(len(groups))), default=1)
        room = max((width - self.label_width) // zoom.width, 1)
        self.columns = largest if aligned else min(largest, room)
        """Cells in a line of one group."""
        self._rows = -(-largest // self.columns)
        together = max((_apart(group) for group in groups), default=1) if aligned else 1
        self._together = max(together // zoom.ranks, 1) if together > 1 else 0
        """Cells between two gaps; 0 for no gap."""
        block = self._offset(self.columns) - (1 if self._together and self.columns % self._together == 0 else 0) + _GAP
        most = 1 if aligned else max((width - self.label_width + _GAP) // block, 1)
        self.abreast = min(most, max(-(-len(groups) * self._rows // max(height, 1)), 1))
        """Groups beside each other."""
        self._block = block
        self.height = -(-len(groups) // self.abreast) * self._rows
        self.width = self.label_width + min(self.abreast, max(len(groups), 1)) * block - _GAP

    def _offset(self, column: int) -> int:
        """Return where a cell of a line begins."""
        return column * self.zoom.width + (column // self._together if self._together else 0)

    @cached_property
    def _place(self) -> dict[int, tuple[int, int]]:
        """Return each rank's group, and its place in it."""
        return {rank: (g, at) for g, group in enumerate(self.groups) for at, rank in enumerate(group.ranks)}

    def cells(self, group: int) -> int:
        """Return how many cells the group has."""
        return -(-len(self.groups[group].ranks) // self.zoom.ranks)

    def ranks_in(self, spot: Spot) -> tuple[int, ...]:
        """Return the ranks of a cell."""
        first = spot.cell * self.zoom.ranks
        return self.groups[spot.group].ranks[first : first + self.zoom.ranks]

    def spot_of(self, rank: int) -> Spot | None:
        """Return the cell of a rank."""
        place = self._place.get(rank)
        return None if place is None else self._spot(place[0], place[1] // self.zoom.ranks)

    def label(self, y: int) -> str:
        """Return what stands before line `y`: the first group of it."""
        block, row = divmod(y, self._rows)
        return self.groups[block * self.abreast].label if row == 0 else ""

    def line(self, y: int) -> list[Spot]:
        """Return the cells of line `y`, from left to right."""
        block, row = divmod(y, self._rows)
        spots = []
        for group in range(block * self.abreast, min((block + 1) * self.abreast, len(self.groups))):
            first = row * self.columns
            last = min(first + self.columns, self.cells(group))
            spots += [self._spot(group, cell) for cell in range(first, last)]
        return spots

    def at(self, x: int, y: int) -> Spot | None:
        """Return the cell at a place of the screen, if there is one."""
        return next((spot for spot in self.line(y) if spot.x <= x < spot.x + self.zoom.width), None)

    def beside(self, spot: Spot, dx: int, dy: int) -> Spot:
        """Return the next cell in a direction; the same one at the edge. Sideways goes on in the next line."""
        if dy:
            y = min(max(spot.y + dy, 0), self.height - 1)
            return min(self.line(y), key=lambda other: abs(other.x - spot.x), default=spot)
        line = self.line(spot.y)
        at = line.index(spot) + dx
        if 0 <= at < len(line):
            return line[at]
        y = spot.y + (1 if dx > 0 else -1)
        if not 0 <= y < self.height:
            return spot
        neighbours = self.line(y)
        return neighbours[0 if dx > 0 else -1] if neighbours else spot

    def _spot(self, group: int, cell: int) -> Spot:
        row, column = divmod(cell, self.columns)
        line, beside = divmod(group, self.abreast)
        x = self.label_width + beside * self._block + self._offset(column)
        return Spot(x, line * self._rows + row, group, cell)
