"""The bytes that ranks gave their models, by step and rank."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from support.stopping_threads import steps

from kair_engine.timeline.inputs import batch_bytes
from kair_engine.trace.model import NOT_RECORDED

STEPS, RANKS = np.array([1, 2]), np.array([0, 2])


def test_what_is_told_of_some_steps_and_ranks(tmp_path: Path) -> None:
    made = steps(tmp_path, {})
    assert batch_bytes(made, STEPS, RANKS) is None
    times, untold = made.job.step_times, {(0, 2), (3, 1)}  # rank, step
    cells = zip(times.rank, times.step, strict=True)
    told = tuple(NOT_RECORDED if cell in untold else 100 * cell[0] + cell[1] for cell in cells)
    given = replace(made, job=replace(made.job, step_times=replace(times, given_bytes=told)))
    found = batch_bytes(given, STEPS, RANKS)
    assert found is not None
    np.testing.assert_equal(found, [[1, 201], [np.nan, 202]])
    assert batch_bytes(given, np.array([77]), RANKS) is None
