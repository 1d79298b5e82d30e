"""The timeline for people: a row per rank over time, its centre, and the operation under the cursor.

Also as a vector picture: every window exactly as wide as it lasts, every bar with a title.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final
from xml.etree import ElementTree as Xml

from kair_engine.results.timeline import (
    ARRIVED,
    ARRIVED_LAST,
    TimelineCollective,
    TimelineKind,
    TimelineOperation,
    TimelineResult,
    TimelineRow,
)
from kair_tui.render.answer import DIM, Column
from kair_tui.render.text import clean, short_name
from kair_tui.render.timeline_drawing import (
    KIND_OF,
    WORDS,
    Ink,
    Signs,
    axis,
    clock_in_words,
    draw_rows,
    fixed_in_words,
    label,
    legend,
    marks_in_words,
    recorded_in_words,
    row_of,
    rows_in_words,
    saved_mark,
    signs,
    takes,
    timeline_headline,
    view_in_words,
    with_fixes,
)
from kair_tui.render.units import count, duration
from kair_tui.render.view import View

if TYPE_CHECKING:
    from kair_tui.render.page import Page


WIDEST: Final = 120
_NARROWEST: Final = 20
_FIGURE: Final = 9
_COLLECTIVES_SHOWN: Final = 10
_STYLES: Final[dict[Ink, str]] = {
    "compute": "blue",
    "communication": "green",
    "waiting": "yellow",
    "input": "magenta",
    "host": "cyan",
    "rest": "dim",
    "unknown": "dim",
    "operation": "bright_black",
    "synchronisation": "dim",
    "arrival": "bold",
    "last": "bold",
    "path": "bold",
    "hop": "bold",
    "delay": "bold",
}


COLUMNS = (
    Column[TimelineRow]("rank", "rank", lambda row: str(row.rank), weight=9),
    Column[TimelineRow]("lane", "lane", lambda row: row.lane or "–", align="left", weight=8),
    Column[TimelineRow]("ranks", "ranks", lambda row: count(row.ranks), weight=7),
    Column[TimelineRow]("imposed_us", "others waited", lambda row: duration(row.imposed_us), weight=8),
)
UNDER = (
    Column[TimelineOperation]("rank", "rank", lambda row: str(row.rank), weight=9),
    Column[TimelineOperation]("operator", "operator", lambda row: short_name(row.operator), align="left", weight=9),
    Column[TimelineOperation]("lane", "lane", lambda row: row.lane, align="left", weight=4),
    Column[TimelineOperation]("begin_us", "begins", lambda row: duration(row.begin_us), weight=8),
    Column[TimelineOperation]("own_us", "", takes, align="left", weight=8),
)
_COLLECTIVES = (
    Column[TimelineCollective]("operator", "collective", lambda row: short_name(row.operator), align="left", weight=9),
    Column[TimelineCollective]("first_arrival_us", "first", lambda row: duration(row.first_arrival_us), weight=6),
    Column[TimelineCollective]("last_arrival_us", "last", lambda row: duration(row.last_arrival_us), weight=8),
    Column[TimelineCollective]("last_rank", "last rank", lambda row: str(row.last_rank), weight=9),
    Column[TimelineCollective]("end_us", "end", lambda row: duration(row.end_us), weight=5),
    Column[TimelineCollective]("waited_us", "all waited", lambda row: duration(row.waited_us), weight=8),
)


def _body(result: TimelineResult, page: Page) -> None:
    labels = [label(row) for row in result.rows]
    before = max((len(text) for text in labels), default=0) + 1
    columns = max(min(page.options.width, WIDEST + before + _FIGURE) - before - _FIGURE, _NARROWEST)
    drawn_with = signs(ascii_only=page.options.ascii_only, coloured=page.options.color)
    page.line(f"{rows_in_words(result)}, {view_in_words(result)}", DIM)
    page.pieces([(" " * before + axis(result, columns), DIM), (f"{'awaited':>{_FIGURE}}", DIM)])
    if result.fixed is not None:
        page.line(recorded_in_words(result.fixed))
    _draw(result, page, before, columns, drawn_with)
    if result.fixed is not None and (after := with_fixes(result)) is not None:
        page.line()
        page.line(fixed_in_words(result.fixed))
        _draw(after, page, before, columns, drawn_with)
        if mark := saved_mark(result, columns):
            page.line(" " * before + mark)
    page.line()
    page.line("   ".join(f"{drawn_with.kinds[kind]} {WORDS[kind]}" for kind in legend(result)))
    page.line("   ".join(marks_in_words(result, drawn_with)))
    page.line("awaited: how long the other ranks, in total, waited for this one in this view", DIM)
    if (clock := clock_in_words(result)) is not None:
        page.line(clock, DIM)
    page.line()
    page.table(UNDER, result.under)
    if result.collectives:
        page.line()
        longest = sorted(result.collectives, key=lambda one: -one.waited_us)
        page.table(_COLLECTIVES, longest, limit=_COLLECTIVES_SHOWN)


def _draw(result: TimelineResult, page: Page, before: int, columns: int, drawn_with: Signs) -> None:
    """Draw a line for every row; `before` is the width of the names."""
    for line in draw_rows(result, columns, drawn_with):
        row = result.rows[line.rows[0]]
        cells = [(run.text, _style(run.front, run.back)) for run in line.runs]
        figure = duration(row.imposed_us) if row.lane is None and row.imposed_us else ""
        page.pieces([(f"{label(row):<{before}}", DIM if row.lane else ""), *cells, (f"{figure:>{_FIGURE}}", "")])


def _style(front: Ink, back: Ink) -> str:
    style = _STYLES.get(front, "")
    behind = _STYLES.get(back, "")
    # Attributes such as "dim" are no background colours.
    return f"{style} on {behind}" if behind and behind not in ("dim", "bold") else style


WIDTH: Final = 1200
"""Width of the bars, in units of the picture."""
_LEFT, _RIGHT, _TOP, _ROW, _BAR, _LANE = 150, 110, 90, 20, 14, 8
_CAPTION: Final = 26
"""Height of captions above and below the rows."""
_COLOURS: Final[dict[TimelineKind, str]] = {
    "compute": "#4f81b5",
    "communication": "#5fa06e",
    "waiting": "#e3c47c",
    "input": "#a177b8",
    "host": "#e08e4f",
    "rest": "#d5d9de",
    "unknown": "#b9b9b9",
    "operation": "#9fb6c9",
    "synchronisation": "#c9c3dd",
}
_INK, _DIM = "#22272e", "#6b7480"
_TICKS: Final = 8


def svg(result: TimelineResult) -> str:
    """Return the picture as a standalone SVG document."""
    after = with_fixes(result)
    block = _ROW * len(result.rows)
    # With fixes, a caption and the fixed rows follow below the recorded ones.
    top = _TOP if after is None else _TOP + _CAPTION
    below = top + block + _CAPTION
    height = (top + block if after is None else below + block + _CAPTION) + 40
    whole = WIDTH + _LEFT + _RIGHT
    root = Xml.Element(
        "svg",
        {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {whole} {height}", "font-family": "sans-serif"},
    )
    Xml.SubElement(root, "rect", {"width": str(whole), "height": str(height), "fill": "#ffffff"})
    what, _, waited = timeline_headline(result).partition("; ")
    _text(root, 10, 18, what, size=13)
    _text(root, 10, 34, waited, size=13)
    about = ". ".join(filter(None, (f"{rows_in_words(result)}, {view_in_words(result)}", clock_in_words(result))))
    _text(root, 10, 50, about, colour=_DIM)
    _axis(root, result, height - 40)
    _block(root, result, top)
    if after is not None and result.fixed is not None:
        _text(root, _LEFT, top - 8, recorded_in_words(result.fixed), size=12)
        _text(root, _LEFT, below - 8, fixed_in_words(result.fixed), size=12)
        _block(root, after, below)
        _saved(root, result, below + block + 4)
    _legend(root, result, height - 14)
    Xml.indent(root)
    return Xml.tostring(root, encoding="unicode") + "\n"


def _block(root: Xml.Element, result: TimelineResult, top: int) -> None:
    for number, row in enumerate(result.rows):
        _row(root, result, row, top + _ROW * number)
    _path(root, result, top)


def _saved(root: Xml.Element, result: TimelineResult, y: int) -> None:
    """Draw a bar from the step's end with the fixes to its recorded end, if both are in view."""
    fixed = result.fixed
    if fixed is None or not fixed.saved_us:
        return
    first, last = sorted((fixed.step_us, result.step_us))
    if first < result.begin_us or last > result.end_us:
        return
    _rect(root, (_x(result, first), y), (_x(result, last) - _x(result, first), 4), _INK)
    saving = f"{duration(abs(fixed.saved_us))} {'saved' if fixed.saved_us > 0 else 'longer'}"
    _text(root, _x(result, last), y + 16, saving, anchor="end")


