"""The files that evaluate.py writes: what was measured of takes, and what triage said of them, as packed JSON."""

from __future__ import annotations

import json
import lzma
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

_MOMENTS: Final = {"begin_ns", "end_ns", "spells"}
"""Of one clock."""
_DIGITS: Final = -4
"""Of ns: what is kept."""


def read_answers(path: Path) -> list[dict[str, Any]]:
    """One of each take: its `document`, and its `answer`, or the `error` that kept triage from one."""
    answered: list[dict[str, Any]] = json.loads(lzma.decompress(path.read_bytes()))
    return answered


def write_answers(path: Path, answered: Sequence[dict[str, Any]], *, merge: bool) -> None:
    """In the order of their seeds, packed; `merge`: beside those of other seeds that the file has."""
    seeds = {_seed(one) for one in answered}
    kept = [one for one in read_answers(path) if _seed(one) not in seeds] if merge and path.exists() else []
    whole = [{**one, "document": _packed(one["document"])} for one in (*kept, *answered)]
    content = json.dumps(sorted(whole, key=_seed), separators=(",", ":"))
    path.write_bytes(lzma.compress(content.encode(), preset=9))


def _packed(document: dict[str, Any]) -> dict[str, Any]:
    """Times to 10 µs, moments since the take's first step: both take less room, and steps take milliseconds."""
    steps = (step for rank in document["ranks"] for step in rank["steps"])
    first = min((step["begin_ns"] for step in steps if "begin_ns" in step), default=0)
    packed: dict[str, Any] = _rounded(document, first)
    return packed


def _rounded(value: Any, first: int, name: str = "") -> Any:  # noqa: ANN401 -- JSON
    """`value`, which its object calls by `name`."""
    if isinstance(value, list):
        return [_rounded(one, first, name) for one in value]
    if isinstance(value, dict):
        return {called: _rounded(one, first, called) for called, one in value.items()}
    if name in _MOMENTS:
        return round(value - first, _DIGITS)
    return round(value, _DIGITS) if name.endswith("_ns") and isinstance(value, int | float) else value


def _seed(one: dict[str, Any]) -> int:
    seed: int = one["document"]["take"]["seed"]
    return seed
