"""Bars and curves: prices of parts, blamed ranks, the step's time (as it is, with fixes, and ideal), and a step's parts
with a mark at the role's median; and a rank's completion curve in its peers' band.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

from rich.style import Style
from textual.geometry import Size
from textual.strip import Strip

from kair_engine.results.rank import RankProfileResult, SubgraphTime
from kair_engine.results.whatif import FixPrice, WhatifResult
from kair_tui.render.blame_paths import Culprit, culprit_name
from kair_tui.render.drawing import Layer, Picture, bar, draw
from kair_tui.render.rank import axis
from kair_tui.render.text import clean, short_name
from kair_tui.render.units import count, duration, gain, money, one_decimal, percent, plural, signed_duration, slowdown
from kair_tui.tui.widgets.drawn import Drawn
from kair_tui.tui.widgets.lines import Piece, cut_in_the_middle, fitted
from kair_tui.tui.widgets.lists import Choices

_NARROWEST, _WIDEST = 8, 50
_TIME, _SHARE, _SLOWDOWN = 10, 9, 7


Part = TypeVar("Part", str, int)


@dataclass(frozen=True)
class Price:
    """A part with its fix's saving; the text alone if it has no price."""

    part: str
    costs_us: float | None = None
    costs: float = 0.0
    """As a share of the step."""
    rank: int | None = None
    whole: bool = False
    """The saving without any straggler, with which parts are compared."""
    slowdown: float | None = None
    """S with only this part as recorded and all else ideal."""


class PriceBars(Choices[Price]):
    """Of one sort of parts."""

    DEFAULT_CSS = "PriceBars { height: auto; }"

    _label = 0
    _most = 0.0

    def show_prices(self, prices: Sequence[Price]) -> None:
        """Show prices in the given order; bars share one scale."""
        self._label = min(max((len(price.part) for price in prices if price.costs_us is not None), default=0), 28)
        self._most = max((price.costs for price in prices), default=0.0)
        self.show(prices)

    def get_content_height(self, container: object, viewport: object, width: int) -> int:  # noqa: ARG002
        """Return a line for each."""
        return max(len(self.items), 1)

    def line_of(self, item: Price, width: int) -> list[Piece]:
        """Return its cost in figures, and a bar."""
        styles, glyphs = self.text_styles, self.look.glyphs
        if item.costs_us is None:
            return [(f" {self.safe(item.part)}", styles.dim)]
        room = max(min(width - self._label - _TIME - _SHARE - _SLOWDOWN - 6, _WIDEST), _NARROWEST)
        cells = round(room * item.costs / self._most) if self._most > 0 else 0
        style = styles.strong if item.whole else styles.base
        bar = styles.dim if item.whole else styles.levels[-1]
        time = self.safe(duration(item.costs_us))
        part = self.safe(item.part)
        label = cut_in_the_middle(part, self._label, self.look)
        return [
            (f" {label:<{self._label}}", style),
            (f"{time:>{_TIME}}", style),
            (f"{percent(item.costs):>{_SHARE}}", style),
            (f"{'' if item.slowdown is None else f'{item.slowdown:.3f}':>{_SLOWDOWN}}  ", style),
            (glyphs.full * max(cells, 1 if item.costs > 0 else 0), bar),
        ]


def prices_of(
    saved_us: Mapping[Part, float],
    alone: Mapping[Part, float],
    *,
    label: str,
    step_us: float,
    ideal_us: float,
    least: float,
) -> list[Price]:
    """Return the total loss, the parts whose fix saves at least `least` of the step, and the number of smaller ones.

    `alone` is S of each part with all else ideal.
    """
    lost_us, step_us = max(step_us - ideal_us, 0.0), max(step_us, 1e-3)
    found = [Price("no straggler", lost_us, lost_us / step_us, whole=True, slowdown=step_us / max(ideal_us, 1e-3))]
    worth = {part: saved for part, saved in saved_us.items() if saved >= least * step_us}
    for part, saved in worth.items():
        rank = part if label == "rank " and isinstance(part, int) else None
        found.append(Price(f"{label}{part}", saved, saved / step_us, rank, slowdown=alone.get(part)))
    if (rest := len(saved_us) - len(worth)) > 0:
        found.append(Price(f"{count(rest)} more cost nothing" if worth else "none alone costs anything"))
    return found


