"""Reduces a recording part by part: each part's steps come to a small table, and those are put together.

Wherever the parts are reduced, they are the same ones, and their tables are put together in the same order: so a
cluster gives the very answer that one process does.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from kair_engine.trace.model import Trace
from kair_engine.trace.steps.step_batches import step_batches

Table = TypeVar("Table")


class Workers(Protocol):
    """Processes that reduce parts of a recording."""

    def map(self, reduce: Callable[[Trace], Table], trace: Trace, parts: Sequence[Sequence[int]]) -> Iterator[Table]:
        """`reduce` of the trace narrowed to each part's steps, in the parts' order.

        `reduce` and what it gives go from one process to another, and see nothing of what the caller holds.
        """


def over_parts(trace: Trace, reduce: Callable[[Trace], Table]) -> Iterator[Table]:
    """`reduce` of every part of the chosen steps, in order: on the trace's workers, or one after another here."""
    parts = list(step_batches(trace))
    if trace.workers is not None:
        yield from trace.workers.map(reduce, trace, parts)
        return
    for steps in parts:
        yield reduce(trace.select(steps))
