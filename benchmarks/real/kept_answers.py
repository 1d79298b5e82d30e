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
    """In the order of their seeds; `merge`: beside those of other seeds that the file has."""
    seeds = {_seed(one) for one in answered}
    kept = [one for one in read_answers(path) if _seed(one) not in seeds] if merge and path.exists() else []
    content = json.dumps(sorted([*kept, *answered], key=_seed), separators=(",", ":"))
    path.write_bytes(lzma.compress(content.encode(), preset=9))


def _seed(one: dict[str, Any]) -> int:
    seed: int = one["document"]["take"]["seed"]
    return seed
