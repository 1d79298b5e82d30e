"""The store's baselines for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kair_engine.results.runs.baseline import BaselineResult, SavedBaseline
from kair_tui.render.column import Column
from kair_tui.render.units import count, duration, plural
from kair_tui.render.view import View
from kair_tui.render.views.store.jobs import minute

if TYPE_CHECKING:
    from kair_tui.render.page import Page


def _headline(result: BaselineResult) -> str:
    if result.action == "save":
        return f"baseline {result.name} is saved (kair baseline use {result.name} holds later runs against it)"
    if result.action == "use":
        used = result.name
        return f"kair localize and kair triage hold runs against {used}" if used else "no baseline is in use"
    if result.action == "rm":
        return f"baseline {result.name} is removed"
    used = f"; in use: {result.current}" if result.current else ""
    return f"{plural(len(result.baselines), 'baseline')} in the store {result.store}{used}"


COLUMNS = (
    Column[SavedBaseline]("name", "baseline", lambda row: row.name, align="left", weight=9),
    Column[SavedBaseline]("in_use", "", lambda row: "in use" if row.in_use else "", align="left", weight=8),
    Column[SavedBaseline]("step_time_us", "step", lambda row: duration(row.step_time_us), weight=8),
    Column[SavedBaseline]("world_size", "ranks", lambda row: count(row.world_size), weight=7),
    Column[SavedBaseline]("steps", "steps", lambda row: count(row.steps), weight=7),
    Column[SavedBaseline]("operators", "operators", lambda row: count(row.operators), weight=4),
    Column[SavedBaseline]("job", "of job", lambda row: row.job, align="left", weight=6),
    Column[SavedBaseline]("saved_at", "saved (UTC)", lambda row: minute(row.saved_at), align="left"),
    Column[SavedBaseline]("source", "source", lambda row: row.source, align="left", detail=True),
)


def _body(result: BaselineResult, page: Page) -> None:
    if result.baselines and result.action == "list":
        page.table(COLUMNS, result.baselines)


VIEW = View[BaselineResult, SavedBaseline](
    main="baselines", columns=COLUMNS, headline=_headline, body=_body, records=(("baselines", "baseline"),)
)
