"""How a result is shown: its main table, its first line, and what a person reads beneath."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

if TYPE_CHECKING:
    from networkx import DiGraph

    from kair_tui.render.graphs import GraphFormat
    from kair_tui.render.page import Page

Result = TypeVar("Result")
Row = TypeVar("Row")

ALARM = "bold red"
DIM = "dim"


class Styled(NamedTuple):
    """A cell with a Rich style; the text alone must say all."""

    text: str
    style: str


Cell = str | Styled


@dataclass(frozen=True)
class Column(Generic[Row]):
    """One column of a table for people."""

    key: str
    """The field of the row that it shows: what `--fields` calls it."""
    title: str
    show: Callable[[Row], Cell]
    align: Literal["left", "right"] = "right"
    detail: bool = False
    """Shown with `-o wide` only."""
    weight: int = 5
    """On a narrow terminal the lightest columns go first; 9 stays always."""
    full: Callable[[Row], Cell] | None = None
    """With `-o wide`, in the place of `show`."""


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

    def rows(self, result: Result) -> Sequence[Row]:
        """The main table's rows."""
        if self.main is None:
            only: Any = result
            return (only,)
        rows: Sequence[Row] = getattr(result, self.main)
        return rows


def plain_column(name: str) -> Column[Any]:
    """A column for a field that the tables for people do not have."""

    def show(row: object) -> str:
        value = getattr(row, name)
        if isinstance(value, float):
            return f"{value:.6g}"
        if isinstance(value, tuple):
            return " ".join(map(str, value))
        return "–" if value is None else str(value)

    return Column(name, name, show, align="left", weight=9)
