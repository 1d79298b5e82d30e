"""Machine code and scipy give the same distances, and the dearer start is paid for by many ranks only."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kair_engine.arrays import Floats
from kair_engine.localize import compiled_distances as compiled
from kair_engine.localize import distances as backend
from kair_engine.localize.paper import ks_scores


def scored(curves: Floats, pays_from: float) -> list[float]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(backend, "PAYS_FROM", pays_from)
        patched.setattr(backend, "_machine_code", lambda: compiled)
        return ks_scores(curves).tolist()


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 1 << 32),
    shape=st.tuples(st.integers(1, 9), st.integers(1, 40)),
    most=st.sampled_from([0, 3, 1000, 1 << 15, 1 << 17]),
    share=st.sampled_from([1, 0.25, 0.3]),
)
@example(0, (9, 33), 1 << 30, 1)
def test_machine_code_gives_the_very_same_scores(seed: int, shape: tuple[int, int], most: int, share: float) -> None:
    counts = np.random.default_rng(seed).integers(0, most, shape, endpoint=True).cumsum(axis=1) * float(share)
    assert scored(counts, 0) == scored(counts, np.inf)


@pytest.mark.parametrize("apart", [0, 1, 32_765, 32_766, 32_767, 32_768, 65_536, 1 << 40])
def test_ranks_that_are_far_apart_are_not_counted_as_near(apart: int) -> None:
    assert scored(np.array([[1.0, 7.0], [1.0, 7.0 + apart]]), 0) == [apart, apart]


def test_machine_code_is_loaded_for_many_comparisons_only(monkeypatch: pytest.MonkeyPatch) -> None:
    curves = np.ones((20, 10))
    monkeypatch.setattr(backend, "PAYS_FROM", 10_000)
    monkeypatch.setattr(backend, "_machine_code", lambda: pytest.fail("half a second for nothing"))
    assert backend.distances_of(curves, 4)[1] is backend.by_scipy
    monkeypatch.setattr(backend, "_machine_code", lambda: compiled)
    assert backend.distances_of(curves, 5)[1] is compiled.distances


def test_where_machine_code_cannot_be_made_scipy_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("cannot cache function: no locator available")

    monkeypatch.setattr(backend, "PAYS_FROM", 0)
    monkeypatch.setattr(backend, "find_spec", lambda _: object())
    monkeypatch.setattr(compiled, "warm_up", fail)
    backend._machine_code.cache_clear()
    assert backend.distances_of(np.ones((2, 3)), 1)[1] is backend.by_scipy
    backend._machine_code.cache_clear()
