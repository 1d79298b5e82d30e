"""A strip of all steps: a bar for the time of each, slow ones marked, and a range to choose."""

from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip

from kair_engine.results.views import StepSummary
from kair_tui.tui.widgets.drawn import CursorMoved, Drawn, RefreshedByFocus

_LEFT = 1
_WIDEST = 3
_APART = 2
"""Columns between two numbers."""


class StepStrip(Drawn, RefreshedByFocus, can_focus=True):
    """Bars, and under them marks and numbers. If steps outnumber columns, a bar is the longest of several."""

    DEFAULT_CSS = "StepStrip { height: 3; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "narrow", "only these steps"),
        Binding("space", "anchor", "begin a range"),
        Binding("left,h", "move(-1)", "left", show=False),
        Binding("right,l", "move(1)", "right", show=False),
        Binding("shift+left", "extend(-1)", "range to the left", show=False),
        Binding("shift+right", "extend(1)", "range to the right", show=False),
        Binding("home", "move(-1000000)", "first step", show=False),
        Binding("end", "move(1000000)", "last step", show=False),
        Binding("n", "next_slow", "next slow step", show=False),
    ]

    class Moved(CursorMoved):
        """Another step is under the cursor."""

    class Narrowed(Message):
        """These steps were chosen."""

        def __init__(self, steps: tuple[int, ...]) -> None:
            super().__init__()
            self.steps = steps

    _summary: tuple[StepSummary, ...] = ()
    _chosen: frozenset[int] = frozenset()
    _at = 0
    _anchor: int | None = None

    def show(self, summary: Sequence[StepSummary]) -> None:
        """Show all complete steps."""
        self._summary = tuple(row for row in summary if row.complete)
        self._at = min(self._at, max(len(self._summary) - 1, 0))
        self.refresh()

    def choose(self, steps: Sequence[int]) -> None:
        """Set the steps that everything is about."""
        self._chosen, self._anchor = frozenset(steps), None
        self.refresh()

    @property
    def step(self) -> StepSummary | None:
        """Return the step under the cursor."""
        return self._summary[self._at] if self._summary else None

    @property
    def selected(self) -> tuple[int, ...]:
        """Return the steps from the range's begin to the cursor, both included."""
        first, last = self._range()
        return tuple(row.step for row in self._summary[first : last + 1])

    # Drawing.

    def render_line(self, y: int) -> Strip:
        """Return bars, marks or numbers."""
        styles = self.text_styles
        draw = (self._bars, self._signs, self._numbers)[min(y, 2)]
        strip = Strip([Segment(" " * _LEFT, styles.base), *draw()])
        return strip.adjust_cell_length(self.size.width, styles.base)

    def _columns(self) -> list[range]:
        """Return the steps of each bar."""
        room = max(self.size.width - 2 * _LEFT, 1)
        count = min(len(self._summary), room)
        edges = [round(index * len(self._summary) / count) for index in range(count + 1)] if count else [0]
        return [range(edges[index], edges[index + 1]) for index in range(count)]

    def _width(self) -> int:
        """Return columns of the screen per bar."""
        room = max(self.size.width - 2 * _LEFT, 1)
        return max(1, min(_WIDEST, room // max(len(self._summary), 1)))

    def _bars(self) -> list[Segment]:
        bars, peak = self.look.glyphs.bars, max((row.max_us for row in self._summary), default=0.0)
        segments = []
        for column in self._columns():
            longest = max(self._summary[at].max_us for at in column)
            level = round(longest / peak * (len(bars) - 1)) if peak > 0 else 0
            bar = self._bar_width()
            segments.append(Segment((bars[level] * bar).ljust(self._width()), self._style(column)))
        return segments

    def _bar_width(self) -> int:
        return max(self._width() - 1, 1)

    def _style(self, column: range) -> Style:
        styles = self.text_styles
        rows = [self._summary[at] for at in column]
        if any(row.slow for row in rows):
            return styles.alarm
        return styles.levels[1] if any(row.step in self._chosen for row in rows) else styles.dim

    def _signs(self) -> list[Segment]:
        """Return a mark under each slow step, and a dash under each chosen one if not all are."""
        styles, glyphs = self.text_styles, self.look.glyphs
        narrowed = len(self._chosen) < len(self._summary)
        segments = []
        for column in self._columns():
            rows = [self._summary[at] for at in column]
            chosen = narrowed and any(row.step in self._chosen for row in rows)
            line = glyphs.horizontal * self._bar_width() if chosen else " "
            mark, style = (glyphs.alarm, styles.alarm) if any(row.slow for row in rows) else (line, styles.base)
            segments.append(Segment(mark.ljust(self._width()), style))
        return segments

    def _numbers(self) -> list[Segment]:
        """Return the first, the last, and as many numbers between as fit; with the focus also the range."""
        columns, width, styles = self._columns(), self._width(), self.text_styles
        if not columns:
            return []
        places = [(index * width, str(self._summary[column[0]].step)) for index, column in enumerate(columns)]
        first, last = self._range()
        touched = [index for index, column in enumerate(columns) if column[-1] >= first and column[0] <= last]
        begin, end = touched[0] * width, touched[-1] * width + self._bar_width()
        under_cursor = next((index for index, column in enumerate(columns) if self._at in column), 0)
        here = [(under_cursor * width, str(self._summary[self._at].step))] if self.has_focus else []
        line = _placed([*here, places[-1], *places], len(columns) * width)
        if not self.has_focus:
            return [Segment(line, styles.dim)]
        end = max(end, here[0][0] + len(here[0][1]))
        return [
            Segment(line[:begin], styles.dim),
            Segment(line[begin:end].ljust(end - begin), styles.strong + styles.cursor),
            Segment(line[end:], styles.dim),
        ]

    def _range(self) -> tuple[int, int]:
        """Return the indices of the first and the last step of the range."""
        first, last = sorted((self._at if self._anchor is None else self._anchor, self._at))
        return first, last

    # The cursor.

    def action_move(self, by: int) -> None:
        """Go to another step."""
        if self._summary:
            self._at = min(max(self._at + by, 0), len(self._summary) - 1)
            self.refresh(Region(0, 2, self.size.width, 1))
            self.post_message(self.Moved())

    def action_extend(self, by: int) -> None:
        """Extend the range, from where it begins."""
        if self._anchor is None:
            self._anchor = self._at
        self.action_move(by)

    def action_anchor(self) -> None:
        """Begin a range here, or drop it."""
        self._anchor = self._at if self._anchor is None else None
        self.refresh()
        self.post_message(self.Moved())

    def action_next_slow(self) -> None:
        """Go to the next marked step."""
        order = [*range(self._at + 1, len(self._summary)), *range(self._at + 1)]
        slow = next((at for at in order if at < len(self._summary) and self._summary[at].slow), None)
        if slow is not None:
            self.action_move(slow - self._at)

    def action_narrow(self) -> None:
        """Choose the range."""
        if self._summary:
            self.post_message(self.Narrowed(self.selected))

    def on_click(self, event: events.Click) -> None:
        """Put the cursor there."""
        columns = self._columns()
        at = (event.x - _LEFT) // self._width()
        if 0 <= at < len(columns):
            self.action_move(columns[at][0] - self._at)


def _placed(labels: Sequence[tuple[int, str]], width: int) -> str:
    """Return labels at their columns, earlier ones first; those without room are left out."""
    line = [" "] * (width + max(len(text) for _, text in labels))
    taken: set[int] = set()
    for at, text in labels:
        room = range(max(at - _APART, 0), at + len(text) + _APART)
        if not taken.intersection(room):
            line[at : at + len(text)] = text
            taken.update(range(at, at + len(text)))
    return "".join(line).rstrip()
