"""Steps that were read, kept in memory for the questions that follow."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kair_engine.trace.model import Job, Trace

if TYPE_CHECKING:
    from kair_engine.trace.operations import Operations

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
        """The steps of all batches in order; `read` gives a batch.

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
    """What `make` derives of the trace's steps, which nobody changes: kept where the steps are."""
    if trace.memory is None:
        return make()
    known = trace.memory.derived
    if (name, trace.steps) not in known:
        known[name, trace.steps] = make()
    thing: Thing = known[name, trace.steps]
    return thing


def keeping_steps(trace: Trace, most: int = MOST_KEPT) -> Trace:
    """The same trace, which reads each step once where all of them, `most` operations, fit into memory."""
    return replace(trace, memory=StepMemory()) if _operations(trace.job) <= most else trace


def _operations(job: Job) -> int:
    return sum(job.step_times.operations)
