"""Who sleeps for longer is accused, though lack of cores hides it from the clock; in percent of the step."""

from dataclasses import replace

import numpy as np
import pytest
from support.excess_builder import COMPUTE, HOST, STEP_NS, job, nothing
from support.waiting import waiting_for

from kair_engine.arrays import Floats
from kair_engine.localize.excess import JobExcess
from kair_engine.localize.localization import Localization, conclude
from kair_engine.timeline.processor_time import ProcessorTimes
from kair_engine.triage.ranks.blocked import blocked_longer
from kair_engine.triage.ranks.cpu_time import with_kernel_evidence

STEPS, RANKS, SLOW = 24, 4, 1
SLEEPS = np.isin(np.arange(STEPS), (2, 5, 9, 10, 14, 17, 20, 23))


def lacked() -> Floats:
    """(steps × ranks): ready without a core for 20 % of the step, give or take as much."""
    return np.random.default_rng(5).uniform(0, 40, (STEPS, RANKS))


def of_sleeper(percent: float, steps: np.ndarray = SLEEPS, *, on_device: bool = False) -> JobExcess:
    """All compute for 60 % of the step; one sleeps in some of them besides."""
    percents, idle = nothing(STEPS, RANKS), lacked()
    idle[:, SLOW] += percent * steps
    percents[:, HOST] = idle - np.median(idle, axis=1)[:, None]
    made = job(percents, on_device=on_device)
    work = np.zeros((len(percents[0]), RANKS))
    work[COMPUTE] = 60

    def with_work(at: int) -> Floats:
        return (work + np.eye(len(work))[HOST][:, None] * idle[at]) / 100 * STEP_NS

    return replace(made, steps=tuple(replace(step, work_ns=with_work(at)) for at, step in enumerate(made.steps)))


def measured() -> ProcessorTimes:
    computed, untold = np.full((RANKS, STEPS), 0.6 * STEP_NS), np.full((RANKS, STEPS), np.nan)
    ready = lacked().T / 100 * STEP_NS
    return ProcessorTimes(np.arange(RANKS), np.arange(STEPS), computed, ready, untold, untold, untold, untold)


def looked_at(of: JobExcess, *, waited_for: int = SLOW, share: float = 0.5) -> Localization:
    found = conclude(of)
    assert found.anomalies == ()  # no test finds anybody by the clock
    blamed = waiting_for(waited_for, share, ranks=RANKS, steps=STEPS)
    return with_kernel_evidence(found, blamed, blocked_longer(of, measured()).longer)


def test_whoever_sleeps_now_and_then_and_is_waited_for_is_accused() -> None:
    of = of_sleeper(15)
    (found,) = looked_at(of).anomalies
    assert (found.kind, found.positions, found.class_index) == ("intermittent", (SLOW,), HOST)
    assert found.hit == tuple(np.flatnonzero(SLEEPS).tolist())
    assert found.p_value < 0.01
    (evidence,) = blocked_longer(of, measured()).evidence(of, found)
    assert (evidence.kind, evidence.ranks) == ("asleep", (SLOW,))
    assert evidence.figures == pytest.approx(
        {"asleep_us_per_step": 15 * SLEEPS.mean() / 100 * STEP_NS / 1e3, "peers_least_us": 0.0, "peers_most_us": 0.0},
        abs=1e-6,
    )


def test_whoever_sleeps_in_every_step_is_slow_persistently() -> None:
    (found,) = blocked_longer(of_sleeper(8, np.ones(STEPS)), measured()).longer
    assert (found.kind, found.positions) == ("persistent", (SLOW,))


def test_nobody_else_is() -> None:
    assert looked_at(of_sleeper(0)).anomalies == ()
    assert looked_at(of_sleeper(15), waited_for=0, share=0.8).anomalies == ()


def test_what_was_not_measured_says_nothing_nor_does_a_thread_beside_a_device() -> None:
    of = of_sleeper(15)
    assert blocked_longer(of, None).longer == ()
    unknown = replace(measured(), delay_ns=np.full((RANKS, STEPS), np.nan))
    assert blocked_longer(of, unknown).longer == ()
    assert blocked_longer(replace(of, steps=of.steps[:2]), measured()).longer == ()
    assert blocked_longer(of_sleeper(15, on_device=True), measured()).longer == ()
