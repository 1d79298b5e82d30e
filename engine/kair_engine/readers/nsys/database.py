"""An exported report as a database that is only looked at: no file of it is written, nothing in it is run."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from kair_engine.errors import InputError
from kair_engine.readers.detect import NotATraceError

_READ: Final = ("CUPTI_", "NVTX_", "TARGET_INFO", "META_DATA", "StringIds", "ThreadNames", "PROFILER_", "ENUM_CUPTI_")
_ROWS_AT_A_TIME: Final = 4096
_LONGEST_TEXT: Final = 1 << 20
_MOST_ROWS: Final = 200_000_000

Column = tuple[Any, ...]
"""One column's values, of any type: SQLite's columns hold what was put in them."""


class Report:
    """The tables of one export."""

    def __init__(self, connection: sqlite3.Connection, tables: dict[str, frozenset[str]]) -> None:
        self._connection = connection
        self._tables = tables

    def has(self, table: str, *columns: str) -> bool:
        """Whether the table is there with these columns."""
        return table in self._tables and self._tables[table].issuperset(columns)

    def rows(self, table: str, wanted: Sequence[str], optional: Sequence[str] = ()) -> Iterator[tuple[Any, ...]]:
        """The rows of a table, `wanted` columns and then `optional` ones (None where the export lacks them).

        Nothing where the table or one of the wanted columns is missing.
        """
        for some in self._some_rows(table, wanted, optional):
            yield from some

    def columns(self, table: str, wanted: Sequence[str], optional: Sequence[str] = ()) -> Iterator[list[Column]]:
        """The same, some thousand rows at a time, as one tuple for each column."""
        for some in self._some_rows(table, wanted, optional):
            yield list(zip(*some, strict=True))

    def _some_rows(self, table: str, wanted: Sequence[str], optional: Sequence[str]) -> Iterator[list[tuple[Any, ...]]]:
        if not self.has(table, *wanted):
            return
        chosen = [*wanted, *(name if self.has(table, name) else "NULL" for name in optional)]
        # Names come from this module's callers, never from the file.
        cursor = self._connection.execute(f'SELECT {", ".join(chosen)} FROM "{table}"')
        for _ in range(_MOST_ROWS // _ROWS_AT_A_TIME):
            some = cursor.fetchmany(_ROWS_AT_A_TIME)
            if not some:
                return
            yield some


@contextmanager
def opened(source: Path) -> Iterator[Report]:
    """The report in `source`, until the block ends.

    Raises NotATraceError where it is another database, InputError where it is damaged or its tables are none.
    """
    try:
        # Immutable: no journal is read or left behind, whatever lies beside the file.
        connection = sqlite3.connect(f"file:{quote(str(source.absolute()))}?mode=ro&immutable=1", uri=True)
    except sqlite3.Error as error:
        raise InputError(f"cannot read {source}: {error}") from error
    try:
        yield Report(connection, _tables(connection, source))
    except (sqlite3.Error, UnicodeDecodeError) as error:
        # Names of damaged tables are decoded before they can be replaced.
        text = f"{source.name} is damaged: {' '.join(str(error).split())[:200]}"
        raise InputError(text, "export it again: nsys export --type sqlite") from error
    finally:
        connection.close()


def _tables(connection: sqlite3.Connection, source: Path) -> dict[str, frozenset[str]]:
    """The tables with their columns. Those that compute what they hold are no part of an export."""
    connection.text_factory = lambda text: text.decode("utf-8", "replace")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_TEXT * 64)
    for pragma in ("trusted_schema = OFF", "cell_size_check = ON", "mmap_size = 0", "query_only = ON"):
        connection.execute(f"PRAGMA {pragma}")
    found: dict[str, frozenset[str]] = {}
    for kind, name, made_by in connection.execute("SELECT type, name, sql FROM sqlite_master").fetchmany(10_000):
        if not isinstance(name, str) or not name.replace("_", "").isalnum():
            continue
        if kind == "view" or (kind == "table" and str(made_by).upper().startswith("CREATE VIRTUAL")):
            if name.startswith(_READ):
                text = f"in {source.name} {name} is a {kind} made by somebody else than Nsight Systems"
                raise InputError(text, "export the report again: nsys export --type sqlite")
        elif kind == "table":
            columns = connection.execute(f'PRAGMA table_xinfo("{name}")').fetchmany(1000)
            # Hidden and generated columns are computed when they are read.
            found[name] = frozenset(column[1] for column in columns if column[6] == 0)
    if not any(name.startswith(("CUPTI_ACTIVITY_KIND", "NVTX_EVENTS", "TARGET_INFO")) for name in found):
        raise NotATraceError("it is a database of something else than Nsight Systems")
    return found
