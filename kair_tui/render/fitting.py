"""Chooses a table's columns by the width that there is."""

from collections.abc import Sequence
from typing import Any, Final

from kair_tui.render.column import Column

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
    """The places of the columns to keep: the lightest go until the rest, names shortened, fits."""
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
