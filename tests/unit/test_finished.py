"""What had ended by some time, against looking at every operation."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kair_engine.arrays import NONE
from kair_engine.trace.operations import latest_of_begun

TIMES = st.integers(0, 40)
OPERATIONS = st.lists(st.tuples(st.integers(0, 2), TIMES, st.integers(0, 15)), max_size=40)


@pytest.mark.slow
@settings(deadline=None, derandomize=True, max_examples=200)
@given(OPERATIONS, st.lists(st.tuples(st.integers(0, 2), TIMES, st.integers(0, 20)), max_size=8))
def test_of_those_that_had_begun_the_one_that_ended_last(
    others: list[tuple[int, int, int]], asked: list[tuple[int, int, int]]
) -> None:
    rank, start, length = np.array([*others, *asked], dtype=np.int64).reshape(-1, 3).T
    ops: Any = SimpleNamespace(rank=rank, start_ns=start, end_ns=start + length)
    among, rows = np.arange(len(others)), np.arange(len(others), len(rank))
    by = start[rows] + length[rows]
    found = latest_of_begun(ops, rows, among, by)
    for row, latest, until in zip(rows, found, by, strict=True):
        fits = [at for at in among if rank[at] == rank[row] and start[at] < start[row] and ops.end_ns[at] <= until]
        assert (latest == NONE) == (not fits)
        if fits:
            assert latest in fits and ops.end_ns[latest] == ops.end_ns[fits].max()
