"""A line for each rank of a watched job: its own time now, and over its last recorded steps."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Final

from rich.segment import Segment
from textual.geometry import Size
from textual.strip import Strip

from kair_engine.results.triage import RankedRank
from kair_engine.results.views import StepTime
from kair_tui.render.units import duration
from kair_tui.tui.widgets.drawn import Drawn

_MOST: Final = 8
"""Drawn ranks, in the order of triage's ranking."""
_LATEST: Final = 20
"""Steps of the figure's median, as in `kair watch`."""
_LABEL: Final = 30


class OwnTimes(Drawn):
    """`rank 1 node-1  6.94 ms ▂▂▂▅▅▅`: all bars have one scale, the newest step is at the right."""

    DEFAULT_CSS = "OwnTimes { height: auto; width: 1fr; }"

    _of_rank: dict[int, list[float]] = {}  # noqa: RUF012  (replaced whole)
    _ranking: Sequence[RankedRank] = ()

    def show(self, steps: Sequence[StepTime]) -> None:
        """Replace the times."""
        of_rank: dict[int, list[float]] = defaultdict(list)
        for row in steps:
            if row.own_us is not None:
                of_rank[row.rank].append(row.own_us)
        self._of_rank = dict(of_rank)
        self.refresh(layout=True)

    def order(self, ranking: Sequence[RankedRank]) -> None:
        """Put the ranks into the order of a triage, and mark those that it accuses."""
        self._ranking = ranking
        self.refresh(layout=True)

    @property
    def has_any(self) -> bool:
        """Return whether any own time is known."""
        return bool(self._of_rank)

    @property
    def rows(self) -> list[tuple[int, str, bool]]:
        """Return the drawn ranks, each with its host, and whether triage accuses it."""
        ranked = [(int(one.rank), one.host or "", one.flagged) for one in self._ranking if one.rank in self._of_rank]
        return (ranked or [(rank, "", False) for rank in sorted(self._of_rank)])[:_MOST]

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002
        """Return a line for each rank."""
        return len(self.rows)

    def render_line(self, y: int) -> Strip:
        """Return one rank's line."""
        styles, rows, width = self.text_styles, self.rows, self.size.width
        if y >= len(rows):
            return Strip.blank(width, styles.base)
        rank, host, accused = rows[y]
        shown = [self._of_rank[of][-max(width - _LABEL - 2, 1) :] for of, _, _ in rows]
        peak = max((max(one) for one in shown), default=0.0)
        bars, mark = self.look.glyphs.bars, f"{self.look.glyphs.alarm} " if accused else "  "
        label = self.safe(f" {mark}rank {rank} {host}")[: _LABEL - 10].ljust(_LABEL - 10)
        now = duration(median(self._of_rank[rank][-_LATEST:])).rjust(9)
        drawn = "".join(bars[round(us / peak * (len(bars) - 1))] if peak > 0 else bars[0] for us in shown[y])
        style = styles.alarm if accused else styles.base
        strip = Strip([Segment(label, style), Segment(f"{now} ", styles.base), Segment(drawn, style)])
        return strip.adjust_cell_length(width, styles.base)
