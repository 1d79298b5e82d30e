"""Distributions and estimators against scipy, which the engine does not load for them."""

import random

import numpy as np
import pytest
import scipy
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kair_engine.stats import (
    benjamini_hochberg,
    beta_binomial_tail,
    binomial_tail,
    columns_sorted,
    known_median,
    mad,
    mad_of_sorted,
    median,
    median_of_others,
    student_t_tail,
    trimmed_mean,
)
from kair_engine.trace import format as table_format
from kair_engine.trace import operations

PROPERTY = settings(deadline=None, derandomize=True, max_examples=40)
probabilities = st.floats(0, 1)
values = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60).map(np.array)


@pytest.mark.slow
@PROPERTY
@given(t=st.floats(-1e4, 1e4), df=st.floats(0.5, 1e5))
@example(t=0.0, df=1.0)
@example(t=4.75, df=1e5)
@example(t=1e-9, df=6.0)
@example(t=60.0, df=3.7)
def test_students_t_tail_is_scipys(t: float, df: float) -> None:
    assert student_t_tail(t, df) == pytest.approx(float(scipy.stats.t.sf(t, df)), rel=1e-9, abs=1e-300)


def test_students_t_without_degrees_of_freedom_proves_nothing() -> None:
    assert student_t_tail(1e9, 0) == student_t_tail(1e9, -1) == student_t_tail(float("nan"), 5) == 1.0


@PROPERTY
@given(data=st.data(), n=st.integers(0, 4000), p=st.floats(1e-4, 0.9))
def test_the_binomial_tail_is_scipys(data: st.DataObject, n: int, p: float) -> None:
    k = data.draw(st.integers(0, n + 1))
    # Not scipy's tail itself: it gives 0 for some below 1e-250.
    terms = scipy.stats.binom.pmf(np.arange(k, n + 1), n, p)
    assert binomial_tail(k, n, p) == pytest.approx(float(terms.sum()), rel=1e-8, abs=1e-290)


def test_the_binomial_tail_at_a_certain_event() -> None:
    assert binomial_tail(3, 3, 1.0) == 1.0
    assert binomial_tail(4, 3, 1.0) == 0.0


@PROPERTY
@given(p=st.lists(probabilities, min_size=1, max_size=50).map(np.array))
def test_benjamini_hochberg_is_scipys(p: np.ndarray) -> None:
    assert benjamini_hochberg(p) == pytest.approx(scipy.stats.false_discovery_control(p), rel=1e-12)


@PROPERTY
@given(p=st.lists(probabilities, min_size=1, max_size=20).map(np.array), more=st.integers(0, 30))
def test_tests_that_were_not_listed_count_as_nothing_found(p: np.ndarray, more: int) -> None:
    padded = np.concatenate([p, np.ones(more)])
    expected = scipy.stats.false_discovery_control(padded)[: len(p)]
    assert benjamini_hochberg(p, tests=len(padded)) == pytest.approx(expected, rel=1e-12)


@PROPERTY
@given(values=values)
def test_the_trimmed_mean_is_scipys(values: np.ndarray) -> None:
    assert float(trimmed_mean(values, 0.2)) == pytest.approx(scipy.stats.trim_mean(values, 0.2), rel=1e-9, abs=1e-6)


@PROPERTY
@given(values=values)
def test_the_median_absolute_deviation_is_scipys(values: np.ndarray) -> None:
    assert mad(values) == pytest.approx(scipy.stats.median_abs_deviation(values), rel=1e-9, abs=1e-9)


def test_the_words_of_the_table_are_the_engines() -> None:
    assert operations.KIND_NAMES == table_format.KINDS
    assert operations.PHASE_NAMES == table_format.PHASES
    assert operations.STEP_SCOPE == table_format.STEP_SCOPE


@pytest.mark.parametrize(("shape", "axis"), [((1,), -1), ((7,), -1), ((8,), 0), ((5, 4), 0), ((5, 4), 1)])
def test_the_median_is_numpys(shape: tuple[int, ...], axis: int) -> None:
    values = np.random.default_rng(3).lognormal(size=shape)
    assert np.array_equal(median(values, axis), np.median(values, axis=axis))


@PROPERTY
@given(st.integers(0, 9), st.integers(1, 5), st.randoms(use_true_random=False))
def test_the_median_of_what_is_known_is_numpys(rows: int, columns: int, chance: random.Random) -> None:
    values = np.array([[chance.choice((np.nan, chance.gauss(0, 1e6))) for _ in range(columns)] for _ in range(rows)])
    values = values.reshape(rows, columns)
    for column, found in zip(values.T, known_median(values), strict=True):
        known = column[~np.isnan(column)]
        assert np.array_equal(found, np.median(known) if len(known) else np.nan, equal_nan=True)


@pytest.mark.parametrize(("k", "n"), [(0, 5), (1, 8), (8, 8), (9, 8), (3, 50), (40, 200), (600, 1000)])
@pytest.mark.parametrize(("a", "b"), [(1.0, 1.0), (1.0, 49.0), (30.5, 2.0), (0.2, 900.0)])
def test_the_beta_binomial_tail_is_scipys(k: int, n: int, a: float, b: float) -> None:
    # By its terms: its survival function is 1 less a sum, of which a small tail is lost.
    exact = scipy.stats.betabinom.pmf(np.arange(k, n + 1), n, a, b).sum()
    assert beta_binomial_tail(k, n, a, b) == pytest.approx(exact, rel=1e-9)


@PROPERTY
@given(st.integers(1, 9), st.integers(1, 3), st.sampled_from([0, 1]), st.data())
def test_the_median_of_all_others(count: int, beside: int, axis: int, data: st.DataObject) -> None:
    numbers = st.floats(-5, 5) | st.just(np.inf)
    rows = data.draw(st.lists(st.lists(numbers, min_size=count, max_size=count), min_size=beside, max_size=beside))
    told = median_of_others(np.array(rows) if axis else np.array(rows).T, axis)
    told = told if axis else told.T
    for row, of in zip(rows, told, strict=True):
        expected = [np.median(row[:at] + row[at + 1 :]) if count > 1 else np.nan for at in range(count)]
        assert of == pytest.approx(np.array(expected), nan_ok=True)


@PROPERTY
@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3), min_size=1, max_size=30), st.booleans())
def test_columns_are_sorted_and_their_deviations_told_by_their_order(rows: list[list[float]], by_column: bool) -> None:
    table = np.array(rows, order="F" if by_column else "C")
    ordered = columns_sorted(table)
    assert (ordered == np.sort(table, axis=0)).all()
    assert mad_of_sorted(ordered).tolist() == [mad(column) for column in table.T]
