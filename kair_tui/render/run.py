"""Runbooks for machines: a row for each statement; people read the answers as they come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kair_tui.render.answer import Column
from kair_tui.render.units import duration
from kair_tui.render.view import View

if TYPE_CHECKING:
    from kair_tui.render.page import Page

COLUMNS = (
    Column[Any]("line", "line", lambda row: str(row.line), weight=9),
    Column[Any]("statement", "statement", lambda row: row.statement, align="left", weight=9),
    Column[Any]("state", "state", lambda row: row.state.replace("_", " "), align="left", weight=9),
    Column[Any]("duration_us", "took", lambda row: "–" if row.duration_us is None else duration(row.duration_us)),
    Column[Any]("error", "error", lambda row: row.error or "", align="left"),
)


def _headline(result: Any) -> str:  # noqa: ANN401 - the shell's results stand above this room
    return f"{result.runbook}: {result.summary}"


def _body(result: Any, page: Page) -> None:  # noqa: ANN401
    page.table(COLUMNS, result.statements)


VIEW = View[Any, Any](
    main="statements",
    columns=COLUMNS,
    headline=_headline,
    body=_body,
    records=(("statements", "statement"),),
)
