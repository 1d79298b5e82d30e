"""Since when a rank differs: found where the recording shows before and after, and only there."""

import numpy as np
import pytest
from support.excess_builder import COMPUTE, STEP_NS, job, quiet

from kair_engine.localize.localization import conclude
from kair_engine.localize.onset import Onset, onset


def excess(begins: int, *, percent: float = 20.0, steps: int = 20, noise: float = 0.5, seed: int = 0) -> np.ndarray:
    """(steps × 4 ranks) in percent of the step: rank 2 is slow from one step on."""
    values = np.random.default_rng(seed).normal(0, noise, (steps, 4))
    values[begins:, 2] += percent
    return values


@pytest.mark.parametrize("begins", [4, 9, 12])
def test_the_step_is_found_in_which_a_rank_became_slow(begins: int) -> None:
    found = onset(excess(begins), 100.0)
    assert isinstance(found, Onset)
    assert (found.at, found.place) == (begins, 2)
    assert found.before_ns == pytest.approx(0, abs=0.5)
    assert found.after_ns == pytest.approx(20, abs=0.5)


@pytest.mark.parametrize(
    "values",
    [
        excess(0),
        excess(20),
        excess(10, percent=4.0),
        excess(10, noise=15.0),
        -excess(10),
    ],
    ids=["from the beginning", "never", "below 5 % of the step", "less than the noise", "faster from then on"],
)
def test_no_onset(values: np.ndarray) -> None:
    assert onset(values, 100.0) is None


@pytest.mark.parametrize(("step", "percent"), [(3, -150.0), (5, 80.0), (14, 120.0)])
def test_a_single_long_step_hides_no_onset(step: int, percent: float) -> None:
    """Medians before and after are the same with it."""
    values = excess(10)
    values[step, 2] += percent
    found = onset(values, 100.0)
    assert found is not None
    assert found.place == 2
    assert found.at in {9, 10}


@pytest.mark.parametrize("begins", [15, 17, 19])
def test_a_few_steps_at_the_end_are_a_slow_moment(begins: int) -> None:
    assert onset(excess(begins), 100.0) is None


def test_four_steps_before_and_eight_after_are_needed() -> None:
    assert onset(excess(4, steps=11), 100.0) is None
    assert onset(excess(4, steps=12), 100.0) is not None


def test_who_was_faster_before_and_is_like_the_others_now_has_no_fault_that_began() -> None:
    values = excess(20)
    values[:9, 1] -= 20
    assert onset(values, 100.0) is None


def test_spells_of_slowness_have_no_onset() -> None:
    found = 0
    for seed in range(30):
        random, values = np.random.default_rng(seed), np.zeros((24, 4))
        for step in range(1, 24):
            values[step] = 0.7 * values[step - 1] + random.normal(0, 5, 4)
        found += onset(values, 100.0) is not None
    assert found <= 1


def test_a_rank_that_became_slow_within_the_recording_is_accused_from_there() -> None:
    percents = quiet(24, 8)
    percents[12:, COMPUTE, 3] += 20
    (anomaly,) = conclude(job(percents)).anomalies
    assert (anomaly.kind, anomaly.positions, anomaly.since) == ("persistent", (3,), 12)
    # What it costs from then on, and not half of it.
    assert anomaly.excess_ns == pytest.approx(0.2 * STEP_NS, rel=0.02)


def test_a_rank_that_was_slow_from_the_beginning_has_no_onset() -> None:
    percents = quiet(24, 8)
    percents[:, COMPUTE, 3] += 20
    (anomaly,) = conclude(job(percents)).anomalies
    assert anomaly.since is None


def test_ranks_that_take_turns_at_being_slow_are_no_group_from_then_on() -> None:
    """Two of four are ahead at first and behind later, as ranks on one core are: over all steps they lose 0.6 %."""
    percents = quiet(24, 4)
    turns = np.where(np.arange(24) < 12, -10, 10) + 0.3
    percents[:, COMPUTE] += np.outer(turns, [-1, 1, -1, 1])
    assert conclude(job(percents)).anomalies == ()
