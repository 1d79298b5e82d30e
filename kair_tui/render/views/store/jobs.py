"""The store's jobs for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kair_engine.results.runs.store import JobsResult, ListedJob
from kair_tui.render.column import Column
from kair_tui.render.units import count, plural
from kair_tui.render.view import View
from kair_tui.render.words.costs import cause_text, hours_text, money_text, share_text, slowdown_text

if TYPE_CHECKING:
    from kair_tui.render.page import Page


def _headline(result: JobsResult) -> str:
    if result.removed:
        return f"{', '.join(result.removed)} {'is' if len(result.removed) == 1 else 'are'} no longer in the store"
    if not result.jobs and result.warnings:
        return f"no readable job in the store {result.store} ({count(len(result.warnings))} left out)"
    if not result.jobs:
        return f"no job in the store {result.store} (kair import FOLDER --job NAME puts one there)"
    used = f"; in use: {result.current}" if result.current else ""
    return f"{plural(len(result.jobs), 'job')} in the store {result.store}{used}"


COLUMNS = (
    Column[ListedJob]("name", "job", lambda row: row.name, align="left", weight=9),
    Column[ListedJob]("in_use", "", lambda row: "in use" if row.in_use else "", align="left", weight=8),
    Column[ListedJob]("last_summary", "last verdict", lambda row: row.last_summary or "–", align="left", weight=5),
    Column[ListedJob]("slowdown", "S", lambda row: slowdown_text(row.slowdown), weight=7),
    Column[ListedJob]("waste", "waste", lambda row: share_text(row.waste), weight=6),
    Column[ListedJob]("gpu_hours_per_day", "GPU-hours/day", lambda row: hours_text(row.gpu_hours_per_day), weight=6),
    Column[ListedJob]("cost_per_day", "cost/day", lambda row: money_text(row.cost_per_day), weight=6),
    Column[ListedJob]("cause", "cause", lambda row: cause_text(row.cause), align="left", weight=6),
    Column[ListedJob]("ranks", "ranks", lambda row: f"{row.ranks}/{row.world_size}", weight=7),
    Column[ListedJob]("steps", "steps", lambda row: count(row.steps), weight=7),
    Column[ListedJob]("operations", "operations", lambda row: count(row.operations), weight=4),
    Column[ListedJob]("imported_at", "imported (UTC)", lambda row: minute(row.imported_at), align="left"),
    Column[ListedJob]("source", "source", lambda row: row.source, align="left", weight=3),
    Column[ListedJob]("last_verdict", "verdict", lambda row: row.last_verdict or "–", align="left", detail=True),
    Column[ListedJob](
        "triaged_at", "triaged (UTC)", lambda row: minute(row.triaged_at or "–"), align="left", detail=True
    ),
    Column[ListedJob]("path", "path", lambda row: row.path, align="left", detail=True),
)


def minute(moment: str) -> str:
    """A UTC time to the minute."""
    return moment[:16].replace("T", " ")


def _body(result: JobsResult, page: Page) -> None:
    if result.jobs:
        page.table(COLUMNS, result.jobs)


VIEW = View[JobsResult, ListedJob](
    main="jobs", columns=COLUMNS, headline=_headline, body=_body, records=(("jobs", "job"),)
)
