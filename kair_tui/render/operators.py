"""The breakdown by operator for people: types, operators, and how each differs between ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kair_engine.results.views import OperatorsResult, OperatorTime, TypeTime
from kair_tui.render.answer import DIM, Column
from kair_tui.render.drawing import heat_row
from kair_tui.render.text import short_name, spaced
from kair_tui.render.units import count, duration, mean_step, one_decimal, or_dash, percent, plural, size
from kair_tui.render.view import View

if TYPE_CHECKING:
    from kair_tui.render.page import Page

_STRIP: Final = 24
IDLE: Final = "(idle: nothing to do)"
"""Replaces an operator's name."""


def type_name(row: TypeTime | OperatorTime) -> str:
    """Return a type's name."""
    return spaced(row.type)


def operator_text(row: OperatorTime) -> str:
    """Return its short name."""
    return IDLE if row.operator is None else short_name(row.operator)


def most_text(row: TypeTime | OperatorTime) -> str:
    """Return where most is spent on it, compared with the usual: `6.10 ms on rank 105, median 4.10 ms`."""
    return f"{duration(row.max_us)} on rank {row.max_rank}, median {duration(row.median_us)}"


def operators_headline(result: OperatorsResult) -> str:
    """Return the types that take most of the time."""
    if not result.by_type:
        return "no operation took any time in the chosen steps"
    largest = ", ".join(f"{type_name(row)} {percent(row.share)}" for row in result.by_type[:3])
    ranks, steps = plural(len(result.ranks), "rank"), plural(len(result.steps), "step")
    return f"of the {duration(result.ranks_time_us)} that {ranks} took for {steps}: {largest}"


TYPE_COLUMNS = (
    Column[TypeTime]("type", "type", type_name, align="left", weight=9),
    Column[TypeTime]("", "time", lambda row: duration(row.total_us - row.background_us), weight=6),
    Column[TypeTime]("share", "share", lambda row: percent(row.share), weight=9),
    Column[TypeTime]("min_us", "least", lambda row: duration(row.min_us), weight=5),
    Column[TypeTime]("median_us", "median rank", lambda row: duration(row.median_us), weight=8),
    Column[TypeTime]("max_us", "most", lambda row: duration(row.max_us), weight=8),
    Column[TypeTime]("max_rank", "on rank", lambda row: str(row.max_rank), weight=8),
    Column[TypeTime]("background_us", "in background", lambda row: duration(row.background_us), weight=7),
)

COLUMNS = (
    Column[OperatorTime](
        "operator", "operator", operator_text, align="left", weight=9, full=lambda row: row.operator or IDLE
    ),
    Column[OperatorTime]("type", "type", type_name, align="left", weight=9),
    Column[OperatorTime]("calls", "calls", lambda row: one_decimal(row.calls) if row.calls else "–", weight=4),
    Column[OperatorTime]("total_us", "total", lambda row: duration(row.total_us), weight=5),
    Column[OperatorTime]("share", "share", lambda row: percent(row.share), weight=9),
    Column[OperatorTime]("ranks", "ranks", lambda row: count(row.ranks), weight=3),
    Column[OperatorTime]("min_us", "least", lambda row: duration(row.min_us), detail=True),
    Column[OperatorTime]("median_us", "median rank", lambda row: duration(row.median_us), weight=8),
    Column[OperatorTime]("max_us", "most", lambda row: duration(row.max_us), weight=8),
    Column[OperatorTime]("max_rank", "on rank", lambda row: str(row.max_rank), weight=8),
    Column[OperatorTime](
        "input_bytes", "input", lambda row: or_dash(row.input_bytes, lambda given: size(round(given))), detail=True
    ),
)


def _body(result: OperatorsResult, page: Page) -> None:
    page.table(TYPE_COLUMNS, result.by_type)
    page.line()
    page.table(_columns(result, page), result.operators)
    if not result.operators:
        page.line("no such operator", DIM)
    unlisted = result.total_operators - len(result.operators)
    if unlisted > 0:
        page.line(f"… and {count(unlisted)} more, {duration(result.unlisted_us)} in all (--limit)", DIM)
    page.line()
    page.line(f"least, median and most: per step, of a rank; {mean_step(result.step_time_us, result.steps)}", DIM)
    if any(duration(row.background_us) != duration(0.0) for row in result.by_type):
        page.line(
            "types: each moment of a rank counts once; in the background is what runs or waits meanwhile, which "
            "operators have in their total",
            DIM,
        )


def _columns(result: OperatorsResult, page: Page) -> tuple[Column[OperatorTime], ...]:
    """Return the columns, with a strip of all ranks if requested."""
    if not any(row.by_rank_us for row in result.operators):
        return COLUMNS

    def strip(row: OperatorTime) -> str:
        return heat_row(row.by_rank_us, row.max_us, _STRIP, ascii_only=page.options.ascii_only, together=max)

    return (*COLUMNS, Column[OperatorTime]("", "first to last rank", strip, align="left", weight=8))


VIEW = View[OperatorsResult, OperatorTime](
    main="operators",
    columns=COLUMNS,
    headline=operators_headline,
    body=_body,
    records=(("by_type", "type"), ("operators", "operator")),
)
