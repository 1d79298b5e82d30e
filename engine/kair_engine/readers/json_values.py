"""Converts values of untrusted JSON and pickles: each function returns one type, empty for any other.

Readers use them where a field may hold anything; a missing field has none of the types.
"""

from collections.abc import Mapping
from typing import Any


def mapping(value: object) -> Mapping[str, Any]:
    """Return an object; an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def listing(value: object) -> list[Any]:
    """Return a list; an empty one for anything else."""
    return value if isinstance(value, list) else []


def mappings(value: object) -> list[Mapping[str, Any]]:
    """Return the objects of a list, without its other entries."""
    return [one for one in listing(value) if isinstance(one, Mapping)]


def whole(value: object, otherwise: int = 0) -> int:
    """Return a number of things, a process or an id, from 0 to 2⁶²; `otherwise` for anything else."""
    return value if type(value) is int and 0 <= value < 1 << 62 else otherwise


def text(value: object, longest: int = 1000) -> str:
    """Return at most `longest` characters of a text; '' for anything else."""
    return value[:longest] if isinstance(value, str) else ""
