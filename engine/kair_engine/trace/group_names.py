"""Parses the ranks in the texts of process groups."""

import re
from functools import lru_cache
from typing import Final

_RANKS: Final = re.compile(r"\[\s*(\d{1,9}(?:\s*,\s*\d{1,9})*)\s*\]$")


@lru_cache(maxsize=4096)
def listed_ranks(group: str | None) -> tuple[int, ...]:
    """Return the ranks at the end of a group's text, in the group's order; empty if it lists none."""
    listed = _RANKS.search(group or "")
    return tuple(int(number) for number in listed[1].split(",")) if listed else ()
