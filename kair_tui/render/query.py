"""The rows of a query for people: the columns that fit, readable rows, and what is left out."""

from __future__ import annotations

from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any, Final

from rich.cells import cell_len

from kair_engine.results.query import Cell, QueryColumn, QueryResult
from kair_tui.render.answer import DIM, GAP, SHORTEST_NAME, Column
from kair_tui.render.text import clean
from kair_tui.render.units import plural
from kair_tui.render.view import View

if TYPE_CHECKING:
    from typing import IO

    from kair_tui.render.page import Page

Row = dict[str, Cell]
ROWS_SHOWN: Final = 100
_MEASURED: Final = 100
"""Rows examined for the number of columns that fit."""

TABLE_COLUMNS: Final = (
    Column[Row]("table", "table", lambda row: str(row["table"]), align="left", weight=8),
    Column[Row]("column", "column", lambda row: str(row["column"]), align="left", weight=8),
    Column[Row]("unit", "unit", lambda row: str(row["unit"] or row["type"]), align="left", weight=8),
    Column[Row]("about", "meaning", lambda row: str(row["about"]), align="left", weight=9),
)
"""For the description of tables."""


def cell_text(value: Cell) -> str:
    """Return a value as in SQL; numbers for people."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, float):
        return str(value)
    return f"{value:.3f}".rstrip("0").rstrip(".") if abs(value) >= 1 else f"{value:.4g}"


def columns_of(result: QueryResult) -> tuple[Column[Row], ...]:
    """Return the columns of a table, texts left-aligned; for the description of all tables, its own columns."""
    if result.sql is None:
        return TABLE_COLUMNS

    def shown(name: str, align: Any) -> Column[Row]:  # noqa: ANN401
        return Column(name, name, lambda row: cell_text(row[name]), align=align, weight=9)

    return tuple(shown(column.name, "left" if column.type == "text" else "right") for column in result.columns)


def query_headline(result: QueryResult) -> str:
    """Return the number of rows; for `--tables` what they describe."""
    if result.sql is None:
        named = dict.fromkeys(str(row["table"]) for row in result.rows)
        return f"{plural(len(named), 'table')}: {', '.join(named)}"
    return f"{plural(result.total_rows, 'row')} of {plural(len(result.columns), 'column')}"


def fitting_columns(result: QueryResult, width: int, first: int = 0) -> int:
    """Return the number of columns that fit, counted from the first shown one: at least one."""
    needed = accumulate(_width(result, column) + GAP for column in result.columns[first:])
    return max(sum(until - GAP <= width for until in needed), 1)


def _width(result: QueryResult, column: QueryColumn) -> int:
    cells = (cell_len(clean(cell_text(row[column.name]))) for row in result.rows[:_MEASURED])
    widest = max(cells, default=0)
    return max(cell_len(clean(column.name)), min(widest, SHORTEST_NAME) if column.type == "text" else widest)


def _body(result: QueryResult, page: Page) -> None:
    if result.sql is None:
        _describe(result, page)
        return
    if not result.rows:
        page.line("no row", DIM)
        return
    columns = columns_of(result)
    kept = len(columns) if page.options.wide else fitting_columns(result, page.options.width)
    page.table(columns[:kept], result.rows if page.options.wide else result.rows[:ROWS_SHOWN])
    shown = len(result.rows) if page.options.wide else min(len(result.rows), ROWS_SHOWN)
    if shown < result.total_rows:
        page.line(f"… and {plural(result.total_rows - shown, 'more row')}: -o csv, -o parquet and --out have all", DIM)
    if kept < len(columns):
        left = [column.name for column in result.columns[kept:]]
        page.line(f"left out for lack of room: {', '.join(left)} (-o wide shows them)", DIM)


def _describe(result: QueryResult, page: Page) -> None:
    for name, rows in groupby(result.rows, key=lambda row: row["table"]):
        page.line(str(name), "bold")
        page.table(TABLE_COLUMNS[1:], list(rows))
        page.line()


def _whole(result: QueryResult) -> QueryResult:
    from kair.app.querying import Selection

    return Selection.holding(result).all_rows()


def _write(result: QueryResult, form: Any, file: IO[bytes]) -> None:  # noqa: ANN401
    from kair.app.querying import Selection

    Selection.holding(result).write(file, form)


VIEW = View[QueryResult, Row](
    main="rows",
    columns=(),
    headline=query_headline,
    body=_body,
    records=(("rows", "row"),),
    whole=_whole,
    stream=_write,
)
