"""A line of shares: done, current, remaining, left out."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.style import Style

from kair_tui.render.units import count
from kair_tui.tui.widgets.lines import Line, Piece

_LABEL, _WIDEST = 9, 60


@dataclass(frozen=True)
class Share:
    """One part of the whole."""

    number: int
    sign: str
    style: Style
    what: str
    """The text after its number: `done`."""


class SharesLine(Line):
    """`epoch 3  ███████▒░░░░  960 done, 48 in hand, 992 to do`; no line without content."""

    DEFAULT_CSS = "SharesLine { display: none; }"

    def show(self, label: str, shares: Sequence[Share]) -> None:
        """Replace them."""
        self._label, self._shares = label, tuple(shares)
        self.display = bool(shares)
        self.refresh()

    def pieces(self, width: int) -> list[Piece]:
        """Return the line."""
        total = sum(share.number for share in self._shares)
        figures = ", ".join(f"{count(share.number)} {share.what}" for share in self._shares if share.number)
        room = min(max(width - _LABEL - len(figures) - 5, 0), _WIDEST)
        bars = [
            (share.sign * cells, share.style)
            for share, cells in zip(self._shares, cells_of([one.number for one in self._shares], room), strict=True)
        ]
        styles = self.text_styles
        return [
            (f" {self.safe(self._label):<{_LABEL}} ", styles.base),
            *(bars if total else []),
            (f"  {figures}", styles.base),
        ]


def cells_of(numbers: Sequence[int], room: int) -> list[int]:
    """Return how many of `room` cells each number has; every non-zero one has a cell if they fit."""
    total, before, cells = max(sum(numbers), 1), 0, []
    for number in numbers:
        cells.append(round(room * (before + number) / total) - round(room * before / total))
        before += number
    for at, number in enumerate(numbers):
        most = cells.index(max(cells))
        if number and not cells[at] and cells[most] > 1:
            cells[at], cells[most] = 1, cells[most] - 1
    return cells
