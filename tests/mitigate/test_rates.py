"""Rows of steps become seconds a step and seconds a sample of every unit."""

import numpy as np
import numpy.typing as npt
import pytest

from kair_mitigate.policy.rates import LEFT_OUT, LONG_WINDOW, Rates

Ints = npt.NDArray[np.int64]
Values = npt.ArrayLike

EVEN = np.array([16, 16, 16])
UNEVEN = np.array([20, 8, 20])


def feed(rates: Rates, steps: int, sizes: Ints, fixed: Values, slope: Values, begin: int = 0) -> int:
    """Steps of units that compute exactly `fixed + slope * sizes`."""
    for step in range(begin, begin + steps):
        rates.add(step, np.asarray(fixed) + np.asarray(slope) * sizes, sizes, rest_s=0.02)
    return begin + steps


def test_with_one_size_seen_all_computing_depends_on_it() -> None:
    rates = Rates(3)
    feed(rates, 20, EVEN, [0.0, 0.016, 0.032], [0.004, 0.004, 0.012])
    fit = rates.fitted()
    assert fit.fixed_s.tolist() == [0, 0, 0]
    assert fit.slope_s == pytest.approx([0.004, 0.005, 0.014])
    assert not fit.two_sizes.any()


def test_two_sizes_tell_the_fixed_part() -> None:
    """It is worth four samples, and the last unit is three times as slow in all that it does."""
    rates = Rates(3)
    fixed, slope = np.array([0.016, 0.016, 0.048]), np.array([0.004, 0.004, 0.012])
    after = feed(rates, 20, EVEN, fixed, slope)
    feed(rates, 20, UNEVEN, fixed, slope, after)
    fit = rates.fitted()
    assert fit.fixed_s == pytest.approx(fixed, rel=0.05)
    assert fit.slope_s == pytest.approx(slope, rel=0.05)
    assert fit.two_sizes.all()
    assert fit.times(EVEN) == pytest.approx(fixed + slope * 16, rel=0.01)
    # And it stays known when a unit gets slower as a whole.
    feed(rates, 40, UNEVEN, 3 * fixed, 3 * slope, after + 20)
    assert rates.fitted().fixed_s == pytest.approx(3 * fixed, rel=0.05)


def test_noise_of_small_changes_is_shared_and_a_large_one_of_its_own_counts() -> None:
    """Units run one program: what the one that changed most tells counts for those that hardly changed."""
    rates = Rates(3)
    after = feed(rates, 20, np.array([16, 16, 16]), 0.016, 0.004)
    feed(rates, 20, np.array([20, 8, 20]), [0.016 + 0.006, 0.016, 0.016 - 0.006], 0.004, after)
    assert rates.fitted().fixed_samples == pytest.approx(np.full(3, 4.0), abs=2.0)
    alone = Rates(3)
    fixed = [0.016, 0.064, 0.016]
    after = feed(alone, 20, np.array([16, 16, 16]), fixed, 0.004)
    for sizes in ([6, 36, 6], [21, 6, 21], [6, 36, 6]):
        after = feed(alone, 20, np.array(sizes), fixed, 0.004, after)
    usual, own, _ = alone.fitted().fixed_samples
    assert (usual < 6, own > 10) == (True, True)


def test_a_small_change_of_size_tells_nothing() -> None:
    rates = Rates(2)
    after = feed(rates, 20, np.array([40, 40]), 0.1, 0.004)
    feed(rates, 20, np.array([41, 39]), 0.1, 0.004, after)
    assert not rates.fitted().two_sizes.any()


def test_the_first_steps_of_a_plan_are_left_out() -> None:
    rates = Rates(3)
    after = feed(rates, 20, EVEN, 0.0, 0.004)
    assert rates.counted == 20 - LEFT_OUT
    feed(rates, LEFT_OUT, UNEVEN, 5.0, 0.004, after)
    assert rates.counted == 0
    # Until steps are counted the units are expected to take as long as was fitted.
    assert rates.fitted().times(UNEVEN) == pytest.approx(0.004 * UNEVEN)
    feed(rates, 3, UNEVEN, 0.0, 0.004, after + LEFT_OUT)
    assert rates.counted == 3
    assert rates.fitted().times(UNEVEN) == pytest.approx(0.004 * UNEVEN)


def test_one_long_step_is_no_change_of_speed() -> None:
    rates = Rates(3)
    after = feed(rates, 20, EVEN, 0.0, 0.004)
    rates.add(after, np.array([0.064, 0.64, 0.064]), EVEN, rest_s=0.02)
    feed(rates, 1, EVEN, 0.0, 0.004, after + 1)
    assert rates.fitted().slope_s == pytest.approx(np.full(3, 0.004))


def test_a_change_of_speed_is_known_ten_steps_later() -> None:
    rates = Rates(3)
    after = feed(rates, 20, EVEN, 0.0, 0.004)
    feed(rates, 10, EVEN, 0.0, [0.004, 0.012, 0.004], after)
    assert rates.fitted().slope_s == pytest.approx([0.004, 0.012, 0.004], rel=0.05)


def test_a_batch_cut_short_counts_by_what_was_done() -> None:
    rates = Rates(3)
    after = feed(rates, 20, EVEN, 0.0, 0.004)
    for step in range(after, after + 10):
        rates.add(step, np.array([0.064, 0.08, 0.064]), EVEN, rest_s=0.02, done=np.array([16, 4, 16]))
    assert rates.counted == 30 - LEFT_OUT
    assert rates.fitted().slope_s == pytest.approx([0.004, 0.02, 0.004], rel=0.05)


def test_units_without_a_row_keep_what_is_known_of_them() -> None:
    rates = Rates(3)
    after = feed(rates, 20, EVEN, 0.0, 0.004)
    feed(rates, 10, EVEN, [0.0, np.nan, 0.0], [0.008, 0.0, 0.008], after)
    assert rates.fitted().slope_s == pytest.approx([0.008, 0.004, 0.008], rel=0.05)


def test_the_long_window_knows_nothing_before_it_is_full_and_forgets_nothing_of_the_best() -> None:
    rates = Rates(3)
    after = feed(rates, LONG_WINDOW, EVEN, 0.0, 0.004)
    assert rates.lasting() is None
    assert rates.best() is None
    after = feed(rates, LEFT_OUT, EVEN, 0.0, 0.004, after)
    lasting = rates.lasting()
    assert lasting is not None
    assert lasting.slope_s == pytest.approx(np.full(3, 0.004))
    feed(rates, 2 * LONG_WINDOW, EVEN, 0.0, [0.004, 0.012, 0.002], after)
    lasting, best = rates.lasting(), rates.best()
    assert lasting is not None
    assert best is not None
    assert lasting.slope_s == pytest.approx([0.004, 0.012, 0.002])
    assert best.slope_s == pytest.approx([0.004, 0.004, 0.002])
    assert rates.best_rest_s == pytest.approx(0.02)


def test_recent_steps_come_in_order_at_most_those_there_are() -> None:
    rates = Rates(1)
    assert len(rates.recent(10).rest_s) == 0
    for step in range(2 * LONG_WINDOW):
        rates.add(step, np.array([float(step)]), np.array([16]))
    assert rates.recent(3).compute_s[:, 0].tolist() == [297, 298, 299]
    assert len(rates.recent(1000).rest_s) == LONG_WINDOW
