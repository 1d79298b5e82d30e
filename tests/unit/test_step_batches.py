"""Which steps are read together: as many as fit, none left over by itself."""

from types import SimpleNamespace
from typing import cast

import pytest

from kair_engine.trace.batches import step_batches
from kair_engine.trace.model import StepTimes, Trace


def _trace(operations: list[int]) -> Trace:
    """One rank's steps with so many operations each."""
    steps, zeros = tuple(range(len(operations))), (0,) * len(operations)
    times = StepTimes(zeros, steps, zeros, zeros, tuple(operations))
    return cast("Trace", SimpleNamespace(steps=steps, job=SimpleNamespace(step_times=times)))


@pytest.mark.parametrize(
    ("operations", "batches"),
    [
        ([], []),
        ([30], [[0]]),
        ([10] * 10, [list(range(10))]),
        ([10] * 14, [list(range(7)), list(range(7, 14))]),
        ([60, 60, 60], [[0], [1], [2]]),
        ([300, 10, 10], [[0], [1, 2]]),
        ([40, 40, 10, 90, 20], [[0, 1, 2], [3], [4]]),
    ],
    ids=["none", "one", "all fit", "evenly", "each alone", "one too large", "evenly would be too many"],
)
def test_steps_are_read_together(operations: list[int], batches: list[list[int]]) -> None:
    assert list(step_batches(_trace(operations), 100)) == batches
