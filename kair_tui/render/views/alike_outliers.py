"""Outliers of one operator as one row, with their number."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from kair_engine.results.pinpoint import Outlier
from kair_tui.render.column import Column
from kair_tui.render.units import count, duration
from kair_tui.render.views.pinpoint import COLUMNS as OF_ONE


@dataclass(frozen=True)
class AlikeOutliers(Outlier):
    """The most outlying of them, and what they come to together."""

    count: int = 1
    excess_us: float = 0.0
    """What they take longer than among peers, summed; those that only began late add nothing."""


_BEFORE: Final = 2
_OF_ALL: Final = (
    Column[AlikeOutliers]("count", "alike", lambda row: count(row.count), weight=8),
    Column[AlikeOutliers]("excess_us", "lost", lambda row: duration(row.excess_us), weight=8),
)
COLUMNS: Final[tuple[Column[Any], ...]] = (*OF_ONE[:_BEFORE], *_OF_ALL, *OF_ONE[_BEFORE:])
"""Those of a single outlier, and of the row how many it stands for."""


def alike(outliers: Sequence[Outlier]) -> tuple[AlikeOutliers, ...]:
    """A row for each operator and phase, in the order of their worst, which the row is about."""
    found: dict[tuple[str, str | None], list[Outlier]] = defaultdict(list)
    for row in outliers:
        found[row.operator, row.phase].append(row)
    return tuple(_together(rows) for rows in found.values())


def each(outliers: Sequence[Outlier]) -> tuple[AlikeOutliers, ...]:
    """Every one by itself."""
    return tuple(_together([row]) for row in outliers)


def _together(rows: Sequence[Outlier]) -> AlikeOutliers:
    excess_us = sum(max(row.duration_us - row.expected_duration_us, 0.0) for row in rows)
    return AlikeOutliers(**vars(rows[0]), count=len(rows), excess_us=excess_us)
