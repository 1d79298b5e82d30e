"""The files that evaluate.py writes: what was measured of takes, and what triage said of them, as packed JSON."""

from __future__ import annotations

import json
import lzma
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def read_answers(path: Path) -> list[dict[str, Any]]:
    """One of each take: its `document`, and its `answer`, or the `error` that kept triage from one."""
    answered: list[dict[str, Any]] = json.loads(lzma.decompress(path.read_bytes()))
    return answered


def write_answers(path: Path, answered: Sequence[dict[str, Any]], *, merge: bool) -> None:
    """In the order of their seeds, times to a µs; `merge`: beside those of other seeds that the file has."""
    seeds = {_seed(one) for one in answered}
    kept = [one for one in read_answers(path) if _seed(one) not in seeds] if merge and path.exists() else []
    whole = [{**one, "document": _to_microseconds(one["document"])} for one in (*kept, *answered)]
    content = json.dumps(sorted(whole, key=_seed), separators=(",", ":"))
    path.write_bytes(lzma.compress(content.encode(), preset=9))


def _to_microseconds(document: Any) -> Any:  # noqa: ANN401 -- JSON
    """What is in ns rounded to 1,000, which takes a quarter less room: steps take milliseconds."""
    if isinstance(document, list):
        return [_to_microseconds(one) for one in document]
    if not isinstance(document, dict):
        return document
    return {
        name: round(value, -3) if name.endswith("_ns") and isinstance(value, int | float) else _to_microseconds(value)
        for name, value in document.items()
    }


def _seed(one: dict[str, Any]) -> int:
    seed: int = one["document"]["take"]["seed"]
    return seed