def _row(root: Xml.Element, result: TimelineResult, row: TimelineRow, top: int) -> None:
    bar = _BAR if row.lane is None else _LANE
    _text(root, _LEFT - 8, top + 11, label(row), anchor="end", colour=_INK if row.lane is None else _DIM)
    if row.lane is None and row.imposed_us:
        _text(root, _LEFT + WIDTH + 40, top + 11, duration(row.imposed_us), colour=_DIM)
    at = 0
    for letter, group in groupby(row.windows):
        count = sum(1 for _ in group)
        kind = KIND_OF[letter]
        if kind in _COLOURS:
            begin, end = (result.begin_us + edge * result.window_us for edge in (at, at + count))
            rect = _rect(root, (_x(result, begin), top), (_x(result, end) - _x(result, begin), bar), _COLOURS[kind])
            Xml.SubElement(rect, "title").text = _safe(
                f"{label(row).strip()}: {WORDS[kind]} {duration(begin)} to {duration(end)}"
            )
        at += count
    for at, letter in enumerate(row.arrivals):
        if letter in (ARRIVED, ARRIVED_LAST):
            x, wide = _x(result, result.begin_us + at * result.window_us), 3.0 if letter == ARRIVED_LAST else 1.0
            _rect(root, (x, top - 2), (wide, _BAR + 4), _INK)


