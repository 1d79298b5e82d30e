"""Two runs compared, for people: what changed, on which ranks, and its effect on the step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kair_engine.results.compare import CompareResult, PooledChange, SubgraphChange
from kair_engine.results.localize import OperatorChange
from kair_tui.render.answer import DIM, Column
from kair_tui.render.changes import left_in_words, operator_in_words, pool_in_words, summary, whom
from kair_tui.render.units import (
    duration,
    gain,
    mean_step,
    or_dash,
    p_value,
    percent,
    plural,
    ranks_in_words,
    ratio,
    signed_duration,
)
from kair_tui.render.view import View

if TYPE_CHECKING:
    from kair_tui.render.page import Page


def _calls(row: OperatorChange) -> str:
    return f"{row.base_calls:g} → {row.new_calls:g}" if row.base_calls != row.new_calls else f"{row.new_calls:g}"


COLUMNS = (
    Column[OperatorChange]("change", "change", lambda row: row.change, align="left", weight=6),
    Column[OperatorChange](
        "operator",
        "operator",
        operator_in_words,
        align="left",
        weight=9,
        full=lambda row: row.operator or row.kind,
    ),
    Column[OperatorChange]("was", "was", lambda row: row.was or "–", align="left", weight=3),
    Column[OperatorChange]("ranks", "on", whom, align="left", weight=8),
    Column[OperatorChange]("base_us", "before", lambda row: duration(row.base_us), weight=5),
    Column[OperatorChange]("new_us", "now", lambda row: duration(row.new_us), weight=5),
    Column[OperatorChange]("ratio", "", lambda row: or_dash(row.ratio, ratio), weight=7),
    Column[OperatorChange]("step_us", "step", lambda row: or_dash(row.step_us, signed_duration), weight=8),
    Column[OperatorChange]("share_of_step", "of step", lambda row: or_dash(row.share_of_step, gain), weight=7),
    Column[OperatorChange]("p_value", "p", lambda row: p_value(row.p_value), weight=4),
    Column[OperatorChange]("new_calls", "calls", _calls, detail=True),
    Column[OperatorChange]("kind", "kind", lambda row: row.kind, align="left", detail=True),
)

_POOLS = (
    Column[PooledChange]("kind", "together", pool_in_words, align="left", weight=9),
    Column[PooledChange]("base_us", "before", lambda row: duration(row.base_us), weight=5),
    Column[PooledChange]("new_us", "now", lambda row: duration(row.new_us), weight=5),
    Column[PooledChange]("ratio", "", lambda row: or_dash(row.ratio, ratio), weight=7),
    Column[PooledChange]("step_us", "step", lambda row: or_dash(row.step_us, signed_duration), weight=8),
    Column[PooledChange]("share_of_step", "of step", lambda row: or_dash(row.share_of_step, gain), weight=7),
    Column[PooledChange]("p_value", "p", lambda row: p_value(row.p_value), weight=4),
)

_SUBGRAPHS = (
    Column[SubgraphChange]("subgraph", "compute of", lambda row: row.subgraph, align="left", weight=9),
    Column[SubgraphChange]("base_us", "before", lambda row: duration(row.base_us), weight=8),
    Column[SubgraphChange]("new_us", "now", lambda row: duration(row.new_us), weight=8),
    Column[SubgraphChange]("ratio", "", lambda row: or_dash(row.ratio, ratio), weight=7),
    Column[SubgraphChange]("p_value", "p", lambda row: p_value(row.p_value), weight=5),
)


def _body(result: CompareResult, page: Page) -> None:
    if result.changes:
        page.table(COLUMNS, result.changes, limit=12)
        page.line()
    if result.pools:
        page.table(_POOLS, result.pools)
        page.line()
    if result.changes or result.pools:
        page.line("before, now: own time a step; step: what the change adds to the job's step, by replay", DIM)
        page.line()
    changed = [row for row in result.subgraphs if row.changed or page.options.wide]
    if changed:
        page.table(_SUBGRAPHS, changed)
        page.line()
    for flagged in (True, False):
        if ranks := tuple(sorted(row.rank for row in result.standing if row.new_flagged == flagged)):
            verb, its = ("stands", "its") if len(ranks) == 1 else ("stand", "their")
            now = f"{verb} out from {its} peers now" if flagged else f"no longer {verb} out from {its} peers"
            page.bullet(f"{ranks_in_words(ranks)} {now} [kair localize {result.new.name}]")
    if result.explained_us is not None and (result.changes or result.pools):
        page.bullet(
            f"the step changed by {signed_duration(result.step_change_us)}; by replay the changes above explain "
            f"{signed_duration(result.explained_us)}; {left_in_words(result)}"
        )
    for run in (result.base, result.new):
        if run.bar is not None:
            page.line(f"{run.name}: where the step goes")
            page.step_bar(run.bar)
            page.line()
    for title, run in (("base", result.base), ("new", result.new)):
        page.fact(
            title,
            f"{run.name}: {mean_step(run.step_time_us, run.steps)}, "
            f"{len(run.ranks)} of {plural(run.world_size, 'rank')}",
        )
    page.fact(
        "step time",
        f"{percent(result.step_change_share)} longer, p {p_value(result.step_p_value)}"
        if result.step_change_us >= 0
        else f"{percent(-result.step_change_share)} shorter, p {p_value(result.step_p_value)}",
    )


VIEW = View[CompareResult, OperatorChange](
    main="changes",
    columns=COLUMNS,
    headline=summary,
    body=_body,
    records=(
        ("changes", "change"),
        ("pools", "pool"),
        ("subgraphs", "subgraph"),
        ("standing", "standing"),
        ("operators", "operator"),
    ),
)
