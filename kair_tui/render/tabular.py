"""Rows for machines: NDJSON and CSV, and the columns that `--fields` may name."""

import csv
import io
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, get_args, get_type_hints

from kair_engine.errors import UsageError
from kair_tui.render.answer import Answer
from kair_tui.render.document import data_of, encode, envelope, to_plain
from kair_tui.render.text import clean
from kair_tui.render.view import View

# A spreadsheet takes a text cell that starts with one of these for a formula.
_FORMULA_SIGNS = ("=", "+", "-", "@")


def field_names(result_type: type, main: str | None) -> tuple[str, ...]:
    """The main table's columns, from the type of its rows."""
    row_type = result_type if main is None else get_args(get_type_hints(result_type)[main])[0]
    return tuple(field.name for field in fields(row_type) if field.name != "warnings")


def chosen_fields(asked: str | None, known: Sequence[str]) -> tuple[str, ...] | None:
    """The columns named in `a,b`, in that order; None for all. Raises UsageError for an unknown one."""
    if asked is None:
        return None
    names = tuple(dict.fromkeys(name.strip() for name in asked.split(",") if name.strip()))
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        what = f"no field {unknown[0]!r}" if unknown else "--fields names no field"
        raise UsageError(f"{what}; there are: {', '.join(known)}")
    return names


def narrowed(data: dict[str, Any], main: str | None, keep: Sequence[str] | None) -> dict[str, Any]:
    """`data` with the main table's rows reduced to the fields in `keep`."""
    if keep is None:
        return data
    if main is None:
        return {name: data[name] for name in keep}
    return {**data, main: [{name: row[name] for name in keep} for row in data[main]]}


def ndjson(answer: Answer, view: View[Any, Any], keep: Sequence[str] | None) -> str:
    """A header record, one record per row, and an end record with the number of rows."""
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


def csv_table(answer: Answer, view: View[Any, Any], keep: Sequence[str] | None) -> str:
    """The main table as RFC 4180 has it: CRLF, a header line, quotes where they are needed."""
    names = keep or field_names(type(answer.result), view.main)
    data = data_of(answer)
    rows = [data] if view.main is None else data[view.main]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(names)
    writer.writerows([[_cell(row[name]) for name in names] for row in rows])
    return out.getvalue()


def _cell(value: Any) -> Any:  # noqa: ANN401
    """Numbers as they are, lists of them set apart by blanks, other structures as JSON, text harmless."""
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, list) and all(isinstance(item, int | float) for item in value):
        return " ".join(map(str, value))
    text = clean(value if isinstance(value, str) else encode(value))
    return f"'{text}" if text.startswith(_FORMULA_SIGNS) else text
