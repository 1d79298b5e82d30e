"""A map of lateness: ranks down, by host or stage, steps to the right, darker the later a rank was."""

from collections.abc import Sequence
from typing import ClassVar, Final

import numpy as np
from rich.style import Style
from textual.binding import Binding, BindingType

from kair_engine.arrays import Ints
from kair_engine.results.lateness import LATE, Lateness, darkest
from kair_tui.render.drawing import stretches
from kair_tui.render.terminal import Look
from kair_tui.render.units import duration, percent, percent_in_legend, spans
from kair_tui.tui.widgets.grid_layout import Group
from kair_tui.tui.widgets.heat import Axis, Heat
from kair_tui.tui.widgets.lines import Piece, level_legend

_WIDEST: Final = 6
_LABEL: Final = 14
_RANGE: Final = 13
"""Largest width of a host's name, and of a line's ranks."""
_RIGHT: Final = 11
_TICKS: Final = 8
"""Smallest distance of step numbers in the header, in columns."""
_HALF: Final = "▀"
_LOW_SCREEN: Final = 30
_SHARE, _SHARE_OF_LOW = 0.3, 0.4
"""Largest share of the screen's height; on a low screen it replaces the grid."""
_FOUND: Final = 200
"""Cells that `n` visits."""

Positions = tuple[int, ...]
"""Of ranks in the map."""


