"""Rows for machines: NDJSON and CSV, and the columns that `--fields` may name."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_type_hints

from kair_engine.errors import UsageError
from kair_tui.render.answer import Document
from kair_tui.render.document import data_of, encode, envelope, to_plain
from kair_tui.render.text import clean
from kair_tui.render.view import View

# A spreadsheet takes a cell that begins with one of these for a formula.
_FORMULA_SIGNS = ("=", "+", "-", "@", "＝", "＋", "－", "＠")


def field_names(result_type: type, main: str | None) -> tuple[str, ...]:
    """Return the main table's columns, from the type of its rows."""
    row_type = result_type if main is None else get_args(get_type_hints(result_type)[main])[0]
    if not is_dataclass(row_type):
        raise UsageError("--fields chooses among fixed columns", "name the columns in the query")
    return tuple(field.name for field in fields(row_type) if field.name != "warnings")


def chosen_fields(wanted: str | None, known: Sequence[str]) -> tuple[str, ...] | None:
    """Return the columns named in `a,b`, in that order; None for all. Raises UsageError for an unknown one."""
    if wanted is None:
        return None
    names = tuple(dict.fromkeys(name.strip() for name in wanted.split(",") if name.strip()))
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        what = f"no field {unknown[0]!r}" if unknown else "--fields names no field"
        raise UsageError(f"{what}; there are: {', '.join(known)}")
    return names


def narrowed(data: dict[str, Any], main: str | None, keep: Sequence[str] | None) -> dict[str, Any]:
    """Return `data` with the main table's rows reduced to the fields in `keep`."""
    if keep is None:
        return data
    if main is None:
        return {name: data[name] for name in keep}
    return {**data, main: [{name: row[name] for name in keep} for row in data[main]]}


def ndjson(answer: Document, view: View[Any, Any], keep: Sequence[str] | None) -> str:
    """Return a header record, one record per row, and an end record with the number of rows."""
    data = narrowed(data_of(answer), view.main, keep)
    tables = [table for table in view.records if keep is None or table[0] == view.main]
    in_rows = {name for name, _ in view.records}
    header = {
        "record": "header",
        **envelope(answer),
        "data": {name: value for name, value in data.items() if name not in in_rows},
        "warnings": to_plain(answer.warnings),
    }
    rows = [{"record": record, **row} for name, record in tables for row in data[name]]
    lines = [header, *rows, {"record": "end", "rows": len(rows)}]
    return "".join(f"{encode(line)}\n" for line in lines)


def csv_table(answer: Document, view: View[Any, Any], keep: Sequence[str] | None) -> str:
    """Return the main table, or the one for CSV, as in RFC 4180 except for lines that end with LF.

    Nested values get a column each: `excess_us.compute`.
    """
    names = keep or csv_names(type(answer.result), view)
    flat = [dict(_flat(row, names)) for row in _rows(answer, view)]
    columns = list(dict.fromkeys(column for name in names for column in _columns_of(name, flat)))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(_text, columns))
    writer.writerows([[_cell(row.get(column)) for column in columns] for row in flat])
    return out.getvalue()


def csv_names(result_type: type, view: View[Any, Any]) -> tuple[str, ...]:
    """Return the columns of CSV."""
    return field_names(result_type, view.main) if view.csv is None else tuple(f.name for f in fields(view.csv.row_type))


def _rows(answer: Document, view: View[Any, Any]) -> list[dict[str, Any]]:
    if view.csv is not None:
        return [to_plain(row) for row in view.csv.rows(answer.result)]
    data = data_of(answer)
    return [data] if view.main is None else data[view.main]


def _flat(row: dict[str, Any], names: Sequence[str]) -> Iterator[tuple[str, Any]]:
    for name in names:
        yield from _leaves(name, row[name])


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401
    """Yield (column, cell) of a value: for objects and lists of objects one per value."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(f"{name}.{key}", inner)
    elif isinstance(value, list | tuple) and any(isinstance(item, dict | list | tuple) for item in value):
        for at, inner in enumerate(value):
            yield from _leaves(f"{name}.{at}", inner)
    else:
        yield name, value


def _columns_of(name: str, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the columns of a field, in the order of first use; its own if all rows lack it."""
    found = dict.fromkeys(column for row in rows for column in row if column == name or column.startswith(f"{name}."))
    if len(found) > 1:
        found.pop(name, None)  # empty in all rows that have it: elsewhere it is nested
    return list(found) or [name]


def _cell(value: Any) -> Any:  # noqa: ANN401
    """Return a cell: numbers unchanged, lists of them separated by blanks, lists of texts by semicolons, text made
    safe.
    """
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, list | tuple):
        numbers = all(isinstance(item, int | float) for item in value)
        text = (" " if numbers else "; ").join(map(str, value))
        return text if numbers else _text(text)
    return _text(value)


def _text(value: Any) -> str:  # noqa: ANN401
    text = clean(str(value))
    return f"'{text}" if text.startswith(_FORMULA_SIGNS) else text
