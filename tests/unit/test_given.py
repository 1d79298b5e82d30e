"""The bytes that ranks gave their models, by step and rank."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from support.stopping_threads import steps

from kair_engine.timeline.given import given_bytes
from kair_engine.trace.model import NOT_TOLD, StepTimes

STEPS, RANKS = np.array([1, 2]), np.array([0, 2])


def test_what_is_told_of_some_steps_and_ranks(tmp_path: Path) -> None:
    made = steps(tmp_path, {})
    assert given_bytes(made, STEPS, RANKS) is None
    rows = made.job.step_times.rows()
    untold = {(0, 2), (3, 1)}  # rank, step
    told = [(*row[:-1], NOT_TOLD if row[:2] in untold else 100 * row[0] + row[1]) for row in rows]
    given = replace(made, job=replace(made.job, step_times=StepTimes.of_rows(told)))
    found = given_bytes(given, STEPS, RANKS)
    assert found is not None
    np.testing.assert_equal(found, [[1, 201], [np.nan, 202]])
    assert given_bytes(given, np.array([77]), RANKS) is None
