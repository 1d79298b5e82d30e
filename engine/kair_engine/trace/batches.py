"""Reads steps in batches and limits their memory.

Batches are steps that are read together. A recording is reduced part by part: each part's steps become a small table,
and the tables are combined. The parts and the order of their tables do not depend on where they are reduced: a cluster
gives exactly the result of one process.

Steps that were read can stay in memory for later questions. A step that needs more memory than there is gets refused
before it is read. Freed memory stays in the process, so that the arrays of the next step need no fresh pages.
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
"""Limit of operations that are read together: a separate scan for each small step costs 10 ms."""


def step_batches(trace: Trace, operations: int = ROWS_AT_A_TIME) -> Iterator[list[int]]:
    """Yield the chosen steps in order, in the fewest batches of at most `operations` each (or one step), about evenly.

    A small last batch would show too little of how long its operations usually take.
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
    """Return at most `count` batches: a step goes by its middle into one of `count` equal parts of all operations."""
    batches: dict[int, list[int]] = {}
    part, held = max(sum(of_steps.values()) / max(count, 1), 1.0), 0.0
    for step, of_step in of_steps.items():
        batches.setdefault(int((held + of_step / 2) / part), []).append(step)
        held += of_step
    return list(batches.values())


TWICE_AT_A_TIME = 2 * ROWS_AT_A_TIME
"""The limit for steps that are only scanned: a row group has several, and each batch would decode all of them."""
SAMPLE = 1_000_000
"""Approximate number of operations that are examined closely; steps are examined whole."""


def first_steps(trace: Trace, steps: Iterable[int]) -> list[int]:
    """Return the first steps that fit into the sample, at least one."""
    of_steps, held, chosen = operations_of_steps(trace), 0, list[int]()
    for step in steps:
        held += of_steps[step]
        if chosen and held > SAMPLE:
            break
        chosen.append(step)
    return chosen


def operations_of_steps(trace: Trace) -> dict[int, int]:
    """Return the chosen steps in order → the number of operations on all ranks."""
    rows = dict.fromkeys(trace.steps, 0)
    for step, of_rank in zip(trace.job.step_times.step, trace.job.step_times.operations, strict=True):
        if step in rows:
            rows[step] += of_rank
    return rows


Table = TypeVar("Table")


class Workers(Protocol):
    """Processes that reduce parts of a recording."""

    def map(self, reduce: Callable[[Trace], Table], trace: Trace, parts: Sequence[Sequence[int]]) -> Iterator[Table]:
        """Yield `reduce` of the trace narrowed to each part's steps, in the parts' order.

        `reduce` and its results are sent between processes, and see none of the caller's state.
        """


def over_parts(trace: Trace, reduce: Callable[[Trace], Table], operations: int = ROWS_AT_A_TIME) -> Iterator[Table]:
    """Yield `reduce` of each part of the chosen steps in order, with `operations` each: on the trace's workers, or
    here.
    """
    parts = list(step_batches(trace, operations))
    if trace.workers is not None:
        yield from trace.workers.map(reduce, trace, parts)
        return
    for steps in counted(parts, f"analysing {len(trace.steps):,} steps"):
        yield reduce(trace.select(steps))


Thing = TypeVar("Thing")

MOST_KEPT: Final = 3_000_000
"""Operations of all steps together, at 110 bytes each with derived data: larger jobs are read again each time."""


