"""One line with the GPU-time of a step: a bar, and its parts in percent."""

from rich.style import Style

from kair_engine.results.step_bar import BarPart, StepBar
from kair_tui.render.bar import drawn
from kair_tui.tui.widgets.lines import Line, Piece

_WIDEST, _NARROWEST = 60, 8


class StepBarLine(Line):
    """`█████░░▓ █compute 57 ░bubble 29 ▓comm. 14 %`; no line without content."""

    DEFAULT_CSS = "StepBarLine { display: none; }"
    _bar: StepBar | None = None

    def show(self, bar: StepBar | None) -> None:
        """Replace it."""
        if bar != self._bar:
            self._bar = bar
            self.display = bar is not None
            self.refresh()

    def pieces(self, width: int) -> list[Piece]:
        """Return the line; shares are whole percents that add up to 100.

        Without room for a bar they stand alone.
        """
        if self._bar is None:
            return []
        base, ascii_only = self.text_styles.base, self.look.draws_ascii
        legend = [one for one in drawn(self._bar, 1, ascii_only=ascii_only) if one.percents]
        text = " ".join(one.brief for one in legend) + " %"
        room = min(width - len(text) - 3, _WIDEST)
        if room < _NARROWEST:
            return [(f" {text}", base)]
        bars = [(one.sign * one.cells, self._style(one.part)) for one in drawn(self._bar, room, ascii_only=ascii_only)]
        return [(" ", base), *bars, (f" {text}", base)]

    def _style(self, part: BarPart) -> Style:
        styles = self.text_styles
        of: dict[BarPart, Style] = {"bubble": styles.dim, "stragglers": styles.alarm, "other": styles.dim}
        return of.get(part, styles.base)