class LatenessMap(Heat):
    """If ranks outnumber lines, a line stands for several of one host, and shows the latest of them."""

    DEFAULT_CSS = "LatenessMap { height: 8; overflow-x: hidden; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("plus,equals_sign", "zoom(-1)", "zoom", key_display="+ -"),
        Binding("minus", "zoom(1)", "zoom out", show=False),
        Binding("n", "next_late(1)", "next late", show=False),
        Binding("p", "next_late(-1)", "late cell before", show=False),
    ]

    def __init__(self, look: Look) -> None:
        super().__init__(look, id="late")
        self._late: Lateness | None = None
        self._groups: Sequence[Group] = ()
        self._per: int | None = None
        """Ranks per line of cells; None for as many as fit the screen."""
        self._shown_per = 1
        self._bins: list[tuple[int, Positions]] = []
        """The group and the ranks of each line of cells; two share a screen line if `_halves` is 2."""
        self._halves = 1
        self._lines: list[tuple[int, ...]] = []
        """Indices into `_bins` of each drawn row."""
        self._stretches: list[range] = []
        self._dark: Ints = np.zeros((0, 0), dtype=np.int64)
        self._mean: Sequence[float] = ()
        self._at = 0, 0
        """The rank and the step under the cursor, positions in the map."""
        self._mixed: dict[tuple[int, int], Style] = {}

    # What is shown.

    @property
    def has_map(self) -> bool:
        """Return whether there is anything to draw."""
        return self._late is not None and bool(self._late.late_us.size)

    def show(self, late: Lateness | None, groups: Sequence[Group]) -> None:
        """Replace the map; the cursor goes to the latest cell of all. None removes it."""
        self._late = late
        # The layout belongs to another map. A hidden map is laid out when it is shown.
        self.rows, self.columns = Axis(), Axis()
        self._lines, self._bins = [], []
        if late is not None and late.late_us.size:
            self._mean = late.late_us.mean(axis=1).tolist()
            row, step, _ = late.worst(range(len(late.ranks)), range(len(late.steps)))
            self._at = row, step
        self.group(groups)

    def group(self, groups: Sequence[Group]) -> None:
        """Group ranks; those in no group are left out."""
        self._groups = groups
        self._fit()
        self.rearrange()

    def rearrange(self) -> None:
        """Lay the cells out again, since they may stand for other ranks and steps."""
        super().rearrange()
        self.post_message(self.Moved())

    def move_to(self, rank: int) -> None:
        """Move the cursor to a rank, and to its latest step if it was on another rank."""
        if self._late is None or not self.has_map:
            return
        at = int(np.searchsorted(self._late.ranks, rank))
        if at >= len(self._late.ranks) or self._late.ranks[at] != rank or self._at[0] == at:
            return
        self._at = at, self._late.worst((at,), range(len(self._late.steps)))[1]
        self.row, self.column = self._place()
        super().point(self.row, self.column)

    # What is under the cursor.

    @property
    def under(self) -> tuple[int, int, float] | None:
        """Return the rank, the step, and its lateness in µs; None without a map."""
        if self._late is None or not self.rows.count:
            return None
        row, step = self._at
        return int(self._late.ranks[row]), int(self._late.steps[step]), float(self._late.late_us[row, step])

    @property
    def rank(self) -> int | None:
        """Return the rank."""
        return None if self.under is None else self.under[0]

    def about(self) -> str:
        """Return `rank 2 · step 8 · 22.3 ms late, 23.4 % of the step`, and of how many it is the latest."""
        under, late = self.under, self._late
        if under is None or late is None:
            return ""
        rank, step, us = under
        ranks = [int(late.ranks[at]) for place in self._lines[self.row] for at in self._bins[place][1]]
        steps = [int(late.steps[at]) for at in self._stretches[self.column]]
        said = f"{duration(us)} late, {percent(us / late.step_us)} of the step" if us > 0 else "not late"
        parts = [f"rank {rank}", f"step {step}", said]
        if len(ranks) > 1 or len(steps) > 1:
            within = [f"ranks {spans(tuple(sorted(ranks)), 3)}"] if len(ranks) > 1 else []
            within += [f"steps {steps[0]}-{steps[-1]}"] if len(steps) > 1 else []
            parts.append(f"the latest of {', '.join(within)}")
        return f" {self.look.glyphs.dot} ".join(parts)

    def legend(self) -> list[Piece]:
        """Return the characters with their shares of the step."""
        return level_legend(self.look, [percent_in_legend(limit) for limit in LATE])

    def point(self, row: int, column: int) -> None:
        """Put the cursor on the latest rank and step of the cell."""
        super().point(row, column)
        if self._late is not None and self._lines:
            ranks = [at for place in self._lines[self.row] for at in self._bins[place][1]]
            steps = self._stretches[self.column]
            if self._at[0] not in ranks or self._at[1] not in steps:
                found = self._late.worst(ranks, steps)
                self._at = found[0], found[1]

    def action_next_late(self, by: int) -> None:
        """Go to the next late cell, the latest first."""
        late = self._late
        if late is None or not self._lines:
            return
        shown = sorted(at for _, ranks in self._bins for at in ranks)
        part = late.late_us[shown]
        most = min(_FOUND, part.size)
        places = np.argpartition(part, part.size - most, axis=None)[part.size - most :]
        places = places[np.argsort(-part.ravel()[places], kind="stable")]
        found = [(shown[int(place) // part.shape[1]], int(place) % part.shape[1]) for place in places]
        found = [cell for cell in found if late.levels(late.late_us[cell]) > 0]
        if not found:
            return
        at = found.index(self._at) + by if self._at in found else 0
        self._at = found[at % len(found)]
        super().point(*self._place())

    def action_zoom(self, by: int) -> None:
        """Draw more or fewer ranks per line of cells, instead of as many as fit."""
        self._per = max(self._shown_per // 2, 1) if by < 0 else self._shown_per * 2
        self.rearrange()

    # How it is drawn.

    @property
    def _most_lines(self) -> int:
        height = self.app.size.height
        return max(int(height * (_SHARE_OF_LOW if height < _LOW_SCREEN else _SHARE)), 4) - self.HEADER

    def _fit(self) -> None:
        """Return as many lines as ranks, up to a share of the screen."""
        ranks = sum(len(group.ranks) for group in self._groups)
        height = min(max(ranks, 1), self._most_lines) + self.HEADER if self.has_map else 1
        if self.styles.height is None or self.styles.height.value != height:
            self.styles.height = height

    def on_resize(self) -> None:
        """Give cells the available room."""
        self._fit()
        super().on_resize()

    def lay_out(self, width: int, height: int) -> None:
        """Lay out a line for every rank if they fit, else share lines; neighbouring steps likewise."""
        late, self.rows, self.columns = self._late, Axis(), Axis()
        self._lines, self._bins = [], []
        if late is None or not self.has_map:
            return
        place_of = {int(rank): at for at, rank in enumerate(late.ranks)}
        groups = [[place_of[rank] for rank in group.ranks if rank in place_of] for group in self._groups]
        ranks = sum(map(len, groups))
        if not ranks:
            return
        self._halves = (
            2 if (not self.look.draws_ascii and self.look.colours in ("256", "truecolor")) and ranks > height else 1
        )
        apart = sum(1 for group in groups if group) <= height
        per = self._per or 1
        while True:
            self._bins, self._lines = _binned(groups, per, self._halves, apart=apart)
            if self._per is not None or len(self._lines) <= height:
                break
            per *= 2
        self._shown_per = per
        labels = [self.safe(group.label) for group in self._groups]
        self.left = 1 + min(max(map(len, labels), default=0), _LABEL) + 1 + self._range_width() + 1
        self.right = _RIGHT
        room = max(width - self.left - self.right, 1)
        self._stretches = stretches(len(late.steps), room)
        self._dark = darkest(late, [ranks for _, ranks in self._bins], self._stretches)
        self.columns = Axis(len(self._stretches), min(max(room // len(self._stretches), 1), _WIDEST))
        self.rows = Axis(len(self._lines))
        self.row, self.column = self._place()

    def _range_width(self) -> int:
        return min(max((len(self._range(line)) for line in range(len(self._lines))), default=0), _RANGE)

    def _place(self) -> tuple[int, int]:
        """Return the cursor's row and column; the first if its rank is hidden."""
        rank, step = self._at
        rows = (at for at, line in enumerate(self._lines) if any(rank in self._bins[place][1] for place in line))
        columns = (at for at, steps in enumerate(self._stretches) if step in steps)
        return next(rows, 0), next(columns, 0)

    def _range(self, line: int) -> str:
        """Return the ranks of a line: `8-15`."""
        assert self._late is not None
        held = [int(self._late.ranks[at]) for place in self._lines[line] for at in self._bins[place][1]]
        return str(held[0]) if len(held) == 1 else f"{held[0]}-{held[-1]}"

    def header(self, line: int) -> tuple[Sequence[Piece], Sequence[tuple[int, Piece]], Sequence[Piece]]:  # noqa: ARG002
        """Return step numbers over the cells that begin with them."""
        assert self._late is not None
        steps, dim = self._late.steps, self.text_styles.dim
        ticks = self.ticks(_TICKS, lambda column: str(int(steps[self._stretches[column].start])))
        return [(" step".ljust(self.left), dim)], ticks, [(f"{'a step':>{_RIGHT - 1}}", dim)]

    def label(self, row: int, line: int) -> Sequence[Piece]:  # noqa: ARG002
        """Return the host or stage where it begins, and the ranks."""
        group = self._bins[self._lines[row][0]][0]
        is_first = row == 0 or self._bins[self._lines[row - 1][0]][0] != group
        name = self.safe(self._groups[group].label) if is_first else ""
        width, ranks = self.left - self._range_width() - 3, self._range(row)
        return [
            (f" {name[:width]:<{width}} ", self.text_styles.dim),
            (f"{ranks:>{self._range_width()}} ", self.text_styles.base),
        ]

    def cell(self, row: int, column: int, line: int) -> Piece:  # noqa: ARG002
        """Return the level as a character; two lines in one use the colours of its halves."""
        levels = [int(self._dark[place, column]) for place in self._lines[row]]
        size, styles = self.columns.size, self.text_styles
        if self._halves == 1:
            return self.look.glyphs.levels[levels[0]] * size, styles.levels[levels[0]]
        upper, lower = levels[0], levels[1] if len(levels) > 1 else 0
        known = self._mixed.get((upper, lower))
        if known is None:
            colours = [styles.levels[at].color if at else styles.base.bgcolor for at in (upper, lower)]
            known = self._mixed[upper, lower] = Style(color=colours[0], bgcolor=colours[1])
        return _HALF * size, known

    def total(self, row: int, line: int) -> Sequence[Piece]:  # noqa: ARG002
        """Return the mean lateness of its latest rank over the steps."""
        assert self._late is not None
        mean = max(self._mean[at] for place in self._lines[row] for at in self._bins[place][1])
        level = int(self._late.levels(np.array(mean)))
        text = self.safe(duration(mean))
        return [(f"{text:>{_RIGHT - 1}}", self.text_styles.levels[level] if level else self.text_styles.dim)]


def _binned(
    groups: Sequence[Sequence[int]], per: int, halves: int, *, apart: bool
) -> tuple[list[tuple[int, Positions]], list[tuple[int, ...]]]:
    """Return lines of cells of at most `per` ranks, and rows of at most `halves` of them.

    With `apart` no line mixes groups; without, because groups outnumber rows, each belongs to the group it begins in.
    """
    bins: list[tuple[int, Positions]] = []
    rows: list[tuple[int, ...]] = []
    if apart:
        parts = [(number, list(group)) for number, group in enumerate(groups) if group]
    else:
        flat = [(number, at) for number, group in enumerate(groups) for at in group]
        parts = [(flat[0][0], [at for _, at in flat])]
        of = [number for number, _ in flat]
    for number, members in parts:
        first = len(bins)
        bins += [
            (number if apart else of[begin], tuple(members[begin : begin + per]))
            for begin in range(0, len(members), per)
        ]
        rows += [tuple(range(at, min(at + halves, len(bins)))) for at in range(first, len(bins), halves)]
    return bins, rows
