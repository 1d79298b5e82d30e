"""The time-frequency view for people: a heat row per rank, and the regions in which a rank fell behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from kair_engine.results.views import DegradedRegion, FrequencyResult, RankCounts
from kair_tui.render.answer import ALARM, DIM, Cell, Column, Styled
from kair_tui.render.drawing import heat_row, resampled
from kair_tui.render.text import short_name
from kair_tui.render.units import count, duration, one_decimal, plural, spans
from kair_tui.render.view import View

if TYPE_CHECKING:
    from kair_tui.render.page import Page

RANKS_SHOWN = 64
REGIONS_SHOWN = 10
GLYPHS = 100
_MARGIN = 20


def _headline(result: FrequencyResult) -> str:
    name = "every operation" if result.operator == "*" else short_name(result.operator)
    ranks_counted = plural(len(result.counts), "rank")
    scope = f"{plural(result.windows, 'window')} of {duration(result.window_us)} on {ranks_counted}"
    if not result.regions:
        return f"{name}: no rank runs it less often than its peers in {scope}"
    ranks = sorted({region.rank for region in result.regions})
    noun, verb = ("rank", "runs") if len(ranks) == 1 else ("ranks", "run")
    missing = sum(region.state == "missing" for region in result.regions)
    return (
        f"{name}: {noun} {spans(tuple(ranks))} {verb} it less often than the peers in "
        f"{plural(len(result.regions), 'region')}, not at all in {count(missing)}{_meanwhile(result)} ({scope})"
    )


def _meanwhile(result: FrequencyResult) -> str:
    """Return what ran in most regions instead, as a clause; empty if that is no single operator."""
    (operator, regions), *_ = Counter(region.operator for region in result.regions).most_common()
    if operator is None or 2 * regions <= len(result.regions):
        return ""
    return f", meanwhile in {short_name(operator)}"


COLUMNS = (
    Column[RankCounts]("rank", "rank", lambda row: str(row.rank), weight=9),
    Column[RankCounts]("counts", "operations", lambda row: count(sum(row.counts)), weight=9),
)


def _state(row: DegradedRegion) -> Cell:
    return Styled("▲ missing", ALARM) if row.state == "missing" else "degraded"


_REGIONS = (
    Column[DegradedRegion]("rank", "rank", lambda row: str(row.rank), weight=9),
    Column[DegradedRegion]("start_us", "start", lambda row: duration(row.start_us), weight=8),
    Column[DegradedRegion]("duration_us", "length", lambda row: duration(row.duration_us), weight=8),
    Column[DegradedRegion]("count", "count", lambda row: count(row.count), weight=8),
    Column[DegradedRegion]("expected", "expected", lambda row: one_decimal(row.expected), weight=8),
    Column[DegradedRegion]("state", "state", _state, align="left", weight=8),
    Column[DegradedRegion](
        "operator", "meanwhile in", lambda row: short_name(row.operator or ""), align="left", weight=7
    ),
)


def _body(result: FrequencyResult, page: Page) -> None:
    page.table(_with_heat(result, page), _suspects_first(result), limit=RANKS_SHOWN)
    if result.regions:
        page.line()
        page.table(_REGIONS, result.regions, limit=REGIONS_SHOWN)
    page.line()
    page.line(
        f"time runs to the right, {duration(result.window_us * result.windows)} in all; darker is more often",
        DIM,
    )


def _with_heat(result: FrequencyResult, page: Page) -> tuple[Column[RankCounts], ...]:
    width = min(GLYPHS, max(page.options.width - _MARGIN, 10))
    peak = max((max(resampled(row.counts, width), default=0.0) for row in result.counts), default=0.0)
    draw: Callable[[RankCounts], str] = lambda row: heat_row(  # noqa: E731
        row.counts, peak, width, ascii_only=page.options.ascii_only
    )
    return (COLUMNS[0], Column[RankCounts]("counts", "how often", draw, align="left", weight=8), COLUMNS[1])


def _suspects_first(result: FrequencyResult) -> tuple[RankCounts, ...]:
    """Return ranks in order, or by suspicion if not all are shown."""
    if len(result.counts) <= RANKS_SHOWN:
        return result.counts
    degraded = {window.rank for window in result.degraded}
    return tuple(sorted(result.counts, key=lambda row: (row.rank not in degraded, row.rank)))


VIEW = View[FrequencyResult, RankCounts](
    main="counts",
    columns=COLUMNS,
    headline=_headline,
    body=_body,
    records=(("counts", "counts"), ("degraded", "degraded"), ("regions", "regions")),
)
