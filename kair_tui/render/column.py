"""Columns of a table for people, and the styles of their cells."""

from collections.abc import Callable
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from kair_engine.frozen import dataclass

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
    """A column for a field that the tables for people do not have."""

    def show(row: object) -> str:
        value = getattr(row, name)
        if isinstance(value, float):
            return f"{value:.6g}"
        if isinstance(value, tuple):
            return " ".join(map(str, value))
        return "–" if value is None else str(value)

    return Column(name, name, show, align="left", weight=9)
