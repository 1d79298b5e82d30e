"""Who lacks a core for far longer than all peers is accused, as the kernel measured; in percent of the step."""

import numpy as np
import pytest
from support.excess_builder import COMPUTE, STEP_NS, job, nothing
from support.waiting import waiting_for

from kair_engine.arrays import Floats
from kair_engine.localize.anomalies import Anomaly
from kair_engine.localize.excess import JobExcess
from kair_engine.timeline.processor_time import ProcessorTimes
from kair_engine.triage.ranks.runqueue_wait import runqueue_wait_anomalies

STEPS, SLOW = 12, 1
ALL = np.ones(STEPS)


def late(percent: float, ranks: int, steps: np.ndarray) -> JobExcess:
    """One rank computes for so much longer by the clock in some of the steps."""
    percents = nothing(len(steps), ranks)
    percents[:, COMPUTE, SLOW] = percent * steps
    return job(percents - np.median(percents, axis=2, keepdims=True), on_device=False)


def measured(lacked: Floats) -> ProcessorTimes:
    """Ready without a core: (steps × ranks)."""
    steps, ranks = lacked.shape
    computed, untold = np.full((ranks, steps), 0.6 * STEP_NS), np.full((ranks, steps), np.nan)
    ready = lacked.T / 100 * STEP_NS
    return ProcessorTimes(np.arange(ranks), np.arange(steps), computed, ready, untold, untold, untold, untold)


def told(
    lacks: float, *others: float, late_by: float = 14, waited: float = 0.5, steps: np.ndarray = ALL
) -> list[Anomaly]:
    """`lacks` is what SLOW lacks a core for in some steps, 2 in the others; `waited` the share of waiting for it."""
    lacked = np.tile(np.insert(np.array(others), SLOW, 2.0), (len(steps), 1))
    lacked[steps > 0, SLOW] = lacks
    ranks = len(others) + 1
    blamed = waiting_for(SLOW, waited, ranks=ranks, steps=len(steps))
    return list(runqueue_wait_anomalies(late(late_by, ranks, steps), blamed, measured(lacked)))


@pytest.mark.parametrize("others", [(2.0,), (2.0, 1.0, 3.0)])
def test_whoever_lacks_a_core_by_a_tenth_of_the_step_is_accused(others: tuple[float, ...]) -> None:
    (found,) = told(14, *others)
    assert (found.kind, found.positions, found.since) == ("persistent", (SLOW,), None)
    assert found.p_value < 0.05
    assert found.excess_ns == pytest.approx(0.14 * STEP_NS)


def test_nobody_is_who_shares_a_core_with_another() -> None:
    assert told(14, 2, 13) == []
    assert told(14, 2, 13, 2) == []


def test_nobody_is_for_less_than_that_nor_for_a_spell() -> None:
    assert told(11, 2) == []
    assert told(40, 2, late_by=40, steps=np.arange(STEPS) < 8) == []
    assert told(40, 2, late_by=40, steps=np.ones(7)) == [], "so few steps are all one spell"
    assert len(told(40, 2, late_by=40, steps=np.ones(8))) == 1


def test_lack_of_cores_while_waiting_makes_nobody_late() -> None:
    assert told(14, 2, late_by=2) == []
    # Where the clock does not show it, those that wait do: by half of it.
    assert len(told(14, 2, late_by=2, waited=0.9)) == 1


def test_who_lacks_a_core_since_some_step_is_accused_since_then() -> None:
    (found,) = told(20, 2, steps=np.arange(24) >= 12)
    assert (found.positions, found.since) == ((SLOW,), 12)


def test_what_was_not_measured_says_nothing() -> None:
    of = late(14, 2, np.ones(STEPS))
    assert list(runqueue_wait_anomalies(of, waiting_for(SLOW, 0.9, ranks=2, steps=STEPS), None)) == []