_SHORT_BAR = 8
_BLAMED_SHARE = 8


class RankBars(Drawn):
    """One below the other if there are lines, else as many as fit into one."""

    DEFAULT_CSS = "RankBars { height: 1; }"

    _ranks: Sequence[Culprit] = ()

    def show(self, ranks: Sequence[Culprit]) -> None:
        """Replace the bars."""
        self._ranks = ranks
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Return one rank, or all that fit."""
        styles, width, height = self.text_styles, self.size.width, self.size.height
        if height == 1:
            return fitted(self._in_a_row(width), width, styles.base, self.look)
        if y == height - 1 and len(self._ranks) > height:
            left = len(self._ranks) - height + 1
            return fitted([(f"  {self._rest(left)}", styles.dim)], width, styles.base, self.look)
        pieces = self._one(self._ranks[y], width) if y < len(self._ranks) else []
        return fitted(pieces, width, styles.base, self.look)

    def _one(self, row: Culprit, width: int) -> list[Piece]:
        styles = self.text_styles
        name = f" {self._label(row):>{max(len(self._label(row)) for row in self._ranks)}} "
        figures = (
            f"{percent(row.share):>{_BLAMED_SHARE}}{self.safe(duration(row.blamed_us)):>9}{count(row.arrived_last):>6}"
        )
        room = width - len(name) - len(figures) - 1
        return [(name, styles.base), (self._bar(row, room).ljust(room), styles.levels[2]), (figures, styles.base)]

    def _in_a_row(self, width: int) -> list[Piece]:
        styles = self.text_styles
        pieces: list[Piece] = [(" by rank", styles.title)]
        taken = len(pieces[0][0])
        for at, row in enumerate(self._ranks):
            drawn = self._bar(row, _SHORT_BAR)
            item = [
                (f"  {self._label(row)} ", styles.base),
                (drawn, styles.levels[2]),
                (f" {percent(row.share)}", styles.base),
            ]
            rest = len(self._ranks) - at
            needed = sum(len(text) for text, _ in item)
            if taken + needed + (len(self._rest(rest)) + 2 if rest > 1 else 0) > width:
                return [*pieces, (f"  {self._rest(rest)}", styles.dim)]
            pieces, taken = [*pieces, *item], taken + needed
        return pieces

    def _bar(self, row: Culprit, width: int) -> str:
        peak = self._ranks[0].share
        return bar(row.share, None, peak, width, ascii_only=self.look.draws_ascii)

    def _label(self, row: Culprit) -> str:
        return self.safe(culprit_name(row))

    def _rest(self, ranks: int) -> str:
        return f"and {count(ranks)} more"


_LABEL, _STEP_TIME = 14, 8
_NARROWEST_STEP, _WIDEST_STEP = 6, 40
_REMARK = 42
"""Columns kept for the text after a bar, so that bars seldom change their length."""


@dataclass(frozen=True)
class _Bar:
    label: str
    us: float | None
    """None while it is being computed."""
    remark: str
    style: Style


class StepBars(Drawn):
    """Bars of a what-if analysis, and the price of the chosen fixes."""

    DEFAULT_CSS = "StepBars { height: 3; width: 1fr; }"

    _result: WhatifResult | None = None
    _recorded_us: float | None = None
    _chosen = 0
    _price: FixPrice | None = None
    _cost: str | None = None

    def show(self, result: WhatifResult, cost_per_day: str | None) -> None:
        """Show the job as it is and as it could be, with costs per day if the price of a GPU hour is known."""
        self._result, self._cost = result, cost_per_day
        self.refresh()

    def show_recorded(self, step_us: float) -> None:
        """Show the job as it is, while it is computed how it could be."""
        self._recorded_us = step_us
        self.refresh()

    def choose(self, number: int, price: FixPrice | None) -> None:
        """Set the number of chosen fixes, and their joint saving; None while that is being computed."""
        self._chosen, self._price = number, price
        self.refresh()

    @property
    def lines(self) -> list[str]:
        """Return the same as text."""
        return [" ".join(part for part in (bar.label, _time(bar), bar.remark) if part) for bar in self._bars()]

    def render_line(self, y: int) -> Strip:
        """Return one of the bars."""
        styles, width = self.text_styles, self.size.width
        bars = self._bars()
        pieces = self._drawn(bars[y], bars, width) if y < len(bars) else []
        return fitted(pieces, width, styles.base, self.look)

    def _drawn(self, bar: _Bar, bars: list[_Bar], width: int) -> list[Piece]:
        styles, glyphs = self.text_styles, self.look.glyphs
        longest = max((one.us or 0.0 for one in bars), default=0.0)
        remark = max(_REMARK, *(len(one.remark) for one in bars))
        room = min(max(width - _LABEL - _STEP_TIME - remark - 5, _NARROWEST_STEP), _WIDEST_STEP)
        cells = round(room * (bar.us or 0.0) / longest) if longest > 0 else 0
        time = self.safe(_time(bar)) or glyphs.ellipsis
        return [
            (f" {bar.label:<{_LABEL}}", bar.style),
            (f"{time:>{_STEP_TIME}}  ", bar.style),
            (glyphs.full * cells, bar.style),
            (glyphs.empty * (room - cells) + "  ", styles.dim),
            (self.safe(bar.remark), styles.dim if bar.us is None else styles.base),
        ]

    def _bars(self) -> list[_Bar]:
        result, styles, ideal = self._result, self.text_styles, "no straggler"
        if result is None:
            if self._recorded_us is None:
                return []
            now = _Bar("now", self._recorded_us, "as recorded", styles.base)
            return [now, self._fixed(self._recorded_us, ""), _Bar(ideal, None, "being replayed", styles.base)]
        paid = "" if self._cost is None else f" ({self._cost})"
        saved = f"{percent(result.waste)} less: {one_decimal(result.gpu_hours_per_day)} GPU-hours/day{paid}"
        return [
            _Bar("now", result.step_time_us, "as recorded", styles.base),
            self._fixed(result.step_time_us, "space chooses a fix below"),
            _Bar(ideal, result.ideal_step_time_us, f"S {slowdown(result.slowdown)}, {saved}", styles.base),
        ]

    def _fixed(self, now_us: float, how_to_choose: str) -> _Bar:
        styles, price = self.text_styles, self._price
        label = f"with {plural(self._chosen, 'fix', 'fixes')}"
        if not self._chosen:
            return _Bar("with no fix", now_us, how_to_choose, styles.dim)
        if price is None:
            return _Bar(label, None, "being replayed", styles.strong)
        paid = "" if price.cost_per_day is None else f" ({money(price.cost_per_day, price.currency)})"
        saved = f"{gain(price.throughput_gain)} throughput, {one_decimal(price.gpu_hours_per_day)} GPU-hours/day{paid}"
        return _Bar(label, price.step_time_us, saved, styles.strong)


def _time(bar: _Bar) -> str:
    return "" if bar.us is None else duration(bar.us)


_NAME, _FIGURE = 13, 8
_WIDE = 64
"""Width from which the median and the share fit as figures."""


@dataclass(frozen=True)
class _Row:
    """A part, a phase or a scope."""

    name: str
    own_us: float
    typical_us: float | None
    share: float

    @property
    def difference_us(self) -> float | None:
        """Return the excess over the role's median."""
        return None if self.typical_us is None else self.own_us - self.typical_us


