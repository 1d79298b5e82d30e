"""Step times for people: one line per step; every step on every rank is for machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kair_engine.results.views import ScopeTime, StepsResult, StepSummary, StepTime
from kair_tui.render.answer import ALARM, Cell, Column, Styled
from kair_tui.render.delays import ON_DEVICES
from kair_tui.render.units import count, duration, mean_step, or_dash, plural, ratio, signed_duration, thinned
from kair_tui.render.view import View

if TYPE_CHECKING:
    from kair_tui.render.page import Page

STEPS_SHOWN = 50
SCOPES_SHOWN = 20
BAR = 20


def _slowest_rank(row: StepSummary) -> str:
    return "–" if row.slowest_rank < 0 else str(row.slowest_rank)


def _headline(result: StepsResult) -> str:
    complete = [row for row in result.summary if row.complete] or list(result.summary)
    if not complete:
        return "no step was recorded"
    ranks = f"{plural(len({row.rank for row in result.steps}), 'rank')}: " if result.steps else ""
    mean = mean_step(
        result.step_time_us, tuple(row.step for row in complete), sampled=all(row.own_us is None for row in complete)
    )
    device = f", {ON_DEVICES}" if result.timed_on == "device" else ""
    worst = max(complete, key=lambda row: row.max_us)
    on = "" if worst.slowest_rank < 0 else f" (rank {worst.slowest_rank})"
    return f"{ranks}{mean}{device}; the slowest is step {worst.step} with {duration(worst.max_us)}{on}"


COLUMNS = (
    Column[StepTime]("step", "step", lambda row: str(row.step), weight=9),
    Column[StepTime]("rank", "rank", lambda row: str(row.rank), weight=9),
    Column[StepTime]("begin_us", "begin", lambda row: duration(row.begin_us), weight=6),
    Column[StepTime]("duration_us", "duration", lambda row: duration(row.duration_us), weight=9),
    Column[StepTime]("host_us", "host", lambda row: or_dash(row.host_us, duration), weight=5),
    Column[StepTime]("own_us", "own time", lambda row: or_dash(row.own_us, duration), weight=5),
    Column[StepTime]("operations", "operations", lambda row: count(row.operations), weight=5),
    Column[StepTime]("complete", "", lambda row: "" if row.complete else "incomplete", align="left", weight=6),
)


def _slower(row: ScopeTime) -> Cell:
    if row.change_us is None or row.waits:
        return "waiting" if row.change_us is not None else ""
    return Styled("▲ longer", ALARM) if row.change_us > 0 else "shorter"


_SCOPES = (
    Column[ScopeTime]("scope", "scope", lambda row: row.scope, align="left", weight=9),
    Column[ScopeTime]("rank", "rank", lambda row: "all" if row.rank is None else str(row.rank), weight=9),
    Column[ScopeTime]("median_us", "median", lambda row: duration(row.median_us), weight=8),
    Column[ScopeTime]("peers_us", "peers", lambda row: or_dash(row.peers_us, duration), weight=7),
    Column[ScopeTime]("since_step", "since step", lambda row: or_dash(row.since_step), weight=9),
    Column[ScopeTime]("before_us", "before", lambda row: or_dash(row.before_us, duration), weight=5),
    Column[ScopeTime]("after_us", "after", lambda row: or_dash(row.after_us, duration), weight=5),
    Column[ScopeTime]("change_us", "change vs peers", lambda row: or_dash(row.change_us, signed_duration), weight=8),
    Column[ScopeTime]("waits", "", _slower, align="left", weight=8),
)


def _in_words(scopes: Sequence[ScopeTime]) -> str:
    """Return the most important change."""
    first = scopes[0]
    if first.change_us is None or first.waits or first.change_us < 0:
        return "no rank became slower than before, compared with the others, in any part of the step"
    who = "all ranks" if first.rank is None else f"rank {first.rank}"
    than = "than before" if first.peers_us is None else "than before, compared with its peers"
    take = "take" if first.rank is None else "takes"
    where = (
        f"by {'themselves' if first.rank is None else 'itself'} (self)"
        if first.scope == "self"
        else f"in {first.scope}"
    )
    return f"since step {first.since_step} {who} {take} {duration(first.change_us)} longer {where} {than}"


def _body(result: StepsResult, page: Page) -> None:
    peak = max((row.max_us for row in result.summary), default=0.0)
    columns: tuple[Column[StepSummary], ...] = (
        Column[StepSummary]("step", "step", lambda row: str(row.step), weight=9),
        Column[StepSummary]("ranks", "ranks", lambda row: count(row.ranks), weight=4),
        Column[StepSummary]("median_us", "median", lambda row: duration(row.median_us), weight=8),
        Column[StepSummary]("max_us", "slowest", lambda row: duration(row.max_us), weight=9),
        Column[StepSummary]("slowest_rank", "on rank", _slowest_rank, weight=8),
        Column[StepSummary]("", "spread", _spread, weight=5),
        Column[StepSummary](
            "", "", lambda row: "█" * round(BAR * row.max_us / peak) if peak > 0 else "", align="left", weight=3
        ),
        Column[StepSummary]("complete", "", _mark, align="left", weight=7),
    )
    shown = result.summary
    if result.summary and result.summary[0].own_us is not None:
        columns = (*(one for one in columns if one.title), *_OWN)
        shown = shown if page.options.wide else shown[-STEPS_SHOWN:]
        if len(shown) < len(result.summary):
            page.line(f"the last {count(len(shown))} of {plural(len(result.summary), 'step')}")
    page.table(columns, shown, limit=STEPS_SHOWN)
    if (short := thinned(result.parts_every)) is not None:
        page.line()
        page.line(short)
    if result.scopes:
        page.line()
        if len(result.attempts) > 1:
            page.line(f"in attempt {result.attempt} of {result.attempts[-1].number}:")
        page.line(_in_words(result.scopes))
        page.table(_SCOPES, result.scopes, limit=len(result.scopes) if page.options.wide else SCOPES_SHOWN)
    if page.options.wide:
        page.line()
        known = {"host_us": result.timed_on != "host", "own_us": any(row.own_us is not None for row in result.steps)}
        page.table([column for column in COLUMNS if known.get(column.key, True)], result.steps)


def _mark(row: StepSummary) -> Cell:
    if not row.complete:
        return "incomplete"
    return Styled("▲ slow", ALARM) if row.slow else ""


_OWN = (
    Column[StepSummary]("own_us", "longest own time", lambda row: or_dash(row.own_us, duration), weight=9),
    Column[StepSummary]("own_rank", "on rank", lambda row: str(row.own_rank), weight=8),
    Column[StepSummary]("", "", _mark, align="left", weight=7),
)
"""For recorded steps: ranks that wait for one another take equally long, but their own times differ."""


def _spread(row: StepSummary) -> str:
    return ratio(row.max_us / row.median_us) if row.median_us > 0 else "–"


VIEW = View[StepsResult, StepTime](
    main="steps",
    columns=COLUMNS,
    headline=_headline,
    body=_body,
    records=(("summary", "step"), ("steps", "step_on_rank"), ("scopes", "scope_on_rank")),
)