@dataclass
class StepMemory:
    """A job's steps by number. Several threads may ask for them."""

    _known: "dict[int, Operations]" = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)
    derived: dict[Hashable, Any] = field(default_factory=dict)
    """Values derived from several steps together."""

    def each(
        self, batches: Iterable[Sequence[int]], read: "Callable[[Sequence[int]], Iterable[Operations]]"
    ) -> "Iterator[Operations]":
        """Yield the steps of all batches in order; `read` reads a batch.

        A batch that is not known from one reading is read again: values derived from several steps, such as usual
        durations, would otherwise depend on earlier questions.
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
    """Return `make`'s immutable result from the trace's steps, kept where the steps are, or for one question."""
    known = trace.derived if trace.derived is not None or trace.memory is None else trace.memory.derived
    if known is None:
        return make()
    if (name, trace.steps) not in known:
        known[name, trace.steps] = make()
    thing: Thing = known[name, trace.steps]
    return thing


def known_once(trace: Trace, name: str, make: Callable[[], Thing]) -> Thing:
    """Return `make`'s small result from the trace's steps, kept as long as the trace."""
    if (name, trace.steps) not in trace.known:
        trace.known[name, trace.steps] = make()
    thing: Thing = trace.known[name, trace.steps]
    return thing


def shared_by_stages(trace: Trace) -> Trace:
    """Return the trace so that what one stage of a question derives from its steps is there for the next ones."""
    return trace if trace.memory is not None else replace(trace, derived={})


def keeping_steps(trace: Trace, most: int = MOST_KEPT) -> Trace:
    """Return the trace so that it reads each step once, if it has at most `most` operations."""
    return replace(trace, memory=StepMemory()) if sum(trace.job.step_times.operations) <= most else trace


WHOLE: Final = 220
"""Bytes for each operation of a step that is held whole."""
REPLAYED: Final = 720
"""The same for a step that is replayed."""
IN_WINDOW: Final = 1100
"""The same for a step that is replayed with the steps around it, several times in a row."""
_NOTHING: Final = 256 << 20
"""Smaller needs are met without a look at the free memory."""
_SYSTEM: Final = Path("/proc/meminfo")
_GROUP: Final = Path("/proc/self/cgroup")
_GROUPS: Final = Path("/sys/fs/cgroup")
_chosen: list[int] = []
"""The user's limit for the memory of a step."""


def limit_memory(most: int | None) -> None:
    """Limit the bytes that a step may take; None: the memory that there is."""
    _chosen[:] = [] if most is None else [most]


def require_memory(trace: Trace, each: int = WHOLE) -> None:
    """Raise InputError if the largest of the chosen steps needs more memory, at `each` bytes per operation."""
    operations, step = max(((count, step) for step, count in operations_of_steps(trace).items()), default=(0, 0))
    needed = operations * each
    left = [*_chosen, *(_left() if needed > _NOTHING else ())]
    if not left or needed <= min(left):
        return
    text = f"step {step} has {operations:,} operations: to hold them takes {_size_text(needed)}, and there is"
    hint = "triage, localize, blame, rank and timeline read the largest steps some ranks at a time"
    raise InputError(f"{text} {_size_text(min(left))} of memory", f"{hint} ($KAIR_MAX_MEMORY sets the limit)")


def operations_that_fit(each: int) -> float:
    """Return the number of operations that fit into memory, at `each` bytes; infinite if that is unknown."""
    return max(min([*_chosen, *_left()], default=float("inf")), 0) / each


def _size_text(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{max(size, 0) / 1e6:.0f} MB"


def _left() -> Iterator[int]:
    """Yield the free memory of the machine and of this process' control groups (a batch system's, a container's)."""
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
    """Yield the free memory of a group and of all around it; cached files count as free."""
    group = Path(os.path.normpath(root / path.lstrip("/")))
    for folder in (group, *group.parents):
        if folder.is_relative_to(root):
            with suppress(OSError, ValueError):  # "max" is no number
                stated, taken = int((folder / most).read_text()), int((folder / used).read_text())
                stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                yield stated - taken + int(stat.get(reclaimable, 0))


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_BLOCK: Final = 32 << 20
"""Larger arrays are mapped one by one; glibc allows no higher limit."""
_KEPT: Final = 256 << 20
"""Free memory at the heap's end beyond this is returned to the system."""


@cache
def keep_freed_memory() -> None:
    """Make glibc keep freed arrays of some megabytes in the process.

    The kernel clears every page that it hands out again; keeping them reduces this from a third of the CPU time of ten
    million operations to a tenth. The peak stays the same. Nothing happens without glibc.
    """
    with suppress(OSError, AttributeError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_BLOCK)
        mallopt(_M_TRIM_THRESHOLD, _KEPT)


def give_back_freed_memory() -> None:
    """Return free pages between arrays to the system: what is made next would lie on top of them at the peak.

    Nothing happens without glibc.
    """
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(_KEPT)
