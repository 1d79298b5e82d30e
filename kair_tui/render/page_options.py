"""Options of a page: its width, and what the place that it is for can show."""

from typing import Final

from kair_engine.frozen import dataclass

UNLIMITED: Final = 100_000
"""Off a terminal nothing is wrapped or cut: the page is wider than any line."""


@dataclass(frozen=True)
class PageOptions:
    """Columns, colours, signs, and whether all columns are wanted."""

    width: int = UNLIMITED
    color: bool = False
    ascii_only: bool = False
    wide: bool = False
