"""Sorting by several keys, and cutting rows into parts."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kair_engine.arrays import narrow, order_by, stable_order, whole_parts

NUMBERS = st.integers(-(2**62), 2**62) | st.integers(-3, 3)


@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), max_size=30))
def test_rows_are_ordered_as_tuples_are(rows: list[tuple[int, int, int]]) -> None:
    keys = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    expected = sorted(range(len(rows)), key=rows.__getitem__)
    assert order_by(*keys).tolist() == expected


def test_small_integers_do_not_overflow() -> None:
    keys = np.array([100, -100, 0], dtype=np.int8), np.array([-128, 127, 5], dtype=np.int8)
    assert order_by(*keys).tolist() == [1, 2, 0]


def test_parts_hold_as_many_as_fit_and_never_none() -> None:
    assert list(whole_parts(np.array([0, 2, 4, 20, 21, 22]), 4)) == [(0, 2), (2, 3), (3, 5)]
    assert list(whole_parts(np.array([0]), 4)) == []


@given(st.lists(NUMBERS, max_size=30))
def test_equal_rows_stay_as_they_are(numbers: list[int]) -> None:
    keys = np.array(numbers, dtype=np.int64)
    assert stable_order(keys).tolist() == sorted(range(len(numbers)), key=numbers.__getitem__)
    assert keys.tolist() == numbers


@given(st.lists(NUMBERS, max_size=5))
def test_narrow_integers_hold_the_same_numbers(numbers: list[int]) -> None:
    keys = np.array(numbers, dtype=np.int64)
    assert narrow(keys).tolist() == numbers
    assert narrow(keys, np.int32).itemsize >= 4
    assert narrow(np.array([-128, 127])).itemsize == 1
    assert narrow(np.array([128])).itemsize == 2
