"""Batches of steps that are read together."""

from collections.abc import Iterator

from kair_engine.trace.model import Trace

ROWS_AT_A_TIME = 500_000
"""Steps are read together up to this many operations: a scan of its own for each small step costs 10 ms."""


def step_batches(trace: Trace, operations: int = ROWS_AT_A_TIME) -> Iterator[list[int]]:
    """The chosen steps in order, as many at a time as have so many operations together, at least one."""
    batch: list[int] = []
    held = 0
    for step, of_step in operations_of_steps(trace).items():
        if batch and held + of_step > operations:
            yield batch
            batch, held = [], 0
        batch.append(step)
        held += of_step
    if batch:
        yield batch


def operations_of_steps(trace: Trace) -> dict[int, int]:
    """The chosen steps in order, and how many operations each has on all ranks."""
    rows = dict.fromkeys(trace.steps, 0)
    for step, of_rank in zip(trace.job.step_times.step, trace.job.step_times.operations, strict=True):
        if step in rows:
            rows[step] += of_rank
    return rows
