"""What the ranks of this host say of themselves, in the files beside their rings."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from kair_capture.agent.ring_reader import Trainer
from kair_capture.job import framework
from kair_capture.wire.messages import Communication


def world_size_in(run_dir: Path) -> int | None:
    """The job's size, as a rank of this host says it."""
    sizes = (one.get("world_size") for _, one in identities(run_dir))
    return next((size for size in sizes if isinstance(size, int) and 0 < size < 1 << 20), None)


def communication_in(run_dir: Path, trainer: Trainer) -> Communication | None:
    """How a rank communicates; None where it does not say, or another process of the rank does."""
    stated = _read(run_dir / f"rank-{trainer.rank}.json")
    world_size = stated.get("world_size")
    if stated.get("pid") != trainer.pid or not isinstance(world_size, int):
        return None
    try:
        seen = msgspec.convert(stated.get("communication"), framework.Communication)
        return Communication(trainer.rank, world_size, seen.sends, seen.receives, seen.groups)
    except msgspec.ValidationError:
        return None


def identities(run_dir: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The file of every rank, and what is in it; those that cannot be read are left out."""
    for path in sorted(run_dir.glob("rank-*.json")):
        if found := _read(path):
            yield path, found


def _read(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads(path.read_bytes())
        return found if isinstance(found, dict) else {}
    return {}
