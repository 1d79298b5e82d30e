"""Batches of steps that are read together."""

from collections.abc import Iterator, Mapping

from kair_engine.trace.model import Trace

ROWS_AT_A_TIME = 500_000
"""Steps are read together up to this many operations: a scan of its own for each small step costs 10 ms."""


def step_batches(trace: Trace, operations: int = ROWS_AT_A_TIME) -> Iterator[list[int]]:
    """The chosen steps in order, as few batches as hold so many operations each, at least one step, and about evenly.

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


def operations_of_steps(trace: Trace) -> dict[int, int]:
    """The chosen steps in order, and how many operations each has on all ranks."""
    rows = dict.fromkeys(trace.steps, 0)
    for step, of_rank in zip(trace.job.step_times.step, trace.job.step_times.operations, strict=True):
        if step in rows:
            rows[step] += of_rank
    return rows
