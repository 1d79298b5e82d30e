"""The store for people: jobs, the one in use, imports, baselines, the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kair_engine.results.compare import BaselineResult, SavedBaseline
from kair_engine.results.store import CacheResult, ImportResult, JobsResult, ListedJob, UseResult
from kair_tui.render.answer import Column
from kair_tui.render.units import count, duration, plural, size
from kair_tui.render.verdict import cause_text, hours_text, money_text, s_of_job, share_text
from kair_tui.render.view import View

if TYPE_CHECKING:
    from kair_tui.render.page import Page


def _jobs_headline(result: JobsResult) -> str:
    if result.removed:
        return f"{', '.join(result.removed)} {'is' if len(result.removed) == 1 else 'are'} no longer in the store"
    if not result.jobs and result.warnings:
        return f"no readable job in the store {result.store} ({count(len(result.warnings))} left out)"
    if not result.jobs:
        return f"no job in the store {result.store} (kair import FOLDER --job NAME puts one there)"
    used = f"; in use: {result.current}" if result.current else ""
    return f"{plural(len(result.jobs), 'job')} in the store {result.store}{used}"


JOB_COLUMNS = (
    Column[ListedJob]("name", "job", lambda row: row.name, align="left", weight=9),
    Column[ListedJob]("in_use", "", lambda row: "in use" if row.in_use else "", align="left", weight=8),
    Column[ListedJob]("last_summary", "last verdict", lambda row: row.last_summary or "–", align="left", weight=9),
    Column[ListedJob]("slowdown", "S", lambda row: s_of_job(row.slowdown, row.last_verdict), detail=True),
    Column[ListedJob]("waste", "waste", lambda row: share_text(row.waste), weight=6),
    Column[ListedJob]("gpu_hours_per_day", "GPU-hours/day", lambda row: hours_text(row.gpu_hours_per_day), weight=6),
    Column[ListedJob]("cost_per_day", "cost/day", money_text, weight=6),
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
    """Return a UTC time to the minute."""
    return moment[:16].replace("T", " ")


def _jobs_body(result: JobsResult, page: Page) -> None:
    if result.jobs:
        page.table(JOB_COLUMNS, result.jobs)


JOBS = View[JobsResult, ListedJob](
    main="jobs", columns=JOB_COLUMNS, headline=_jobs_headline, body=_jobs_body, records=(("jobs", "job"),)
)


def _baselines_headline(result: BaselineResult) -> str:
    if result.action == "save":
        return f"baseline {result.name} is saved (kair baseline use {result.name} compares later runs with it)"
    if result.action == "use":
        used = result.name
        return f"kair localize and kair triage compare runs with {used}" if used else "no baseline is in use"
    if result.action == "rm":
        return f"baseline {result.name} is removed"
    used = f"; in use: {result.current}" if result.current else ""
    return f"{plural(len(result.baselines), 'baseline')} in the store {result.store}{used}"


BASELINE_COLUMNS = (
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


def _baselines_body(result: BaselineResult, page: Page) -> None:
    if result.baselines and result.action == "list":
        page.table(BASELINE_COLUMNS, result.baselines)


BASELINES = View[BaselineResult, SavedBaseline](
    main="baselines",
    columns=BASELINE_COLUMNS,
    headline=_baselines_headline,
    body=_baselines_body,
    records=(("baselines", "baseline"),),
)


def _cache_headline(result: CacheResult) -> str:
    held = f"{plural(result.entries, 'parsed file')}, {size(result.bytes)} of at most {size(result.limit_bytes)}"
    if result.removed_entries:
        held = f"{plural(result.removed_entries, 'parsed file')}, {size(result.removed_bytes)}, removed"
    return f"{held}; the cache is {result.folder}"


CACHE = View[CacheResult, CacheResult](
    main=None, columns=(), headline=_cache_headline, body=lambda _result, _page: None
)


def _import_headline(result: ImportResult) -> str:
    return (
        f"{result.name} is in the store: {plural(len(result.ranks), 'rank')}, "
        f"{plural(len(result.steps), 'step')}, {plural(result.operations, 'operation')} "
        f"(kair triage {result.name} analyses it)"
    )


IMPORTED = View[ImportResult, ImportResult](
    main=None, columns=(), headline=_import_headline, body=lambda _result, _page: None
)


USED = View[UseResult, UseResult](
    main=None,
    columns=(),
    headline=lambda result: f"{result.name} is the job that commands take when none is named",
    body=lambda _result, _page: None,
)
