"""Runs SQL over the tables of a trace with Polars: reads only, opens no file, and holds a bounded part of the rows.

Used by `kair query` on every face.
"""

import os
import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Literal

from kair.app.tables import TABLES, US_IN_NS, Findings, schema_of
from kair_engine.cancelling import checkpoint
from kair_engine.errors import InputError, UsageError
from kair_engine.results.query import MOST_ROWS, Cell, ColumnType, QueryColumn, QueryResult
from kair_engine.trace.columns import unsound_file
from kair_engine.trace.model import Trace

if TYPE_CHECKING:
    import polars as pl

WholeFormat = Literal["csv", "parquet", "arrow", "ndjson"]
FORMATS: Final[tuple[WholeFormat, ...]] = ("csv", "parquet", "arrow", "ndjson")
"""What all rows are streamed to; as endings of files too."""
MOST_IN_DOCUMENT: Final = 1_000_000
"""Rows of a JSON document, which is made in memory; others are streamed."""
LONGEST: Final = 10_000
"""Characters of a query: Polars walks it by recursion."""
_READS_ONLY: Final = re.compile(r"[\s(]*(SELECT|WITH|EXPLAIN|SHOW)\b", re.IGNORECASE)
_OPENS_FILES: Final = re.compile(r"read_\w+|\$", re.IGNORECASE)
"""Functions that open files, and the quotes by which a lexer is got round: nobody looks for them more cleverly."""
_ORDERED: Final = re.compile(r"\border\s+by\b", re.IGNORECASE)
_WITHOUT_ORDER: Final = re.compile(r"\b(group\s+by|distinct|join|union|except|intersect)\b", re.IGNORECASE)
_PLAN: Final = "Logical Plan"


class Selection(QueryResult):
    """Answers a query: it holds the first rows and can return all of them."""

    whole: "pl.LazyFrame"

    @classmethod
    def holding(cls, result: QueryResult) -> "Selection":
        """Return a selection of an answer that holds all of its rows."""
        if isinstance(result, Selection):
            return result
        import polars as pl

        return cls._made(pl.LazyFrame(result.rows, schema=schema_of(result.columns)), result)

    @classmethod
    def _made(cls, whole: "pl.LazyFrame", like: QueryResult) -> "Selection":
        made = cls(**vars(like))
        vars(made)["whole"] = whole
        return made

    def all_rows(self) -> QueryResult:
        """Return the answer with all rows. Raises InputError if they do not fit into memory."""
        if self.total_rows == len(self.rows):
            return self
        if self.total_rows > MOST_IN_DOCUMENT:
            raise InputError(
                f"the query returns {self.total_rows:,} rows, more than {MOST_IN_DOCUMENT:,} in one document",
                "-o csv, -o parquet or --out FILE.parquet write them one after another",
            )
        rows = tuple(_collected(self.whole).iter_rows(named=True))
        return QueryResult(self.sql, self.columns, rows, len(rows))

    def write(self, file: IO[bytes], form: WholeFormat) -> None:
        """Write all rows, with only some in memory at a time. Raises OSError if the disk is full."""
        import polars as pl

        from kair_engine.export.harmless import harmless

        rows = self.whole
        if form == "csv":
            rows = rows.with_columns(harmless(column.name) for column in self.columns if column.type == "text")
        sinks: dict[WholeFormat, Callable[[IO[bytes]], Any]] = {
            "csv": rows.sink_csv,
            "parquet": rows.sink_parquet,
            "arrow": rows.sink_ipc,
            "ndjson": rows.sink_ndjson,
        }
        try:
            sinks[form](file)
        except (pl.exceptions.PolarsError, OSError) as error:
            if (number := re.search(r"os error (\d+)", str(error))) is not None:
                raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
            if isinstance(error, OSError):
                raise
            raise _in_words(error, ()) from error


def format_of(path: Path) -> WholeFormat:
    """Return the format for a file's ending. Raises UsageError for an unknown ending."""
    form = next((form for form in FORMATS if path.name.lower().endswith(f".{form}")), None)
    if form is None:
        raise UsageError(
            f"{path.name}: no format has this ending", f"end it with {', '.join(f'.{form}' for form in FORMATS)}"
        )
    return form


def described() -> QueryResult:
    """Return the tables' columns, a row each."""
    rows: tuple[dict[str, Cell], ...] = tuple(
        {
            "table": table.name,
            "column": column.name,
            "type": column.type,
            "unit": column.unit or None,
            "about": column.about,
        }
        for table in TABLES.values()
        for column in table.columns
    )
    return QueryResult(None, tuple(QueryColumn(name, "text") for name in rows[0]), rows, len(rows))


