"""The fleet for people: shares, S, groups by size, week and cause, recurring hosts, and the costliest jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kair_engine.causes import CAUSES
from kair_engine.results.store import SLOWED, FleetFigures, FleetGroup, FleetHost, FleetJob, FleetResult
from kair_engine.results.whatif import ERROR_GATE
from kair_tui.render.answer import ALARM, DIM, Column, Styled
from kair_tui.render.bar import in_one_line
from kair_tui.render.drawing import draw_shares
from kair_tui.render.units import (
    and_more,
    count,
    money,
    one_decimal,
    p_value,
    plural,
    range_in_percent,
    ranks_in_words,
    ratio,
    whole_percent,
)
from kair_tui.render.verdict import (
    cause_text,
    hours_text,
    money_text,
    s_of_job,
    share_text,
    slowdown_text,
    verdict_in_words,
)
from kair_tui.render.view import View

if TYPE_CHECKING:
    from kair_tui.render.page import Page


def fleet_headline(result: FleetResult) -> str:
    """Return how often stragglers occur, and their cost."""
    if not result.jobs:
        return f"no job of the store {result.store} could be priced"
    counts = f"{result.with_straggler} of {plural(len(result.jobs), 'job')} with a straggler"
    price = "" if result.cost_per_day is None else f", {money(result.cost_per_day, result.currency)}"
    return (
        f"{counts}; fixing what was found saves {share_text(result.waste)} of all GPU time: "
        f"{one_decimal(result.gpu_hours_per_day)} GPU-hours{price} a day"
    )


def slow_text(figures: FleetFigures) -> str:
    """Return the share of slow jobs, and its range: `43 % (24 to 63)`."""
    if figures.slow_share is None:
        return "–"
    return whole_percent(figures.slow_share) + range_in_percent(figures.slow_share_least, figures.slow_share_most)


def waste_text(figures: FleetFigures) -> str:
    """Return the share of wasted GPU time, and its range: `18.1 % (13 to 22)`."""
    return share_text(figures.waste) + range_in_percent(figures.waste_least, figures.waste_most)


def shares_in_words(result: FleetResult) -> str:
    """Return the shares of slow jobs and of wasted time, with 95 % ranges."""
    return (
        f"jobs slowed by {SLOW_BY} or more: {slow_text(result)}; GPU time wasted: {waste_text(result)}; ranges of 95 %"
    )


def spread_in_words(result: FleetResult) -> str:
    """Return the distribution of S in three figures, and the number of jobs left out."""
    off = f"with a replay error above {whole_percent(ERROR_GATE)}"
    left_out = f"; {plural(result.inexact, 'job')} left out, {off}" if result.inexact else ""
    if result.median_slowdown is None or result.slowdown_90 is None or result.worst_slowdown is None:
        return f"the slowdown S of no job is known{left_out}"
    noise = sum(job.within_noise and job.slowdown is not None for job in result.jobs)
    within_noise = f"; 1 for {plural(noise, 'job')} without a straggler, whose S is noise" if noise else ""
    if result.replayed == 1:
        return f"slowdown S of 1 job: {ratio(result.worst_slowdown)}{within_noise}{left_out}"
    half, most, worst = map(ratio, (result.median_slowdown, result.slowdown_90, result.worst_slowdown))
    return (
        f"slowdown S of {plural(result.replayed, 'job')}, compared with a job without stragglers: half have {half} or "
        f"less, nine of ten {most} or less, the worst {worst}{within_noise}{left_out}"
    )


def _group(row: FleetGroup) -> str:
    if row.by == "cause":
        return "nothing found" if row.group == "none" else cause_text(row.group)
    return f"{row.group} ranks" if row.by == "size" else row.group


def who_is_accused(job: FleetJob) -> str:
    """Return the job's culprits, or a dash."""
    if not job.accused_ranks:
        return "–"
    hosts = f" on {', '.join(job.accused_hosts[:3])}" if job.accused_hosts else ""
    return f"{ranks_in_words(job.accused_ranks)}{hosts}{and_more(len(job.accused_hosts) - 3)}"


def _hangs_alone(job: FleetJob) -> bool:
    return job.cause is not None and CAUSES[job.cause].stops_job


def _if_priced(show: Callable[[FleetJob], str]) -> Callable[[FleetJob], str]:
    """Return a column's text, with a dash for jobs whose price is unknown."""
    return lambda job: show(job) if job.is_priced else "–"


def _cause(job: FleetJob) -> str:
    besides = ", and a hang" if job.hangs and not _hangs_alone(job) else ""
    return f"{cause_text(job.cause)}{besides}"


def _group_hours(row: FleetGroup) -> str:
    return "–" if row.waste is None else hours_text(row.gpu_hours_per_day)


