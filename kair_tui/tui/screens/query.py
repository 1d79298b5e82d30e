"""The query screen: SQL typed over the job's tables, its rows, and their export as CSV, Parquet or JSON."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from kair.app.question import Question
from kair_engine.results.query import QueryResult
from kair_tui.render.query import VIEW, Row, cell_text, columns_of, fitting_columns, query_headline
from kair_tui.render.units import count, plural
from kair_tui.tui.frame.screen import Export
from kair_tui.tui.frame.view import ViewScreen
from kair_tui.tui.widgets.lines import Heading, Paragraph, Paragraphs
from kair_tui.tui.widgets.table import Table

_MARGIN: Final = 4
"""Columns of the table for the pointer and a scroll bar."""
_WORDS: Final = ("SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "HAVING", "LIMIT", "DESC", "JOIN", "AND", "LIKE")
_LAST_WORD: Final = re.compile(r"[A-Za-z_]\w*$")


class Rows(Table[Row]):
    """Rows of any columns, each leading to its rank if it names one."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "choose", "rank")]


class QueryScreen(ViewScreen):
    """The answers of `kair query`; before a query, the tables."""

    DEFAULT_CSS = "QueryScreen #about { margin: 1 0; }"
    FIRST = "#rows"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("i", "type", "SQL"),
        Binding("left", "shift(-1)", "columns", key_display="left/right"),
        Binding("right", "shift(1)", "columns", show=False),
        Binding("t", "tables", "tables"),
    ]

    _sql: str | None = None
    """The query that is shown; None for the tables."""
    _queries: tuple[str, ...] = ()
    _result: QueryResult | None = None
    _first = 0
    """The column that is shown first."""

    def questions(self) -> Mapping[str, Question]:
        """Return the query, else the description of the tables."""
        return {"query": self.session.question("query", sql=self._sql, tables=self._sql is None)}

    def body(self) -> ComposeResult:
        """Yield the query over its rows."""
        yield Paragraphs(self.look, id="about")
        yield Heading(self.look, "rows", of="rows")
        self._rows = Rows(self.look, (), id="rows")
        yield self._rows

    def on_mount(self) -> None:
        """Show what can be typed."""
        self._say_query()

    def make_room(self) -> None:
        """Show as many columns as fit."""
        self._show_rows()

    # What is typed.

    async def action_type(self) -> None:
        """Ask for the query, starting with the previous one."""
        begun = self._queries[-1] if self._queries else "SELECT "
        await self.ask_for("sql", self._ask_query, value=begun, complete=_completed, history=self._queries[:-1])

    def _ask_query(self, sql: str) -> None:
        if not sql.strip():
            return
        self._queries = (*(one for one in self._queries if one != sql), sql)
        self._show_query(sql)

    def action_tables(self) -> None:
        """Show the tables again."""
        self._show_query(None)

    def _show_query(self, sql: str | None) -> None:
        self._sql, self._result, self._first = sql, None, 0
        self.shown.clear()  # what is on the screen is not exported as the answer to another query
        self._say_query()
        self._rows.show((), columns=())
        self.heading("rows").say([])
        self.reask()

    def _say_query(self) -> None:
        said = "i types a query over these tables: SELECT rank, sum(duration_us) FROM operations GROUP BY rank"
        text = Paragraph(said) if self._sql is None else Paragraph(self._sql, "strong")
        self.query_one("#about", Paragraphs).show(text)

    # What is shown.

    def show(self, name: str, result: Any) -> None:  # noqa: ANN401, ARG002 - there is one question
        """Show the answer's rows."""
        self._result = result
        self._show_rows()

    def action_shift(self, by: int) -> None:
        """Show columns further to the left or right."""
        result = self._result
        if result is None or result.sql is None:
            return
        last = len(result.columns) - fitting_columns(result, self._width, self._first) if by > 0 else self._first + by
        self._first = max(min(self._first + by, last), 0)
        self._show_rows()

    @property
    def _width(self) -> int:
        return max(self.size.width - _MARGIN, 1)

    def _show_rows(self) -> None:
        result = self._result
        if result is None:
            return
        shown = columns_of(result)
        if result.sql is not None:
            shown = shown[self._first :][: fitting_columns(result, self._width, self._first)]
        at = self._rows.at
        self._rows.show(result.rows, empty="no row", columns=shown)
        self._rows.move_to(at)
        more = f" of {count(result.total_rows)}: an export has all" if len(result.rows) < result.total_rows else ""
        rows = f"{plural(len(result.rows), 'row')}{more}" if result.sql is not None else query_headline(result)
        until, total = self._first + len(shown), len(columns_of(result))
        columns = f"columns {self._first + 1}-{until} of {total} " if len(shown) < total else ""
        self.heading("rows").say([(rows, None)], [(columns, None)])

    # What is under the cursor.

    @property
    def rank(self) -> int | None:
        """Return the row's rank, if a column has that name."""
        row = self._rows.chosen
        rank = None if row is None else row.get("rank")
        return rank if isinstance(rank, int) and rank in self.session.trace.job.ranks else None

    def about_cursor(self) -> str:
        """Describe the whole row under the cursor."""
        return self._row_in_words(f" {self.look.glyphs.dot} ")

    def on_table_chosen(self) -> None:
        """Go to the row's rank; among the tables show the rows of the one under the cursor."""
        row = self._rows.chosen
        if self._sql is None and row is not None:
            self._ask_query(f"SELECT * FROM {row['table']}")
        elif self.rank is None:
            self.say("no column of the row is a rank of the job")
        else:
            self.kair.go_to_rank(self.rank)

    def _row_in_words(self, between: str) -> str:
        row = self._rows.chosen
        if row is None or self._sql is None:
            return "" if row is None else str(row["about"])
        return between.join(f"{name} {cell_text(value)}" for name, value in row.items())

    def copied(self) -> str:
        """Return the row under the cursor, and the command."""
        return "\n".join([self._row_in_words("\n"), *self.commands()])

    # What is saved.

    def exports(self) -> Sequence[Export]:
        """Return all rows, for file formats that hold many."""
        result = self._result
        if result is None or VIEW.stream is None:
            return ()
        write = VIEW.stream
        return [
            replace(export, forms=("csv", "parquet", "json"), stream=lambda form, file: write(result, form, file))
            for export in super().exports()
        ]


def _completed(line: str) -> str | None:
    """Return the line with its last word completed: a table, a column, or a word of SQL."""
    from kair.app.tables import TABLES

    word = _LAST_WORD.search(line)
    if word is None:
        return None
    named = (name for table in TABLES.values() for name in (table.name, *(column.name for column in table.columns)))
    name = next((name for name in (*named, *_WORDS) if name.lower().startswith(word[0].lower())), None)
    return None if name is None else line[: word.start()] + name