class StepParts(Drawn):
    """The parts of the step; the one that is most above its role's median stands out."""

    DEFAULT_CSS = "StepParts { height: 7; }"

    _rows: tuple[_Row, ...] = ()
    _what = "part"

    def show(self, result: RankProfileResult | None, *, subgraphs: bool = False) -> None:
        """Replace the parts; with `subgraphs` by phases and scopes, the most differing first."""
        parts = () if result is None else result.parts
        self._rows = tuple(_Row(one.part, one.own_us, one.typical_us, one.share) for one in parts)
        self._what = "scope" if subgraphs else "part"
        if subgraphs and result is not None:
            found = [_of_subgraph(row, result.step_time_us) for row in result.subgraphs]
            self._rows = tuple(sorted(found, key=lambda row: -abs(row.difference_us or 0.0)))
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Return the titles if they fit, then a part in each line."""
        styles, width = self.text_styles, self.size.width
        # If there are more scopes than lines, the first ones stand under their titles, too.
        y -= self._what != "part" or self.size.height > len(self._rows)
        if not self._rows or y >= len(self._rows):
            return Strip.blank(width, styles.base)
        if y < 0:
            return fitted([(self._titles(width), styles.dim)], width, styles.base, self.look)
        row = self._rows[y]
        figures = self._figures(row, width)
        room = width - len(figures) - 1
        most = row is self._most
        drawn = bar(
            row.own_us,
            row.typical_us,
            max(max(row.own_us, row.typical_us or 0.0) for row in self._rows),
            room,
            ascii_only=self.look.draws_ascii,
        )
        pieces = [(figures, styles.strong if most else styles.base), (drawn, styles.levels[3 if most else 1])]
        return fitted(pieces, width, styles.base, self.look)

    def _figures(self, row: _Row, width: int) -> str:
        us = row.difference_us
        difference = "–" if us is None else signed_duration(us)
        cells = [duration(row.own_us), difference]
        if width >= _WIDE:
            typical = "–" if row.typical_us is None else duration(row.typical_us)
            cells = [duration(row.own_us), typical, difference, percent(row.share)]
        return f" {row.name:<{_NAME}}" + "".join(f"{self.safe(cell):>{_FIGURE + 1}}" for cell in cells) + " "

    def _titles(self, width: int) -> str:
        titles = ("per step", "role", "differs", "of step") if width >= _WIDE else ("per step", "differs")
        return f" {self._what:<{_NAME}}" + "".join(f"{title:>{_FIGURE + 1}}" for title in titles)

    @property
    def _most(self) -> _Row:
        return max(self._rows, key=lambda row: row.difference_us or 0.0)


def _of_subgraph(one: SubgraphTime, step_us: float) -> _Row:
    name = clean(short_name(one.subgraph, _NAME))[:_NAME]
    return _Row(name, one.own_us, one.typical_us, one.own_us / max(step_us, 1e-3))


_MARGIN = 7
"""Columns for the shares on the left."""


class CompletionCurve(Drawn):
    """Shares completed from 0 to 100 % over the time since the step's begin."""

    DEFAULT_CSS = "CompletionCurve { height: 1fr; }"

    _result: RankProfileResult | None = None
    _picture: Picture | None = None
    _drawn_for = Size(0, 0)

    def show(self, result: RankProfileResult | None) -> None:
        """Replace the curve."""
        self._result, self._picture = result, None
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Return a row of the picture, or the axis under it."""
        styles, width, height = self.text_styles, self.size.width, self.size.height
        if self._result is None or width <= _MARGIN + 1 or height < 3:
            return Strip.blank(width, styles.base)
        picture = self._drawn(self._result)
        if y < height - 1:
            return fitted(self._row(picture, y, height - 1), width, styles.base, self.look)
        line = self.safe(axis(self._result, picture.distance_at, width - _MARGIN - 1))
        return fitted([(" " * _MARGIN, styles.dim), (line, styles.dim)], width, styles.base, self.look)

    def _drawn(self, result: RankProfileResult) -> Picture:
        """Return the picture for the current size: lines are drawn before a widget learns of a new size."""
        if self._picture is None or self._drawn_for != self.size:
            self._drawn_for = self.size
            width, height = self.size.width - _MARGIN - 1, self.size.height - 1
            self._picture = draw(
                result.curve, result.farthest, width=width, height=height, ascii_only=self.look.draws_ascii
            )
        return self._picture

    def _row(self, picture: Picture, y: int, rows: int) -> list[Piece]:
        styles = self.text_styles
        of_layer: dict[Layer, Style] = {
            "": styles.base,
            "band": styles.dim,
            "median": styles.base,
            "distance": styles.levels[3],
            "rank": styles.strong,
        }
        label = {0: "100 %", rows // 2: "50 %", rows - 1: "0 %"}.get(y, "")
        pieces: list[Piece] = [(f"{label:>{_MARGIN - 1}} ", styles.dim)]
        signs = zip(picture.layers[y], picture.rows[y], strict=True)
        for layer, run in groupby(signs, key=lambda sign: sign[0]):
            pieces.append(("".join(sign for _, sign in run), of_layer[layer]))
        return pieces
