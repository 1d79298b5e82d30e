"""A sample of the steps: what it saves is carried over to all by what there was to save in each."""

import numpy as np
import pytest

from kair_engine.triage.replays import StepSample


def test_a_sample_without_the_costly_steps_leaves_the_estimate() -> None:
    sample = StepSample((0, 1, 2), tuple(range(9)), np.full(9, 100.0))
    cost = np.zeros(9)
    cost[6] = 50.0
    assert sample.without_ns(np.full(3, 100.0), np.full(3, 99.0), (0, 1, 2), cost) is None


def test_what_steps_save_is_carried_over_by_what_they_had_to_save() -> None:
    cost = np.array([10.0, 20, 30, 40, 50, 60])
    sample = StepSample((1, 4), tuple(range(6)), np.full(6, 200.0))
    recorded, saved = np.array([200.0, 200.0]), 0.5 * cost[[1, 4]]
    found = sample.without_ns(recorded, recorded - saved, (1, 4), cost)
    assert found is not None
    assert found.mean_ns == pytest.approx(200 - 0.5 * 35)
    assert found.off_ns == pytest.approx(0.0)
    found = sample.without_ns(recorded, recorded - saved - [3, -3], (1, 4), cost)
    assert found is not None
    # Residuals 3 and -3 about the ratio, less what it takes up itself; t of one degree of freedom is 12.7.
    assert 12.7 * np.sqrt(18 / 2 * (4 / 6)) == pytest.approx(found.off_ns, rel=0.01)
