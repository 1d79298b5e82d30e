"""The view of a result: its main table, its first line, and what a person reads beneath."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from kair_engine.frozen import dataclass
from kair_tui.render.column import Column

if TYPE_CHECKING:
    from networkx import DiGraph

    from kair_tui.render.graphs import GraphFormat
    from kair_tui.render.page import Page

Result = TypeVar("Result")
Row = TypeVar("Row")


@dataclass(frozen=True)
class CsvTable(Generic[Result]):
    """Rows made for CSV, of an answer whose main table does not tell it."""

    row_type: type[Any]
    """A dataclass: its fields are the columns."""
    rows: Callable[[Result], Sequence[Any]]


@dataclass(frozen=True)
class View(Generic[Result, Row]):
    """Everything the formats need to know about one kind of result."""

    main: str | None
    """The field that holds the main table's rows; None where the result itself is the only row."""
    columns: Sequence[Column[Row]]
    headline: Callable[[Result], str]
    body: Callable[[Result, "Page"], None]
    records: Sequence[tuple[str, str]] = ()
    """NDJSON: (field of the result, what a record of it is called), in the order they come."""
    tree: Callable[[Result, "Page"], None] | None = None
    """What `-o tree` shows; an answer that is no tree shows its body."""
    graph: "Callable[[Result, GraphFormat], DiGraph] | None" = None
    """What the formats for graphs show, of an answer that is one."""

    picture: Callable[[Result], str] | None = None
    """What `-o svg` writes, of an answer that is a picture."""

    csv: CsvTable[Result] | None = None
    """What `-o csv` writes in the main table's place."""

    def rows(self, result: Result) -> Sequence[Row]:
        """The main table's rows."""
        if self.main is None:
            only: Any = result
            return (only,)
        rows: Sequence[Row] = getattr(result, self.main)
        return rows
