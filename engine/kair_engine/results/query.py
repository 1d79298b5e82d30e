"""The answer to a query in SQL, and the description of the tables that it can be about."""

from typing import Final, Literal

from kair_engine.frozen import dataclass
from kair_engine.trace.model import KairWarning

ColumnType = Literal["integer", "number", "text", "boolean"]
Cell = int | float | str | bool | None
MOST_ROWS: Final = 10_000
"""Rows that an answer holds for a page or a screen; files, CSV, JSON and Parquet have all."""


@dataclass(frozen=True)
class QueryColumn:
    """One column of the answer."""

    name: str
    """As the query calls it."""
    type: ColumnType
    """What its values are, where they are not null."""


@dataclass(frozen=True)
class QueryResult:
    """What a query returns; with `--tables` a row for each column of each table."""

    sql: str | None
    """The query; null with `--tables`."""
    columns: tuple[QueryColumn, ...]
    """In the order of the query."""
    rows: tuple[dict[str, Cell], ...]
    """By column. Durations are numbers in microseconds; what is no finite number is null."""
    total_rows: int
    """Rows that the query returns."""
    warnings: tuple[KairWarning, ...] = ()
