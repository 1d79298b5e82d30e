"""What every format is made from: an answer and its job, columns of tables, and a page's capabilities.

Defines the columns of tables for people and the styles of their cells, and chooses the columns that fit a width.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

from kair.app.question import Note
from kair_engine.frozen import dataclass
from kair_tui.render.warnings import WarningInWords


@dataclass(frozen=True)
class JobInfo:
    """The job of a document, and its analysed steps."""

    name: str
    """The job's name."""
    source: str
    """The path it was read from."""
    world_size: int
    """Ranks of the job, whether or not they left a trace."""
    ranks: tuple[int, ...]
    """The job's rank numbers, sorted."""
    steps: tuple[int, ...]
    """The analysed steps."""


@dataclass(frozen=True)
class Document:
    """The input of a format: a result, and its job."""

    command: str
    result: Any
    job: JobInfo | None
    warnings: tuple[WarningInWords, ...]
    notes: tuple[Note, ...] = ()
    """About the job, whatever the question."""
    report: Callable[[], str] | None = None
    """Makes the answer's report as Markdown, which asks further questions; None without a report."""


Row = TypeVar("Row")

ALARM = "bold red"
DIM = "dim"


class Styled(NamedTuple):
    """A cell with a Rich style; the text alone must say everything."""

    text: str
    style: str


Cell = str | Styled


@dataclass(frozen=True)
class Column(Generic[Row]):
    """One column of a table for people."""

    key: str
    """The row's field that it shows: its name in `--fields`."""
    title: str
    show: Callable[[Row], Cell]
    align: Literal["left", "right"] = "right"
    detail: bool = False
    """Shown only with `-o wide`."""
    weight: int = 5
    """On a narrow terminal the lightest columns are dropped first; those of 9 always stay."""
    full: Callable[[Row], Cell] | None = None
    """Replaces `show` with `-o wide`."""


def plain_column(name: str) -> Column[Any]:
    """Return a column for a field that tables for people lack."""

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
"""Shortest width of a shortened column of names."""
ALWAYS: Final = 9
"""The weight of columns that are never dropped."""


def shrinks(column: Column[Any]) -> bool:
    """Return whether a column may be shortened: names, whose beginning says most."""
    return column.align == "left" and column.weight >= ALWAYS


def fitting(columns: Sequence[Column[Any]], widths: Sequence[int], available: int) -> list[int]:
    """Return the indices of the columns to keep: the lightest are dropped until the rest, with short names, fits."""
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
"""Lines from which a screen has room for a page's usual rows."""


@dataclass(frozen=True)
class PageOptions:
    """Columns, lines, colours and characters of a page, and whether all columns are wanted."""

    width: int = UNLIMITED
    color: bool = False
    ascii_only: bool = False
    plain: bool = False
    """For a screen reader: no bars, no pictures, no tables, one item per line."""
    wide: bool = False
    height: int | None = None
    """Lines of a screen that is redrawn; None for a page that scrolls."""

    def limit(self, usual: int, low: int) -> int:
        """Return the number of rows to show: fewer on a screen with few lines."""
        return usual if self.height is None or self.height >= _HIGH else low