SLOW_BY: Final = whole_percent(SLOWED - 1)
_SHOWN: Final = 10
_WIDEST, _HEIGHT, _MARGIN = 72, 8, 8
_LABELS: Final = {0: "100 %", _HEIGHT // 2: "50 %", _HEIGHT - 1: "0 %"}

COLUMNS = (
    Column[FleetJob]("name", "job", lambda row: row.name, align="left", weight=9),
    Column[FleetJob]("verdict", "verdict", lambda row: verdict_in_words(row.verdict), align="left", weight=5),
    Column[FleetJob]("slowdown", "S", lambda row: s_of_job(row.slowdown, row.verdict), detail=True),
    Column[FleetJob]("waste", "waste", _if_priced(lambda row: share_text(row.waste)), weight=7),
    Column[FleetJob](
        "gpu_hours_per_day", "GPU-hours/day", _if_priced(lambda row: hours_text(row.gpu_hours_per_day)), weight=8
    ),
    Column[FleetJob]("cost_per_day", "cost/day", _if_priced(money_text), weight=8),
    Column[FleetJob]("cause", "cause", _cause, align="left", weight=8),
    Column[FleetJob]("accused_ranks", "who", who_is_accused, align="left", weight=6),
    Column[FleetJob]("world_size", "ranks", lambda row: count(row.world_size), weight=4),
    Column[FleetJob]("week", "week", lambda row: row.week, align="left", weight=3),
    Column[FleetJob](
        "bar", "where the step goes", lambda row: "–" if row.bar is None else in_one_line(row.bar), detail=True
    ),
)

GROUP_COLUMNS = (
    Column[FleetGroup]("group", "", _group, align="left", weight=9),
    Column[FleetGroup]("jobs", "jobs", lambda row: count(row.jobs), weight=9),
    Column[FleetGroup]("with_straggler", "with straggler", lambda row: count(row.with_straggler), weight=8),
    Column[FleetGroup]("slow_share", f"slowed by {SLOW_BY}", slow_text, weight=8),
    Column[FleetGroup]("median_slowdown", "median S", lambda row: slowdown_text(row.median_slowdown), detail=True),
    Column[FleetGroup]("worst_slowdown", "worst S", lambda row: slowdown_text(row.worst_slowdown), detail=True),
    Column[FleetGroup]("waste", "waste", waste_text, weight=7),
    Column[FleetGroup]("gpu_hours_per_day", "GPU-hours/day", _group_hours, weight=6),
)

HOST_COLUMNS = (
    Column[FleetHost]("host", "host", lambda row: row.host, align="left", weight=9),
    Column[FleetHost]("accused", "accused in", lambda row: f"{count(row.accused)} of {count(row.jobs)}", weight=9),
    Column[FleetHost]("p_value", "p", lambda row: p_value(row.p_value), weight=7),
    Column[FleetHost](
        "recurs", "", lambda row: Styled("again and again", ALARM) if row.recurs else "", align="left", weight=8
    ),
    Column[FleetHost]("accused_in", "jobs", lambda row: ", ".join(row.accused_in), align="left", weight=5),
)


def accused_hosts(result: FleetResult) -> tuple[FleetHost, ...]:
    """Return the hosts that at least one job accuses."""
    return tuple(host for host in result.hosts if host.accused)


def _body(result: FleetResult, page: Page) -> None:
    if not result.jobs:
        return
    if result.bar is not None:
        page.line(f"where the steps of {_jobs_with_bar(result)} go", DIM)
        page.step_bar(result.bar)
        page.line()
    page.line(shares_in_words(result))
    _distribution(result, page)
    for by in ("size", "week", "cause"):
        page.table(GROUP_COLUMNS, [group for group in result.groups if group.by == by], limit=_SHOWN)
        page.line()
    if hosts := accused_hosts(result):
        page.table(HOST_COLUMNS, hosts, limit=_SHOWN)
        page.line(
            "p: how often chance alone would accuse some host in as many jobs; one job says nothing about a host", DIM
        )
        page.line()
    page.table(COLUMNS, result.jobs, limit=_SHOWN)
    for line in ledger_lines(result):
        page.line(line)


def _jobs_with_bar(result: FleetResult) -> str:
    """Return `all jobs`, or `3 of 4 jobs` if the steps of some were never sampled."""
    known = sum(job.bar is not None for job in result.jobs)
    return "all jobs" if known == len(result.jobs) else f"{count(known)} of {plural(len(result.jobs), 'job')}"


def ledger_lines(result: FleetResult) -> list[str]:
    """Return the outcome of predictions, and the units that are slow in job after job, a sentence each."""
    from kair_tui.render.ledger import came_in_words, record_in_words

    lines = [] if result.ledger is None else [f"ledger: {came_in_words(result.ledger)}"]
    return [*lines, *(f"record: {record_in_words(one)}" for one in result.records)]


def _distribution(result: FleetResult, page: Page) -> None:
    """Draw the share of jobs with S up to each value below it."""
    page.line(spread_in_words(result))
    page.line()
    if len(result.distribution) < 2:
        return
    width = max(min(_WIDEST, page.options.width - _MARGIN), 20)
    begin, end = min(1.0, result.distribution[0].slowdown), result.distribution[-1].slowdown
    steps = [(point.slowdown, point.share) for point in result.distribution]
    rows = draw_shares(steps, begin=begin, width=width, height=_HEIGHT, ascii_only=page.options.ascii_only)
    page.line("share of jobs with this S or less", DIM)
    for number, row in enumerate(rows):
        page.line(f"{_LABELS.get(number, ''):>5} {row.rstrip()}")
    first, last = ratio(begin), ratio(end)
    page.line(f"{first}{last:>{width - len(first)}}", indent=6)
    page.line()


VIEW = View[FleetResult, FleetJob](
    main="jobs",
    columns=COLUMNS,
    headline=fleet_headline,
    body=_body,
    records=(("jobs", "job"), ("groups", "group"), ("hosts", "host"), ("records", "record"), ("distribution", "share")),
)
