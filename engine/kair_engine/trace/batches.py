"""Steps read in batches, and the memory that they take: what is kept, what is refused.

Batches of steps that are read together.

Reduces a recording part by part: each part's steps come to a small table, and those are put together.

Wherever the parts are reduced, they are the same ones, and their tables are put together in the same order: so a
cluster gives the very answer that one process does.

Steps that were read, kept in memory for the questions that follow.

Refuses a step that takes more memory than there is, before any of it is taken.

Keeps freed memory in the process: arrays of the next step then need no fresh pages.
"""

import ctypes
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from kair_engine.errors import InputError
from kair_engine.progress import counted
from kair_engine.trace.model import Trace

if TYPE_CHECKING:
    from kair_engine.trace.operations import Operations


ROWS_AT_A_TIME = 500_000
"""Steps are read together up to this many operations: a scan of its own for each small step costs 10 ms."""


def step_batches(trace: Trace, operations: int = ROWS_AT_A_TIME) -> Iterator[list[int]]:
    """Yield the chosen steps in order, as few batches as hold so many operations each, at least one step, and about
    evenly.

    A few steps left over for the last would tell little of how long their operations usually take.
    """
    of_steps = operations_of_steps(trace)
    batches = _filled(of_steps, operations)
    even = _even(of_steps, len(batches))
    yield from (
        even if all(len(one) == 1 or sum(map(of_steps.__getitem__, one)) <= operations for one in even) else batches
    )


def _filled(of_steps: Mapping[int, int], operations: int) -> list[list[int]]:
    batches: list[list[int]] = []
    held = 0
    for step, of_step in of_steps.items():
        if not batches or held + of_step > operations:
            batches.append([])
            held = 0
        batches[-1].append(step)
        held += of_step
    return batches


def _even(of_steps: Mapping[int, int], count: int) -> list[list[int]]:
    """So many batches at most, by which of so many equal parts of all operations a step's middle lies in."""
    batches: dict[int, list[int]] = {}
    part, held = max(sum(of_steps.values()) / max(count, 1), 1.0), 0.0
    for step, of_step in of_steps.items():
        batches.setdefault(int((held + of_step / 2) / part), []).append(step)
        held += of_step
    return list(batches.values())


TWICE_AT_A_TIME = 2 * ROWS_AT_A_TIME
"""The same where steps are only looked at: row groups hold several, each of which would decode all of them."""
SAMPLE = 1_000_000
"""Operations of steps that are looked at closely, more or less: a step is looked at as a whole."""


def first_steps(trace: Trace, steps: Iterable[int]) -> list[int]:
    """Return the first of some steps that fit into the sample, and one at least."""
    of_steps, held, chosen = operations_of_steps(trace), 0, list[int]()
    for step in steps:
        held += of_steps[step]
        if chosen and held > SAMPLE:
            break
        chosen.append(step)
    return chosen


def operations_of_steps(trace: Trace) -> dict[int, int]:
    """Return the chosen steps in order, and how many operations each has on all ranks."""
    rows = dict.fromkeys(trace.steps, 0)
    for step, of_rank in zip(trace.job.step_times.step, trace.job.step_times.operations, strict=True):
        if step in rows:
            rows[step] += of_rank
    return rows


Table = TypeVar("Table")


class Workers(Protocol):
    """Processes that reduce parts of a recording."""

    def map(self, reduce: Callable[[Trace], Table], trace: Trace, parts: Sequence[Sequence[int]]) -> Iterator[Table]:
        """`reduce` of the trace narrowed to each part's steps, in the parts' order.

        `reduce` and what it gives go from one process to another, and see nothing of what the caller holds.
        """


def over_parts(trace: Trace, reduce: Callable[[Trace], Table], operations: int = ROWS_AT_A_TIME) -> Iterator[Table]:
    """`reduce` of every part of the chosen steps, of so many operations each, in order: on the trace's workers, or one
    after another here.
    """
    parts = list(step_batches(trace, operations))
    if trace.workers is not None:
        yield from trace.workers.map(reduce, trace, parts)
        return
    for steps in counted(parts, f"analysing {len(trace.steps):,} steps"):
        yield reduce(trace.select(steps))


Thing = TypeVar("Thing")

MOST_KEPT: Final = 3_000_000
"""Operations of all steps together, at 110 bytes each with what is derived of them: jobs of more are read each time."""


@dataclass
class StepMemory:
    """A job's steps by number. Questions may come from several threads."""

    _known: "dict[int, Operations]" = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)
    derived: dict[Hashable, Any] = field(default_factory=dict)
    """What was derived of several steps together."""

    def each(
        self, batches: Iterable[Sequence[int]], read: "Callable[[Sequence[int]], Iterable[Operations]]"
    ) -> "Iterator[Operations]":
        """Return the steps of all batches in order; `read` gives a batch.

        Steps that are not known as of one reading are read again together: what is told of several, as what usually
        is the case in them, would else depend on what was asked before.
        """
        found: list[Operations] = []
        with self._lock:
            for batch in batches:
                if not self._read_together(batch):
                    self._known.update((one.step, replace(one, remembered={})) for one in read(batch))
                found += [self._known[step] for step in batch]
        return iter(found)

    def _read_together(self, batch: Sequence[int]) -> bool:
        return all(step in self._known for step in batch) and len({id(self._known[s].name_text) for s in batch}) == 1


def derived_once(trace: Trace, name: str, make: Callable[[], Thing]) -> Thing:
    """Return what `make` derives of the trace's steps, which nobody changes: kept where the steps are."""
    if trace.memory is None:
        return make()
    known = trace.memory.derived
    if (name, trace.steps) not in known:
        known[name, trace.steps] = make()
    thing: Thing = known[name, trace.steps]
    return thing


def known_once(trace: Trace, name: str, make: Callable[[], Thing]) -> Thing:
    """Return what `make` says of the trace's steps, where that is small: it is kept as long as the trace is."""
    if (name, trace.steps) not in trace.known:
        trace.known[name, trace.steps] = make()
    thing: Thing = trace.known[name, trace.steps]
    return thing


def keeping_steps(trace: Trace, most: int = MOST_KEPT) -> Trace:
    """Return the same trace, which reads each step once where all of them, `most` operations, fit into memory."""
    return replace(trace, memory=StepMemory()) if sum(trace.job.step_times.operations) <= most else trace


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
    """Raise InputError where the largest of the chosen steps takes more, at so many bytes for each operation."""
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
    """Yield what the machine has left, and the control groups of this process: those of a batch system, or of a
    container.
    """
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


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_BLOCK: Final = 32 << 20
"""Larger arrays are mapped one by one; glibc allows no more."""
_KEPT: Final = 256 << 20
"""Free memory at the heap's end beyond this goes back to the system."""


@cache
def keep_freed_memory() -> None:
    """Tells glibc not to hand arrays of some megabytes back to the system as soon as they are freed.

    The kernel clears every page that it hands out again: of a third of the CPU time of ten million operations only a
    tenth is left. What a process takes at its peak stays the same. Elsewhere than with glibc nothing happens.
    """
    with suppress(OSError, AttributeError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_BLOCK)
        mallopt(_M_TRIM_THRESHOLD, _KEPT)
