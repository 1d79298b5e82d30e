"""Refuses a step that takes more memory than there is, before any of it is taken."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from kair_engine.errors import InputError
from kair_engine.trace.model import Trace
from kair_engine.trace.steps.step_batches import operations_of_steps

WHOLE: Final = 220
"""Bytes for each operation of a step that is held whole."""
REPLAYED: Final = 720
"""The same of one that is replayed."""
IN_WINDOW: Final = 1100
"""The same of one that is replayed with the steps around it, several times in a row."""
_NOTHING: Final = 256 << 20
"""Less than that is taken without a look at what there is."""
_SYSTEM: Final = Path("/proc/meminfo")
_GROUP: Final = Path("/proc/self/cgroup")
_GROUPS: Final = Path("/sys/fs/cgroup")
_chosen: list[int] = []
"""What the user said is the most that steps may take."""


def limit_memory(most: int | None) -> None:
    """Says how many bytes a step may take at most; None: what there is."""
    _chosen[:] = [] if most is None else [most]


def require_memory(trace: Trace, each: int = WHOLE) -> None:
    """Raises InputError where the largest of the chosen steps takes more, at so many bytes for each operation."""
    operations, step = max(((count, step) for step, count in operations_of_steps(trace).items()), default=(0, 0))
    needed = operations * each
    left = [*_chosen, *(_left() if needed > _NOTHING else ())]
    if not left or needed <= min(left):
        return
    text = f"step {step} has {operations:,} operations: to hold them takes {_told(needed)}, and there is"
    hint = "triage, localize, blame, rank and timeline read the largest steps some ranks at a time"
    raise InputError(f"{text} {_told(min(left))} of memory", f"{hint} ($KAIR_MAX_MEMORY sets the limit)")


def operations_that_fit(each: int) -> float:
    """How many there is memory for, at so many bytes for each; infinite where that is not known."""
    return max(min([*_chosen, *_left()], default=float("inf")), 0) / each


def _told(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{max(size, 0) / 1e6:.0f} MB"


def _left() -> Iterator[int]:
    """What the machine has left, and the control groups of this process: those of a batch system, or of a container."""
    with suppress(OSError, ValueError, StopIteration):
        lines = _SYSTEM.read_text().splitlines()
        yield int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]) * 1024
    with suppress(OSError, ValueError):
        for line in _GROUP.read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            if not kinds:
                yield from _left_in(_GROUPS, path, "memory.max", "memory.current", "inactive_file")
            elif "memory" in kinds.split(","):
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
                yield from _left_in(_GROUPS / "memory", path, *names)


def _left_in(root: Path, path: str, most: str, used: str, reclaimable: str) -> Iterator[int]:
    """In a group and in all around it; files that are read again when they are needed count as free."""
    group = Path(os.path.normpath(root / path.lstrip("/")))
    for folder in (group, *group.parents):
        if folder.is_relative_to(root):
            with suppress(OSError, ValueError):  # "max" is no number
                stated, taken = int((folder / most).read_text()), int((folder / used).read_text())
                stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                yield stated - taken + int(stat.get(reclaimable, 0))
