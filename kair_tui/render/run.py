"""Runbooks for machines: a row for each statement; people read the answers as they come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kair_tui.render.answer import Column
from kair_tui.render.units import duration, plural
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


_LISTED = (
    Column[Any]("name", "runbook", lambda row: row.name, align="left", weight=9),
    Column[Any]("is_bundled", "from", lambda row: "Kair" if row.is_bundled else "this folder", align="left", weight=9),
    Column[Any]("about", "what it answers", lambda row: row.about or "–", align="left", weight=5),
)


def _headline(result: Any) -> str:  # noqa: ANN401 - the shell's results stand above this room
    if result.runbooks:
        own = sum(not row.is_bundled for row in result.runbooks)
        return f"{plural(len(result.runbooks) - own, 'runbook')} that come with Kair, {own} in this folder"
    return f"{result.runbook}: {result.summary}"


def _body(result: Any, page: Page) -> None:  # noqa: ANN401
    if result.runbooks:
        page.table(_LISTED, result.runbooks)
    else:
        page.table(COLUMNS, result.statements)


VIEW = View[Any, Any](
    main="statements",
    columns=COLUMNS,
    headline=_headline,
    body=_body,
    records=(("runbooks", "runbook"), ("statements", "statement")),
)
