"""A heat map of frequency: a row for every rank, time to the right, and marks where it fell behind its peers."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import ClassVar, Final

from textual.binding import Binding, BindingType

from kair_engine.results.views import DegradedWindow, FrequencyResult, RankCounts
from kair_tui.render.drawing import level, resampled, stretches
from kair_tui.render.terminal import Look
from kair_tui.render.units import count, duration
from kair_tui.tui.widgets.heat import Axis, RankHeat
from kair_tui.tui.widgets.lines import Piece

_WIDEST: Final = 8
_HIGHEST: Final = 6
_WIDE_SCREEN: Final = 100
_MEASURED: Final = 512
"""Ranks examined for the highest bar: higher ones are drawn as full."""
_TICKS: Final = 14
"""Columns from one time in the header to the next, at least."""


class FrequencyHeat(RankHeat):
    """Bars for the counts; if windows outnumber columns, one for the mean of several."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "next_degraded(1)", "next degraded"),
        Binding("p", "next_degraded(-1)", "degraded window before", show=False),
    ]

    def __init__(self, look: Look) -> None:
        super().__init__(look, id="frequency")
        self._result: FrequencyResult | None = None
        self._hosts: dict[int, str] = {}
        self._counts: dict[int, RankCounts] = {}
        self._degraded: dict[int, dict[int, DegradedWindow]] = {}
        self._low: Counter[int] = Counter()
        self._peak = 0.0
        """The count of a full bar."""
        self._stretches: list[range] = []
        self._rank: int | None = None
        self._window = 0

    # What is shown.

    def show(self, result: FrequencyResult, hosts: dict[int, str]) -> None:
        """Show the counts of all ranks; the cursor stays on its rank and time, or goes to the largest shortfall."""
        time_us = 0.0 if self._result is None else self._window * self._result.window_us
        self._result = result
        self._hosts = hosts if len(set(hosts.values())) > 1 else {}
        self._counts = {row.rank: row for row in result.counts}
        self._ranks = tuple(self._counts)
        by_rank: defaultdict[int, dict[int, DegradedWindow]] = defaultdict(dict)
        for window in result.degraded:
            by_rank[window.rank][window.window] = window
        self._degraded = dict(by_rank)
        self._low = Counter(window.rank for window in result.degraded)
        self._window = min(int(time_us / result.window_us), result.windows - 1)
        if self._rank not in self._counts:
            worst = next(iter(result.degraded), None)
            self._rank, self._window = (worst.rank, worst.window) if worst else (result.counts[0].rank, 0)
        self.rearrange()

    def list_ranks(self, ranks: Sequence[int]) -> None:
        """Show these, in this order."""
        self._ranks = ranks
        if self._rank not in ranks and ranks:
            self._rank = ranks[0]
        self.rearrange()

    # What is under the cursor.

    @property
    def windows(self) -> range:
        """Return the windows of the column."""
        return self._stretches[self.column] if self._stretches else range(0)

    @property
    def counted(self) -> int:
        """Return the number of operations that the rank ran in them."""
        return sum(self._counts[self._ranks[self.row]].counts[window] for window in self.windows)

    @property
    def shortfalls(self) -> tuple[DegradedWindow, ...]:
        """Return those of the windows in which the rank fell behind."""
        of_rank = self._degraded.get(self._ranks[self.row], {})
        return tuple(of_rank[window] for window in self.windows if window in of_rank)

    @property
    def meanwhile(self) -> str | None:
        """Return what the rank ran instead in the region under the cursor."""
        if self._result is None or not self.shortfalls:
            return None
        begin, end = (at * self._result.window_us for at in (self.windows.start, self.windows.stop))
        for one in self._result.regions:
            if one.rank == self.rank and one.start_us < end and one.start_us + one.duration_us > begin:
                return one.operator
        return None

    def host_of(self, rank: int) -> str:
        """Return the rank's host."""
        return self.safe(self._hosts.get(rank, ""))

    def point(self, row: int, column: int) -> None:
        """Keep the cursor's rank and window when the cells are laid out again."""
        super().point(row, column)
        if self._ranks:
            self._rank = self._ranks[self.row]
            if self._window not in self.windows:
                self._window = self.windows.start

    def action_next_degraded(self, by: int) -> None:
        """Go to the next window with a shortfall, the largest first."""
        shown = frozenset(self._ranks)
        degraded = [] if self._result is None else [one for one in self._result.degraded if one.rank in shown]
        if not degraded:
            return
        at = next((at for at, one in enumerate(degraded) if (one.rank, one.window) == (self.rank, self._window)), None)
        target = degraded[0 if at is None else (at + by) % len(degraded)]
        self._window = target.window
        column = next(at for at, windows in enumerate(self._stretches) if target.window in windows)
        self.point(self._ranks.index(target.rank), column)

    # How it is drawn.

    def lay_out(self, width: int, height: int) -> None:
        """Draw bars as wide and as high as fit."""
        if self._result is None:
            return
        self.measure_labels(self._counts)
        self.right = 11 + (13 if width >= _WIDE_SCREEN else 0)
        room = max(width - self.left - self.right, 1)
        self._stretches = stretches(self._result.windows, room)
        some = self._result.counts[:: -(-len(self._counts) // _MEASURED)]
        self._peak = max(max(resampled(row.counts, room)) for row in some)
        self.columns = Axis(len(self._stretches), min(max(room // len(self._stretches), 1), _WIDEST))
        self.rows = Axis(len(self._ranks), min(max(height // max(len(self._ranks), 1), 1), _HIGHEST))
        self.row = self._ranks.index(self._rank) if self._rank is not None and self._rank in self._ranks else 0
        self.column = next((at for at, windows in enumerate(self._stretches) if self._window in windows), 0)

    def header(self, line: int) -> tuple[Sequence[Piece], Sequence[tuple[int, Piece]], Sequence[Piece]]:  # noqa: ARG002
        """Return times over the windows that begin then."""
        assert self._result is not None
        begins, window_us = self._stretches, self._result.window_us
        ticks = self.ticks(_TICKS, lambda column: duration(begins[column].start * window_us))
        wide = f"{'operations':>13}" if self.right > 11 else ""
        dim = self.text_styles.dim
        return self.label_of("rank", "host", dim), ticks, [(f"{'degraded':>10}{wide}", dim)]

    def label(self, row: int, line: int) -> Sequence[Piece]:
        """Return the rank, and its host if there are several."""
        if line != self.rows.size - 1:
            return ()
        rank = self._ranks[row]
        style = self.text_styles.strong if rank in self._low else self.text_styles.base
        return self.label_of(str(rank), self.host_of(rank), style)

    def cell(self, row: int, column: int, line: int) -> Piece:
        """Return a part of a bar; at its foot a mark if the rank ran less than its peers."""
        rank, windows = self._ranks[row], self._stretches[column]
        counts, glyphs = self._counts[rank].counts, self.look.glyphs
        mean = sum(counts[windows.start : windows.stop]) / len(windows)
        steps = len(glyphs.bars)
        above = self.rows.size - 1 - line
        part = level(mean, self._peak, steps * self.rows.size + 1) - above * steps
        bar = glyphs.bars[min(part, steps) - 1] if part > 0 else " "
        of_rank = self._degraded.get(rank)
        low = [of_rank[window] for window in windows if window in of_rank] if of_rank else []
        size = self.columns.size
        if not low:
            return bar * size, self.text_styles.dim
        missing = any(one.state == "missing" for one in low)
        style = self.text_styles.alarm if missing else self.text_styles.levels[2]
        if above:
            return bar * size, style
        return (glyphs.alarm if missing else glyphs.weak_alarm).ljust(size), style

    def total(self, row: int, line: int) -> Sequence[Piece]:
        """Return the degraded windows, and the number of all operations."""
        if line != self.rows.size - 1:
            return ()
        rank = self._ranks[row]
        low = self._low[rank]
        style = self.text_styles.strong if low else self.text_styles.dim
        pieces = [(f"{count(low):>10}", style)]
        if self.right > 11:
            pieces.append((f"{count(sum(self._counts[rank].counts)):>13}", self.text_styles.dim))
        return pieces
