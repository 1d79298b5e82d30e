"""How far ranks stand out of the last steps of a running job: the watch's tests, by the functions of stage 1."""

import numpy as np
import pytest

from kair_engine.localize.anomalies import FALSE_ALARM_RATE
from kair_engine.localize.live import above_past, above_peers
from kair_engine.localize.peers import OF_STEP, OF_WORK

ONE_ROLE = np.zeros(8, np.int64)
TOLD = 5.5
"""The watch counts a test from this t on."""


def own_times(*slow: float, steps: int = 20) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Eight ranks whose steps differ by 3 %, the last ones so many times as long."""
    times = np.random.default_rng(3).normal(100, 3, (8, steps))
    times[8 - len(slow) :] *= np.array(slow)[:, None]
    return times


def test_who_is_slower_than_its_peers_stands_out_alone() -> None:
    excess, t, chance = above_peers(own_times(1.2), ONE_ROLE, OF_WORK, 0.0)
    assert excess[7] == pytest.approx(0.2, abs=0.03)
    assert np.flatnonzero(t > TOLD).tolist() == [7]
    assert np.flatnonzero(chance < FALSE_ALARM_RATE).tolist() == [7]


def test_steps_that_are_not_known_are_left_out_and_those_that_hold_all_up_count_for_nothing() -> None:
    times = own_times(1.2)
    times[:, 5] *= 9
    times[7, ::2] = times[2, 3:9] = np.nan
    excess, t, _ = above_peers(times, ONE_ROLE, OF_WORK, 0.0)
    assert excess[7] == pytest.approx(0.2, abs=0.04)
    assert np.flatnonzero(t > TOLD).tolist() == [7]


def test_what_excesses_change_by_themselves_is_no_slowness_and_two_ranks_are_nobody_s_peers() -> None:
    assert not (above_peers(own_times(1.2), ONE_ROLE, OF_WORK, 0.1)[1] > TOLD).any()
    assert not above_peers(own_times(1.2), np.repeat([0, 1, 2, 3], 2), OF_WORK, 0.0)[:2].any()


def test_who_became_slower_than_it_was_stands_out_and_what_all_became_is_nobody_s() -> None:
    past, now = own_times(steps=12).T, np.full(8, 100.0)
    now[4] = 150
    excess, t, chance = above_past(past, now, OF_WORK)
    assert excess[4] == pytest.approx(0.5, abs=0.06)
    assert np.flatnonzero(t > TOLD).tolist() == [4]
    assert chance[4] < FALSE_ALARM_RATE
    assert not (above_past(past, np.full(8, 150.0), OF_WORK)[1] > TOLD).any()
    excess, t, _ = above_past(past[:4], now, OF_WORK)
    assert np.isnan(excess).all()
    assert not t.any()
    steps = above_past(past[:, :1], np.array([150.0]), OF_STEP, relative=False)
    assert steps[0, 0] == pytest.approx(0.5, abs=0.06)
    assert steps[1, 0] > TOLD
