"""What every format is made from: an answer and what it is about, columns of tables, and what a page can show.

Columns of a table for people, and the styles of their cells.

Chooses a table's columns by the width that there is.

Options of a page: its width, and what the place that it is for can show.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

from kair.app.question import Note
from kair_engine.frozen import dataclass
from kair_tui.render.warnings import WarningInWords


@dataclass(frozen=True)
class JobInfo:
    """Which job a document is about, and which of its steps were analysed."""

    name: str
    """Of the job."""
    source: str
    """The path that it was read from."""
    world_size: int
    """Ranks of the job, whether or not they left a trace."""
    ranks: tuple[int, ...]
    """Their numbers, sorted."""
    steps: tuple[int, ...]
    """Those that were analysed."""


@dataclass(frozen=True)
class Document:
    """What a format writes: a result, and what it is about."""

    command: str
    result: Any
    job: JobInfo | None
    warnings: tuple[WarningInWords, ...]
    notes: tuple[Note, ...] = ()
    """Of the job, whatever was asked."""
    report: Callable[[], str] | None = None
    """Makes the report about it as Markdown, which asks more; None of an answer that has none."""


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


def plain_column(name: str) -> Column[Any]:
    """Return a column for a field that the tables for people do not have."""

    def show(row: object) -> str:
        value = getattr(row, name)
        if isinstance(value, float):
            return f"{value:.6g}"
        if isinstance(value, tuple):
            return " ".join(map(str, value))
        return "–" if value is None else str(value)

    return Column(name, name, show, align="left", weight=9)


GAP: Final = 2
"""Blanks between columns."""
SHORTEST_NAME: Final = 28
"""What a column of names may be cut to."""
ALWAYS: Final = 9
"""The weight of columns that are never left out."""


def shrinks(column: Column[Any]) -> bool:
    """Whether a column may be cut: names, of which the beginning says most."""
    return column.align == "left" and column.weight >= ALWAYS


def fitting(columns: Sequence[Column[Any]], widths: Sequence[int], available: int) -> list[int]:
    """Return the places of the columns to keep: the lightest go until the rest, names shortened, fits."""
    keep = list(range(len(columns)))
    while _needed(columns, widths, keep) > available:
        dispensable = [at for at in keep if columns[at].weight < ALWAYS]
        if not dispensable:
            break
        keep.remove(min(dispensable, key=lambda at: (columns[at].weight, -at)))
    return keep


def _needed(columns: Sequence[Column[Any]], widths: Sequence[int], keep: Sequence[int]) -> int:
    shortest = (min(widths[at], SHORTEST_NAME) if shrinks(columns[at]) else widths[at] for at in keep)
    return sum(shortest) + GAP * (len(keep) - 1)


UNLIMITED: Final = 100_000
"""Off a terminal nothing is wrapped or cut: the page is wider than any line."""


_HIGH: Final = 45
"""Lines from which on a screen has room for a page's usual rows."""


@dataclass(frozen=True)
class PageOptions:
    """Columns, lines, colours, signs, and whether all columns are wanted."""

    width: int = UNLIMITED
    color: bool = False
    ascii_only: bool = False
    plain: bool = False
    """For a screen reader: no bars, no pictures, no tables, one item a line."""
    wide: bool = False
    height: int | None = None
    """Lines of a screen that the page is drawn on anew; None of a page that can be scrolled."""

    def limit(self, usual: int, low: int) -> int:
        """Return how many rows to show: fewer on a screen of few lines."""
        return usual if self.height is None or self.height >= _HIGH else low
