"""The timeline for people: a row per rank over time, what it is around, and what runs under the cursor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kair_engine.results.timeline import TimelineCollective, TimelineOperation, TimelineResult, TimelineRow
from kair_tui.render.column import DIM, Column
from kair_tui.render.drawing.timeline import Ink, axis, draw_rows, legend, signs
from kair_tui.render.text import short_name
from kair_tui.render.units import count, duration
from kair_tui.render.view import View
from kair_tui.render.words.timeline import (
    WORDS,
    clock_in_words,
    label,
    rows_in_words,
    takes,
    timeline_headline,
    view_in_words,
)

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
    page.pieces([(" " * before + axis(result, columns), DIM), (f"{'imposed':>{_FIGURE}}", DIM)])
    for line in draw_rows(result, columns, drawn_with):
        row = result.rows[line.rows[0]]
        cells = [(run.text, _style(run.front, run.back)) for run in line.runs]
        figure = duration(row.imposed_us) if row.lane is None and row.imposed_us else ""
        page.pieces(
            [(f"{labels[line.rows[0]]:<{before}}", DIM if row.lane else ""), *cells, (f"{figure:>{_FIGURE}}", "")]
        )
    page.line()
    marks = drawn_with.marks
    told = "   ".join(f"{drawn_with.kinds[kind]} {WORDS[kind]}" for kind in legend(result))
    page.line(
        f"{told}   {marks['arrival']} arrives {marks['last']} last   {marks['path']} blame path from {marks['delay']}"
    )
    page.line("imposed: what others, summed, waited in view for the rank that is drawn", DIM)
    if (clock := clock_in_words(result)) is not None:
        page.line(clock, DIM)
    page.line()
    page.table(UNDER, result.under)
    if result.collectives:
        page.line()
        longest = sorted(result.collectives, key=lambda one: -one.waited_us)
        page.table(_COLLECTIVES, longest, limit=_COLLECTIVES_SHOWN)


def _style(front: Ink, back: Ink) -> str:
    style = _STYLES.get(front, "")
    behind = _STYLES.get(back, "")
    # A style of its own, as "dim", is none for the background.
    return f"{style} on {behind}" if behind and behind not in ("dim", "bold") else style


def _picture(result: TimelineResult) -> str:
    from kair_tui.render.drawing.timeline_svg import svg  # no other format needs it

    return svg(result)


VIEW = View[TimelineResult, TimelineRow](
    main="rows",
    columns=COLUMNS,
    headline=timeline_headline,
    body=_body,
    records=(("rows", "row"), ("collectives", "collective"), ("path", "stop"), ("under", "operation")),
    picture=_picture,
)
