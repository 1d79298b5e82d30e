"""Stops in a recording of so few steps that no operation is seen twice: against other calls of the same operator."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from kair_engine.arrays import NONE, Ints
from kair_engine.whatif.operators.dependencies import OWN, REST, NodeParts
from kair_engine.whatif.operators.stops import stops_among_calls_ns, stops_ns

US, MS = 1e3, 1e6
OPERATORS, CALLS = 5, 30


def launches(stopped: dict[tuple[int, int], float]) -> tuple[NodeParts, np.ndarray, np.ndarray]:
    """One rank calls each of five operators 30 times, 10 µs each; (operator, call) → what one takes in its place."""
    operator, call = (of.ravel() for of in np.indices((OPERATORS, CALLS)))
    value = np.full(operator.size, 10 * US)
    for (which, at), time in stopped.items():
        value[which * CALLS + at] = time
    zero, count = np.zeros(operator.size, dtype=np.int32), operator.size
    parts = NodeParts(
        node=np.arange(count, dtype=np.int32),
        value_ns=value,
        rank=zero,
        step=zero,
        kind=np.full(count, 2, dtype=np.int8),
        name=operator.astype(np.int32),
        key=np.arange(count) * (REST + 1) + OWN,
        own=np.ones(count, dtype=bool),
        role=zero,
        thread=np.ones(count, dtype=bool),
        row=np.arange(count, dtype=np.int32),
        node_over_ns=np.cumsum(value),
    )
    return parts, operator, call > 0


def seldom(parts: NodeParts) -> Callable[[np.ndarray, int], Ints]:
    """Of some parts those whose operation is among them less often than so many times."""
    return lambda chosen, times: np.array(
        [row for row in np.flatnonzero(chosen) if np.count_nonzero(parts.key[chosen] == parts.key[row]) < times],
        dtype=np.int64,
    )


FOUR = {(0, 3): 25 * MS, (1, 7): 13 * MS, (2, 20): 8 * MS, (3, 29): 20 * MS}


def test_long_calls_of_several_operators_are_stops() -> None:
    parts, operator, before = launches(FOUR)
    assert stops_ns(parts).sum() == 0, "each operation is seen once: nobody knows what is usual for it"
    found = stops_among_calls_ns(parts, seldom(parts), operator.__getitem__, before.__getitem__)
    assert np.flatnonzero(found).tolist() == sorted(which * CALLS + call for which, call in FOUR)
    assert found.sum() == pytest.approx(66 * MS - 4 * 10 * US)


@pytest.mark.parametrize(
    "stopped",
    [
        pytest.param({(0, at): 20 * MS for at in (3, 9, 17, 25)}, id="one operator, which is long itself"),
        pytest.param({(which, 0): 20 * MS for which in range(OPERATORS)}, id="first calls, which load libraries"),
        pytest.param({(which, 5): 0.9 * MS for which in range(OPERATORS)}, id="shorter than a scheduler's turn"),
    ],
)
def test_what_else_is_long_is_no_stop(stopped: dict[tuple[int, int], float]) -> None:
    parts, operator, before = launches(stopped)
    assert not stops_among_calls_ns(parts, seldom(parts), operator.__getitem__, before.__getitem__).any()


def test_operations_that_are_seen_often_enough_are_held_against_themselves_alone() -> None:
    parts, operator, before = launches(FOUR)
    often = replace(parts, key=parts.name.astype(np.int64) * (REST + 1) + OWN)
    assert not stops_among_calls_ns(often, seldom(often), operator.__getitem__, before.__getitem__).any()
    assert stops_ns(often).sum() == pytest.approx(66 * MS - 4 * 10 * US)


def test_a_recording_without_operations_of_threads_has_none() -> None:
    parts, operator, before = launches(FOUR)
    of_devices = replace(parts, thread=np.zeros_like(parts.thread), kind=np.full_like(parts.kind, NONE))
    assert not stops_among_calls_ns(of_devices, seldom(of_devices), operator.__getitem__, before.__getitem__).any()
