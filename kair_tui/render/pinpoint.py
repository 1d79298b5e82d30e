"""Stage 2 for people: one rank's outlying operations.

Outliers of one operator share a row, with their number.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kair_engine.results.pinpoint import Outlier, PinpointResult
from kair_tui.render.answer import DIM, Column
from kair_tui.render.text import short_name
from kair_tui.render.units import count, duration, or_dash, p_value, plural, ratio, score
from kair_tui.render.view import View

if TYPE_CHECKING:
    from kair_tui.render.page import Page


def _headline(result: PinpointResult) -> str:
    compared = f"{plural(result.tested, 'operation')} compared"
    if not result.outliers:
        return f"rank {result.rank} has no outlying operation ({compared})"
    worst = result.outliers[0]
    times = f", {_times(worst)} its peers'" if worst.expected_duration_us > 0 else ""
    return (
        f"rank {result.rank} has {plural(result.total_outliers, 'outlying operation')} ({compared}); "
        f"the most outlying is {short_name(worst.operator)} in step {worst.step}: "
        f"{duration(worst.duration_us)}{times}"
    )


def _times(row: Outlier) -> str:
    return ratio(row.duration_us / row.expected_duration_us) if row.expected_duration_us > 0 else "–"


COLUMNS = (
    Column[Outlier]("step", "step", lambda row: str(row.step), weight=6),
    Column[Outlier](
        "operator",
        "operator",
        lambda row: short_name(row.operator),
        align="left",
        weight=9,
        full=lambda row: row.operator,
    ),
    Column[Outlier]("phase", "phase", lambda row: row.phase or "–", align="left", weight=3),
    Column[Outlier]("occurrence", "#", lambda row: str(row.occurrence), weight=4),
    Column[Outlier]("start_us", "start", lambda row: duration(row.start_us), weight=5),
    Column[Outlier]("duration_us", "duration", lambda row: duration(row.duration_us), weight=8),
    Column[Outlier]("expected_duration_us", "expected", lambda row: duration(row.expected_duration_us), weight=7),
    Column[Outlier]("", "×", _times, weight=5),
    Column[Outlier]("score", "score", lambda row: score(row.score), weight=8),
    Column[Outlier]("start_z", "start z", lambda row: or_dash(row.start_z, "{:+.1f}".format), detail=True),
    Column[Outlier]("duration_z", "duration z", lambda row: or_dash(row.duration_z, "{:+.1f}".format), detail=True),
    Column[Outlier]("p_value", "p", lambda row: p_value(row.p_value), detail=True),
)


def _body(result: PinpointResult, page: Page) -> None:
    if not result.outliers:
        return
    page.table(COLUMNS, result.outliers)
    if any(row.start_us < 0 for row in result.outliers):
        page.line("a start before 0: work of a host that runs ahead, before its device begins the step", DIM)
    unlisted = result.total_outliers - len(result.outliers)
    if unlisted > 0:
        page.line(f"… and {count(unlisted)} more (--limit)", DIM)


VIEW = View[PinpointResult, Outlier](
    main="outliers",
    columns=COLUMNS,
    headline=_headline,
    body=_body,
    records=(("outliers", "outlier"),),
)


@dataclass(frozen=True)
class AlikeOutliers(Outlier):
    """The worst of similar outliers, and their sums."""

    count: int = 1
    excess_us: float = 0.0
    """Sum of the excess over peers; those that only began late add nothing."""


_BEFORE: Final = 2
_OF_ALL: Final = (
    Column[AlikeOutliers]("count", "alike", lambda row: count(row.count), weight=8),
    Column[AlikeOutliers]("excess_us", "lost", lambda row: duration(row.excess_us), weight=8),
)
ALIKE_COLUMNS: Final[tuple[Column[Any], ...]] = (*COLUMNS[:_BEFORE], *_OF_ALL, *COLUMNS[_BEFORE:])
"""The columns of a single outlier, and the number that a row stands for."""


def alike(outliers: Sequence[Outlier]) -> tuple[AlikeOutliers, ...]:
    """Return a row for each operator and phase, about their worst, in that order."""
    found: dict[tuple[str, str | None], list[Outlier]] = defaultdict(list)
    for row in outliers:
        found[row.operator, row.phase].append(row)
    return tuple(_together(rows) for rows in found.values())


def each(outliers: Sequence[Outlier]) -> tuple[AlikeOutliers, ...]:
    """Return every outlier by itself."""
    return tuple(_together([row]) for row in outliers)


def _together(rows: Sequence[Outlier]) -> AlikeOutliers:
    excess_us = sum(max(row.duration_us - row.expected_duration_us, 0.0) for row in rows)
    return AlikeOutliers(**vars(rows[0]), count=len(rows), excess_us=excess_us)