def select(sql: str, trace: Trace, findings: Findings) -> Selection:
    """Return the rows of a query. Raises UsageError for invalid SQL, or a query that does not only read the tables.

    Triage runs only if the query names the table of findings. Without ORDER BY, the rows of groups and joins are sorted
    by their columns, because they come in any order.
    """
    import polars as pl

    require_read_only(sql)
    named = [name for name in TABLES if re.search(rf"\b{name}\b", sql, re.IGNORECASE)]
    frames = {name: table.frame(trace, findings) if name in named else table.empty() for name, table in TABLES.items()}
    try:
        whole = _plain(pl.SQLContext(frames).execute(sql))
        if _WITHOUT_ORDER.search(sql) and not _ORDERED.search(sql):
            whole = whole.sort(pl.all())
        schema = whole.collect_schema()
        first = _collected(whole.head(MOST_ROWS + 1))
        total = len(first) if len(first) <= MOST_ROWS else int(_collected(whole.select(pl.len())).item())
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        if isinstance(error, pl.exceptions.ComputeError) and unsound_file(trace) is not None:
            raise  # who opened the trace names the file
        raise _in_words(error, (column.name for name in named for column in TABLES[name].columns)) from error
    columns = tuple(QueryColumn(name, _type(kind)) for name, kind in schema.items())
    rows = tuple(first.head(MOST_ROWS).iter_rows(named=True))
    return Selection._made(whole, QueryResult(sql, columns, rows, total))


def require_read_only(sql: str) -> None:
    """Raise UsageError for a query that changes something or opens a file, before it is parsed."""
    if len(sql) > LONGEST:
        raise UsageError(f"the query has {len(sql):,} characters, more than {LONGEST:,}")
    if not _READS_ONLY.match(sql):
        raise UsageError("a query begins with SELECT, WITH, EXPLAIN or SHOW", "kair query --tables lists the tables")
    if opened := _OPENS_FILES.search(sql):
        raise UsageError(
            f"a query reads the job's tables and no files: {opened[0]!r} is not allowed, in texts neither",
            "kair query --tables lists the tables; in LIKE, _ and % stand for other signs",
        )


def _collected(rows: "pl.LazyFrame") -> "pl.DataFrame":
    done = rows.collect(engine="streaming")
    checkpoint()
    return done


def _plain(rows: "pl.LazyFrame") -> "pl.LazyFrame":
    """Return the rows with nothing but whole and finite numbers, texts and truth values in them."""
    import polars as pl

    schema = rows.collect_schema()
    plain = rows.select(_plain_column(pl.nth(at), kind).alias(name) for at, (name, kind) in enumerate(schema.items()))
    return plain.select(pl.col(_PLAN).str.split("\n").explode()) if _PLAN in schema else plain


def _plain_column(column: "pl.Expr", kind: "pl.DataType") -> "pl.Expr":
    import polars as pl

    if kind.is_float() or kind.is_decimal():
        number = column.cast(pl.Float64)
        return pl.when(number.is_finite()).then(number)
    if kind == pl.Duration:
        return column.dt.total_nanoseconds() / US_IN_NS
    if isinstance(kind, pl.List | pl.Array):
        return column.cast(pl.List(pl.String)).list.join("; ")
    if isinstance(kind, pl.Struct):
        return column.struct.json_encode()
    if kind == pl.Binary:
        return column.bin.encode("hex")
    return column if kind.is_integer() or kind in (pl.String, pl.Boolean) else column.cast(pl.String)


def _type(kind: "pl.DataType") -> ColumnType:
    import polars as pl

    if kind.is_integer():
        return "integer"
    return "number" if kind.is_float() else "boolean" if kind == pl.Boolean else "text"


def _in_words(error: BaseException, columns: Iterable[str]) -> UsageError:
    import polars as pl

    text = _first_line(error)
    if missing := re.search(r"relation '(.*?)' was not found", text):
        return UsageError(f"no table {missing[1]!r}", _meant(missing[1], TABLES, "tables"))
    if missing := re.search(r"(?:unable to find column|no column named) ['\"](.*?)['\"]", text):
        return UsageError(f"no column {missing[1]!r}", _meant(missing[1], columns, "columns"))
    if "sql parser error: " in text:
        return UsageError(f"syntax error: {text.split('sql parser error: ')[-1]}")
    doubled = isinstance(error, pl.exceptions.DuplicateError)
    return UsageError(text, "give one of them another name: AS NAME" if doubled else None)


def _first_line(error: BaseException) -> str:
    """Return the first sentence of the first line."""
    line = (str(error).strip().splitlines() or ["Polars cannot run this query"])[0]
    return line.split(". ")[0].rstrip(".:")


def _meant(name: str, known: Iterable[str], what: str) -> str:
    names = list(dict.fromkeys(known))
    near = get_close_matches(name.lower(), names, 3)
    return f"did you mean {' or '.join(near)}?" if near else f"{what}: {', '.join(names)}"
