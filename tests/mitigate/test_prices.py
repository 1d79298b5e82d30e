"""What sizes and restarts would save, from recorded steps."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kair_mitigate.policy.prices import deadline, parts_done, replayed_s, resizing, restarting
from kair_mitigate.policy.rates import Fit, Recorded

Ints = npt.NDArray[np.int64]
Rows = npt.ArrayLike

EVEN = np.array([16, 16, 16])
NONE = np.zeros(3)


def recorded(compute_s: Rows, rest_s: float = 0.02, sizes: Ints = EVEN) -> Recorded:
    compute = np.asarray(compute_s, dtype=float)
    return Recorded(compute, np.broadcast_to(sizes, compute.shape).astype(float), np.full(len(compute), rest_s))


def fit(slope: Rows, two_sizes: bool = False) -> Fit:
    return Fit(NONE, np.asarray(slope), np.full(3, two_sizes))


def test_replay_scales_every_recorded_step() -> None:
    steps = recorded([[0.064, 0.192, 0.064], [0.064, 0.240, 0.080]])
    # 192 * 6 / 16 = 72 and 64 * 21 / 16 = 84; 240 * 6 / 16 = 90 and 80 * 21 / 16 = 105 ms; the rest is 20.
    assert replayed_s(steps, np.array([21, 6, 21]), NONE) == pytest.approx((0.084 + 0.105) / 2 + 0.02)


def test_a_fixed_part_is_not_scaled() -> None:
    # 16 samples' worth is fixed: half the samples take 3/4 of the time.
    steps = recorded([[0.064, 0.192, 0.064]])
    assert replayed_s(steps, np.array([16, 8, 24]), np.full(3, 16.0)) == pytest.approx(0.192 * 24 / 32 + 0.02)


def test_steps_of_different_plans_are_replayed_alike() -> None:
    steps = recorded([[0.064, 0.192, 0.064], [0.084, 0.072, 0.084]], sizes=np.array([[16, 16, 16], [21, 6, 21]]))
    assert replayed_s(steps, EVEN, NONE) == pytest.approx(0.192 + 0.02)


def test_equal_units_with_noise_are_longer_than_their_median() -> None:
    rng = np.random.default_rng(0)
    steps = recorded(0.08 * np.exp(0.03 * rng.standard_normal((500, 64))), sizes=np.full(64, 16))
    # E[max] of 64 equal units with 3 % noise is 1.07.
    assert replayed_s(steps, np.full(64, 16), np.zeros(64)) == pytest.approx(0.08 * 1.07 + 0.02, rel=0.01)


def test_the_first_proposal_is_a_range_and_a_fitted_one_is_not() -> None:
    steps, wanted = recorded([[0.064, 0.192, 0.064]] * 3), np.array([21, 6, 21])
    first = resizing(steps, EVEN, wanted, fit([0.004, 0.012, 0.004]), 0.4)
    assert first.now_s == pytest.approx(0.212)
    assert first.after_s == pytest.approx(0.104)
    assert first.worst_after_s == pytest.approx(0.02 + 0.192 * (0.4 + 0.6 * 6 / 16))
    assert first.now_s > first.worst_after_s > first.after_s
    fitted = resizing(steps, EVEN, wanted, fit([0.004, 0.012, 0.004], two_sizes=True), 0.4)
    assert fitted.after_s == fitted.worst_after_s


@settings(derandomize=True, max_examples=40)
@given(st.lists(st.floats(0.01, 1), min_size=3, max_size=3), st.floats(0, 0.9))
def test_sizes_that_stay_save_nothing(compute: list[float], share: float) -> None:
    price = resizing(recorded([compute]), EVEN, EVEN, fit(np.array(compute) / 16), share)
    assert price.saving == pytest.approx(0)
    assert price.worst_after_s == pytest.approx(price.now_s)


def test_without_a_step_there_is_no_price() -> None:
    with pytest.raises(ValueError, match="no step"):
        replayed_s(recorded(np.zeros((0, 3))), EVEN, NONE)


@pytest.mark.parametrize(
    ("steps_left", "lost_steps", "already", "holds"),
    [
        (1000, 0, 60, True),  # saves 100 s for 60
        (1000, 0, 20, True),  # has cost a third of a restart
        (1000, 0, 19, False),  # has not yet
        (600, 0, 600, False),  # saves exactly what it costs
        (1000, 250, 60, False),  # 250 steps of .2 s are done again
        (1000, 150, 60, True),
    ],
)
def test_break_even_of_a_restart(steps_left: int, lost_steps: int, already: int, holds: bool) -> None:
    price = restarting(0.2, 0.1, steps_left, restart_s=60, lost_steps=lost_steps, already_lost_s=already)
    assert price.gain_s == pytest.approx(0.1 * steps_left)
    assert price.cost_s == pytest.approx(60 + 0.2 * lost_steps)
    assert price.holds is holds


def test_a_deadline_cuts_whole_micro_batches() -> None:
    # Of 4 micro-batches of .02, .03 and .1 s end within .1 s: all, 3 and 1.
    assert parts_done(np.array([0.08, 0.12, 0.4]), 0.1).tolist() == [1, 0.75, 0.25]
    # The first is always done.
    assert parts_done(np.array([4.0]), 0.1).tolist() == [0.25]


def test_samples_left_undone_are_in_the_deadlines_price() -> None:
    price = deadline(recorded([[0.08, 0.08, 0.32]]), EVEN, NONE, 1.25)
    # One unit does a quarter: 3/4 of the samples in .08 + .02 s.
    assert price.now_s == pytest.approx(0.34)
    assert price.after_s == pytest.approx(0.1 / 0.75)