def _path(root: Xml.Element, result: TimelineResult, top: int) -> None:
    """Draw a line along each stop's bar, upright where the path changes to another rank."""
    points: list[str] = []
    for number, stop in enumerate(result.path):
        at = row_of(result.rows, stop.rank)
        if at is not None:
            # The first stop is the waiting rank, until the next one came; from there it goes back in time.
            times = (stop.end_us, stop.begin_us) if number else (stop.begin_us, stop.end_us)
            points += [f"{_x(result, time):.1f},{top + _middle(at)}" for time in times]
    line = {"points": " ".join(points), "fill": "none", "stroke": _INK, "stroke-width": "2", "stroke-dasharray": "5 2"}
    if points:
        Xml.SubElement(root, "polyline", line)
    delay = result.around.operation
    at = row_of(result.rows, delay.rank)
    if at is not None and result.begin_us <= delay.begin_us <= result.end_us:
        place = {"cx": f"{_x(result, delay.begin_us):.1f}", "cy": str(top + _middle(at)), "r": "5", "fill": _INK}
        dot = Xml.SubElement(root, "circle", place)
        Xml.SubElement(dot, "title").text = _safe(f"rank {delay.rank} {delay.operator}: {takes(delay)}")


def _middle(row: int) -> int:
    return _ROW * row + _BAR // 2


def _axis(root: Xml.Element, result: TimelineResult, bottom: int) -> None:
    for tick in range(_TICKS + 1):
        time = result.begin_us + (result.end_us - result.begin_us) * tick / _TICKS
        _rect(root, (_x(result, time), _TOP - 8), (0.5, bottom - _TOP + 8), "#d5d9de")
        _text(root, _x(result, time), _TOP - 12, duration(time), anchor="middle", colour=_DIM)
    _text(root, _LEFT + WIDTH + 40, _TOP - 12, "awaited", colour=_DIM)


def _legend(root: Xml.Element, result: TimelineResult, y: int) -> None:
    x = _LEFT
    for kind in legend(result):
        _rect(root, (x, y - 9), (12, 10), _COLOURS[kind])
        _text(root, x + 16, y, WORDS[kind], colour=_DIM)
        x += 110
    _text(root, x, y, "thin mark: arrives, thick: last; dashed: blame path from the dot", colour=_DIM)


def _x(result: TimelineResult, time_us: float) -> float:
    share = (time_us - result.begin_us) / max(result.end_us - result.begin_us, 1e-9)
    return _LEFT + WIDTH * min(max(share, 0.0), 1.0)


def _rect(root: Xml.Element, place: tuple[float, float], size: tuple[float, float], colour: str) -> Xml.Element:
    """Draw a rectangle at `place` (x, y) with `size` (width, height)."""
    names = ("x", "y", "width", "height")
    said = {name: f"{value:.1f}" for name, value in zip(names, (*place, *size), strict=True)}
    return Xml.SubElement(root, "rect", {**said, "fill": colour})


def _text(
    root: Xml.Element, x: float, y: float, text: str, *, size: int = 11, anchor: str = "start", colour: str = _INK
) -> None:
    place = {"x": f"{x:.1f}", "y": f"{y:.1f}", "font-size": str(size), "text-anchor": anchor, "fill": colour}
    Xml.SubElement(root, "text", place).text = _safe(text)


def _safe(text: str) -> str:
    """Return text without control characters and the two characters that XML 1.0 cannot express."""
    return clean(text).replace("\ufffe", "").replace("\uffff", "")


VIEW = View[TimelineResult, TimelineRow](
    main="rows",
    columns=COLUMNS,
    headline=timeline_headline,
    body=_body,
    records=(("rows", "row"), ("collectives", "collective"), ("path", "stop"), ("under", "operation")),
    picture=svg,
)
