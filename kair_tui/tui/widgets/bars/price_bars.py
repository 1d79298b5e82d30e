"""Bars of prices: all that is lost, then each part of the job, the costliest first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kair_tui.render.terminal import Look
from kair_tui.render.text import clean
from kair_tui.render.units import count, duration, percent
from kair_tui.tui.widgets.lines.line import Piece
from kair_tui.tui.widgets.lists.select_list import Choices, Lines
from kair_tui.tui.widgets.styles import styles_of

_NARROWEST, _WIDEST = 8, 50
_TIME, _SHARE = 10, 9


@dataclass(frozen=True)
class Price:
    """A part with what it alone adds to the ideal step; of nothing that has a price the text alone."""

    part: str
    costs_us: float | None = None
    costs: float = 0.0
    """As a share of the ideal step."""
    rank: int | None = None
    whole: bool = False
    """All that is lost, which the parts are measured by."""


class PriceBars(Choices[Price]):
    """Of one sort of parts."""

    DEFAULT_CSS = "PriceBars { height: auto; }"

    def __init__(self, look: Look) -> None:
        super().__init__(look, self._lines_of, id="prices")
        self._label = 0
        self._most = 0.0

    def show_prices(self, prices: Sequence[Price]) -> None:
        """In the order given; bars share one scale."""
        self._label = min(max((len(price.part) for price in prices if price.costs_us is not None), default=0), 28)
        self._most = max((price.costs for price in prices), default=0.0)
        self.show(prices)

    def get_content_height(self, container: object, viewport: object, width: int) -> int:  # noqa: ARG002
        """A line for each."""
        return max(len(self.items), 1)

    def _lines_of(self, item: Price, width: int) -> Lines:
        styles, glyphs, ascii_only = styles_of(self.look), self.look.glyphs, self.look.ascii_only
        if item.costs_us is None:
            return [[(f" {clean(item.part, ascii_only=ascii_only)}", styles.dim)]]
        room = max(min(width - self._label - _TIME - _SHARE - 6, _WIDEST), _NARROWEST)
        cells = round(room * item.costs / self._most) if self._most > 0 else 0
        style = styles.strong if item.whole else styles.base
        bar = styles.dim if item.whole else styles.levels[-1]
        time = clean(f"+{duration(item.costs_us)}", ascii_only=ascii_only)
        part = clean(item.part, ascii_only=ascii_only)
        label = part if len(part) <= self._label else part[: self._label - 1] + glyphs.ellipsis
        pieces: list[Piece] = [
            (f" {label:<{self._label}}", style),
            (f"{time:>{_TIME}}", style),
            (f"{percent(item.costs):>{_SHARE}}  ", style),
            (glyphs.full * max(cells, 1 if item.costs > 0 else 0), bar),
        ]
        return [pieces]


def prices_of(
    slowdowns: Mapping[str, float] | Mapping[int, float], *, label: str, slowdown: float, ideal_us: float, least: float
) -> list[Price]:
    """All that is lost, the parts that cost `least` and more, and how many cost less."""
    whole = max(slowdown - 1, 0.0)
    found = [Price("everything", whole * ideal_us, whole, whole=True)]
    worth = {part: value - 1 for part, value in slowdowns.items() if value - 1 >= least}
    for part, costs in worth.items():
        rank = part if label == "rank " and isinstance(part, int) else None
        found.append(Price(f"{label}{part}", costs * ideal_us, costs, rank))
    if (rest := len(slowdowns) - len(worth)) > 0:
        found.append(Price(f"{count(rest)} more cost nothing" if worth else "none alone costs anything"))
    return found
