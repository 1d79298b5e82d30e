"""The longest unit takes as short as it can; the batch is given out whole."""

from itertools import product

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kair_mitigate.policy.split import half_way, split, split_in_micro_batches

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SIZES = st.integers(0, 40)


def test_a_unit_three_times_as_slow_takes_a_third() -> None:
    sizes = split(np.zeros(4), np.array([1.0, 1.0, 1.0, 3.0]), 40, np.ones(4, dtype=int), np.full(4, 40))
    assert sizes.tolist() == [12, 12, 12, 4]


def test_a_fixed_part_is_paid_in_samples() -> None:
    sizes = split(np.array([0.0, 6.0]), np.ones(2), 20, np.zeros(2, dtype=int), np.full(2, 20))
    assert sizes.tolist() == [13, 7]


def test_one_unit_takes_all() -> None:
    assert split(np.ones(1), np.ones(1), 16, np.zeros(1, dtype=int), np.full(1, 64)).tolist() == [16]


def test_units_that_take_no_time_for_samples_take_what_they_can_hold() -> None:
    sizes = split(np.zeros(3), np.array([0.0, 1.0, 1.0]), 12, np.ones(3, dtype=int), np.full(3, 8))
    assert sizes.tolist() == [8, 2, 2]


def test_a_unit_that_dominates_gives_back_more_than_once() -> None:
    # The slow unit's lowest number makes every step long enough for all others together to hold far more.
    sizes = split(np.array([100.0, 0.0, 0.0]), np.full(3, 1e-3), 30, np.array([5, 1, 1]), np.full(3, 1000))
    assert sizes.sum() == 30
    assert sizes[0] == 5


@pytest.mark.parametrize("seed", range(4))
def test_no_other_sizes_are_better(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(100):
        units = int(rng.integers(1, 5))
        fixed, slope = rng.choice([0, 0.5, 1, 7], units) * rng.random(units), rng.choice([0, 1e-6, 0.1, 1, 9], units)
        slope = slope * rng.choice([1.0, rng.random()], units)
        low = rng.integers(0, 3, units)
        high = low + rng.integers(0, 7, units)
        batch = int(rng.integers(low.sum(), high.sum() + 1))
        sizes = split(fixed, slope, batch, low, high)
        assert sizes.sum() == batch
        assert (sizes >= low).all()
        assert (sizes <= high).all()
        assert (fixed + slope * sizes).max() <= best_by_trying(fixed, slope, batch, low, high) * (1 + 1e-9)


def best_by_trying(fixed: Floats, slope: Floats, batch: int, low: Ints, high: Ints) -> float:
    every = np.array(list(product(*(range(a, b + 1) for a, b in zip(low, high, strict=True)))))
    return float((fixed + slope * every[every.sum(axis=1) == batch]).max(axis=1).min())


@pytest.mark.parametrize("seed", range(2))
def test_no_other_micro_batches_are_better(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(60):
        units, most = int(rng.integers(1, 4)), int(rng.integers(1, 4))
        fixed, slope, low = rng.random(units), rng.random(units), rng.integers(0, 2, units)
        largest = rng.integers(1, 5, units)
        batch = int(rng.integers(low.sum(), (largest * most).sum() + 1))
        sizes, micro = split_in_micro_batches(fixed, slope, batch, low, largest, most=most)
        assert sizes.sum() == batch
        assert (sizes <= micro * largest).all()
        assert micro.max() <= most
        every = np.array(list(product(*(range(a, b * most + 1) for a, b in zip(low, largest, strict=True)))))
        every = every[every.sum(axis=1) == batch]
        times = np.maximum(-(-every // largest), 1) * fixed + slope * every
        assert (micro * fixed + slope * sizes).max() <= times.max(axis=1).min() * (1 + 1e-9)


def test_2048_units_give_out_the_batch() -> None:
    rng = np.random.default_rng(0)
    fixed, slope = rng.uniform(0, 0.05, 2048), rng.uniform(0.001, 0.02, 2048)
    sizes = split(fixed, slope, 16 * 2048, np.full(2048, 2), np.full(2048, 64))
    assert sizes.sum() == 16 * 2048
    free = (sizes > 2) & (sizes < 64)
    # Among units with room a further sample of any would be the longest.
    assert (fixed + slope * (sizes + 1))[free].min() >= (fixed + slope * sizes)[free].max() - 1e-12


@pytest.mark.parametrize("batch", [1, 65])
def test_bounds_that_cannot_hold_the_batch_are_refused(batch: int) -> None:
    with pytest.raises(ValueError, match=f"a batch of {batch} does not fit: together the units take 4 to 64 samples"):
        split(np.zeros(2), np.ones(2), batch, np.full(2, 2), np.full(2, 32))


def test_times_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        split(np.zeros(2), np.array([1.0, np.nan]), 8, np.ones(2, dtype=int), np.full(2, 8))
    with pytest.raises(ValueError, match="from 0 to its highest"):
        split(np.zeros(2), np.ones(2), 8, np.array([9, 1]), np.full(2, 8))
    with pytest.raises(ValueError, match="every unit needs"):
        split(np.zeros(2), np.ones(3), 8, np.ones(2, dtype=int), np.full(2, 8))


@settings(derandomize=True, max_examples=60)
@given(st.lists(st.tuples(SIZES, SIZES), min_size=1, max_size=12))
def test_half_way_keeps_the_sum_and_lies_between(pairs: list[tuple[int, int]]) -> None:
    now, wanted = np.array(pairs).T.copy()
    wanted[0] += max(now.sum() - wanted.sum(), 0)
    now[0] += max(wanted.sum() - now.sum(), 0)
    between = half_way(now, wanted)
    assert between.sum() == now.sum()
    assert (between >= np.minimum(now, wanted)).all()
    assert (between <= np.maximum(now, wanted)).all()


def test_half_way_rounds_towards_what_is_wanted() -> None:
    assert half_way(np.array([16, 16, 16]), np.array([21, 6, 21])).tolist() == [19, 11, 18]
    with pytest.raises(ValueError, match="sums"):
        half_way(np.array([1]), np.array([2]))
