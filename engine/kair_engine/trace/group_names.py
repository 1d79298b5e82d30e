"""What the texts of process groups list: the groups' ranks, in order."""

import re
from functools import lru_cache
from typing import Final

_RANKS: Final = re.compile(r"\[\s*(\d{1,9}(?:\s*,\s*\d{1,9})*)\s*\]$")


@lru_cache(maxsize=4096)
def listed_ranks(group: str | None) -> tuple[int, ...]:
    """Return the ranks that a group's text ends with, by their places; none where it lists none."""
    listed = _RANKS.search(group or "")
    return tuple(int(number) for number in listed[1].split(",")) if listed else ()
