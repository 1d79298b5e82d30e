"""Bars of the step's time: as it is, with the chosen fixes made, and without any straggler."""

from dataclasses import dataclass

from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from kair_engine.results.whatif import FixPrice, WhatifResult
from kair_tui.render.terminal import Look
from kair_tui.render.text import clean
from kair_tui.render.units import duration, gain, money, one_decimal, percent, plural, slowdown
from kair_tui.tui.widgets.lines.line import Piece, fitted
from kair_tui.tui.widgets.styles import styles_of

_LABEL, _TIME = 14, 8
_NARROWEST, _WIDEST = 6, 40
_REMARK = 42
"""Columns that are kept at least for what stands behind a bar, so that bars seldom change their length."""


@dataclass(frozen=True)
class _Bar:
    label: str
    us: float | None
    """None while it is being computed."""
    remark: str
    style: Style


class StepBars(Widget):
    """Of a what-if analysis, and the price of the fixes that are chosen."""

    DEFAULT_CSS = "StepBars { height: 3; width: 1fr; }"

    def __init__(self, look: Look) -> None:
        super().__init__(id="step_bars")
        self.look = look
        self._result: WhatifResult | None = None
        self._chosen = 0
        self._price: FixPrice | None = None
        self._cost: float | None = None

    def show(self, result: WhatifResult, cost_per_day: float | None) -> None:
        """The job as it is and as it could be; what that costs per day, where the price of a GPU hour is known."""
        self._result, self._cost = result, cost_per_day
        self.refresh()

    def choose(self, number: int, price: FixPrice | None) -> None:
        """How many fixes are chosen, and what they save together; None while that is being computed."""
        self._chosen, self._price = number, price
        self.refresh()

    @property
    def lines(self) -> list[str]:
        """The same as text."""
        return [" ".join(part for part in (bar.label, _time(bar), bar.remark) if part) for bar in self._bars()]

    def render_line(self, y: int) -> Strip:
        """One of the bars."""
        styles, width = styles_of(self.look), self.size.width
        bars = self._bars()
        pieces = self._drawn(bars[y], bars, width) if y < len(bars) else []
        return fitted(pieces, width, styles.base, self.look)

    def _drawn(self, bar: _Bar, bars: list[_Bar], width: int) -> list[Piece]:
        styles, glyphs, ascii_only = styles_of(self.look), self.look.glyphs, self.look.ascii_only
        longest = max((one.us or 0.0 for one in bars), default=0.0)
        remark = max(_REMARK, *(len(one.remark) for one in bars))
        room = min(max(width - _LABEL - _TIME - remark - 5, _NARROWEST), _WIDEST)
        cells = round(room * (bar.us or 0.0) / longest) if longest > 0 else 0
        time = clean(_time(bar), ascii_only=ascii_only) or glyphs.ellipsis
        return [
            (f" {bar.label:<{_LABEL}}", bar.style),
            (f"{time:>{_TIME}}  ", bar.style),
            (glyphs.full * cells, bar.style),
            (glyphs.empty * (room - cells) + "  ", styles.dim),
            (clean(bar.remark, ascii_only=ascii_only), styles.dim if bar.us is None else styles.base),
        ]

    def _bars(self) -> list[_Bar]:
        result, styles = self._result, styles_of(self.look)
        if result is None:
            return []
        paid = "" if self._cost is None else f" ({money(self._cost)})"
        wasted = f"{percent(result.waste)} waste: {one_decimal(result.gpu_hours_per_day)} GPU-hours/day{paid}"
        return [
            _Bar("now", result.step_time_us, f"S {slowdown(result.slowdown)}", styles.base),
            self._fixed(result),
            _Bar("no stragglers", result.ideal_step_time_us, wasted, styles.base),
        ]

    def _fixed(self, result: WhatifResult) -> _Bar:
        styles, price = styles_of(self.look), self._price
        label = f"with {plural(self._chosen, 'fix', 'fixes')}"
        if not self._chosen:
            return _Bar("with no fix", result.step_time_us, "space chooses a fix below", styles.dim)
        if price is None:
            return _Bar(label, None, "being replayed", styles.strong)
        paid = "" if price.cost_per_day is None else f" ({money(price.cost_per_day)})"
        saved = f"{gain(price.throughput_gain)} throughput, {one_decimal(price.gpu_hours_per_day)} GPU-hours/day{paid}"
        return _Bar(label, price.step_time_us, saved, styles.strong)


def _time(bar: _Bar) -> str:
    return "" if bar.us is None else duration(bar.us)
