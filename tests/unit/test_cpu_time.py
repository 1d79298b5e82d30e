"""Who computes for longer is accused, though lack of cores hides it from the clock; in percent of the step."""

from dataclasses import replace

import numpy as np
import pytest
from support.excess_builder import COMPUTE, HOST, INPUT, STEP_NS, job, nothing
from support.waiting import waiting_for

from kair_engine.arrays import Floats
from kair_engine.localize.excess import JobExcess
from kair_engine.localize.localization import Localization, conclude
from kair_engine.timeline.processor_time import ProcessorTimes
from kair_engine.triage.ranks.cpu_time import longer_cpu_time, since_lacking, with_kernel_evidence

STEPS, RANKS, SLOW = 12, 4, 1


def busy(row: int = COMPUTE) -> JobExcess:
    """All ranks are up to 30 % slower now and then; one of them takes 8 % longer besides, in what the row says."""
    noise = np.random.default_rng(5).uniform(-15, 15, (STEPS, RANKS))
    percents = nothing(STEPS, RANKS)
    percents[:, row] = noise
    percents[:, row, SLOW] += 8
    return job(percents, on_device=False)


def computed(more: float, steps: int = STEPS) -> Floats:
    """(ranks × steps): 60 % of the step, give or take 0.5, and so much more on one rank."""
    times = np.random.default_rng(7).normal(60, 0.5, (RANKS, steps))
    times[SLOW] += more
    return times / 100 * STEP_NS


def measured(times: Floats, lacked: float = 0) -> ProcessorTimes:
    """For so many percent of the step threads are ready without a core."""
    ready, untold = np.full(times.shape, lacked / 100 * STEP_NS), np.full(times.shape, np.nan)
    return ProcessorTimes(np.arange(RANKS), np.arange(times.shape[1]), times, ready, untold, untold, untold, untold)


def looked_at(of: JobExcess, times: Floats, *, waited_for: int = SLOW, share: float = 0.8) -> Localization:
    found = conclude(of)
    assert found.anomalies == ()  # no test finds anybody by the clock
    blamed = waiting_for(waited_for, share, ranks=RANKS, steps=STEPS)
    return with_kernel_evidence(found, blamed, longer_cpu_time(of, measured(times)))


@pytest.mark.parametrize("row", [COMPUTE, INPUT, HOST])
def test_whoever_computes_for_longer_and_is_waited_for_is_accused(row: int) -> None:
    of = busy(row)
    (found,) = looked_at(of, computed(6)).anomalies
    assert (found.kind, found.positions, found.class_index) == ("persistent", (SLOW,), row)
    assert found.p_value < 0.01
    assert 0 < found.excess_ns < 0.3 * STEP_NS


@pytest.mark.parametrize(
    ("more", "waited_for", "share"),
    [(0.3, SLOW, 0.8), (6, 0, 0.8), (6, SLOW, 0.2)],
    ids=["computes as long", "another is waited for", "waited for less than the mean rank"],
)
def test_nobody_else_is(more: float, waited_for: int, share: float) -> None:
    assert looked_at(busy(), computed(more), waited_for=waited_for, share=share).anomalies == ()


def test_one_of_several_that_are_waited_for_is_accused_if_it_computes_for_longer() -> None:
    (found,) = looked_at(busy(), computed(6), share=0.3).anomalies
    assert found.positions == (SLOW,)


def test_beside_a_lack_of_cores_less_is_much() -> None:
    """Of two ranks, that share what is left of a busy core: 4 % more of the step is a tenth of what they compute."""
    percents = nothing(STEPS, 2)
    percents[:, HOST] = np.random.default_rng(5).uniform(-15, 15, (STEPS, 2))
    of = job(percents, on_device=False)
    times = computed(4)[:2] - 0.2 * STEP_NS

    def accused(of: JobExcess, times: Floats, lacked: float) -> list[tuple[int, ...]]:
        processor = replace(measured(times, lacked), ranks=np.arange(2))
        return [one.positions for one in longer_cpu_time(of, processor)]

    assert accused(of, times, lacked=0) == []
    assert accused(of, times, lacked=60) == [(SLOW,)]
    # For a few steps healthy ranks compute that much longer, next to busy neighbours.
    assert accused(replace(of, steps=of.steps[:6]), times[:, :6], lacked=60) == []


@pytest.mark.parametrize(("lacks", "accused"), [(2, True), (4, False)])
def test_whoever_has_a_core_for_itself_and_is_done_before_others_is_not_accused(lacks: float, accused: bool) -> None:
    """It computes for 6 % of the step more or a little less; others lack a core for so many of them, it for none."""
    processor = measured(computed(6), lacks)
    processor.delay_ns[SLOW] = 0
    assert bool(longer_cpu_time(busy(), processor)) is accused


def test_who_is_slow_since_it_lacks_cores_is_found_though_noise_hides_when_that_began() -> None:
    """Of two ranks one is 16 % slower from step 18 on, by the clock give or take 12, and lacks a core."""
    steps, begins = 39, 18
    noise = np.random.default_rng(1).normal(0, 6, steps)
    percents = nothing(steps, 2)
    percents[:, COMPUTE] = np.stack((-noise, noise), axis=1)
    percents[begins:, COMPUTE] += (-8, 8)
    of = job(percents, on_device=False)
    lacked = np.zeros((2, steps))
    lacked[1, begins:] = 0.2 * STEP_NS
    times = replace(measured(np.full((2, steps), 0.6 * STEP_NS)), ranks=np.arange(2), delay_ns=lacked)
    found = conclude(of)
    assert found.anomalies == () and found.begun is None
    (slow,) = since_lacking(found, times).anomalies
    assert (slow.kind, slow.positions, slow.since) == ("persistent", (1,), begins)
    assert since_lacking(found, replace(times, delay_ns=np.zeros((2, steps)))) is found
    # Who lacks cores and is no slower is not.
    nobody = conclude(job(percents * (np.arange(steps) < begins)[:, None, None], on_device=False))
    assert since_lacking(nobody, times).anomalies == ()


def test_who_computes_for_longer_since_some_step_is_accused_since_then() -> None:
    """Of two ranks one computes 8 % of the step longer in the last 12 of 30 steps: 4 % beside the mean of both."""
    steps, begins = 30, 18
    percents = nothing(steps, 2)
    percents[:, COMPUTE] = np.random.default_rng(5).uniform(-15, 15, (steps, 2))
    of, random = job(percents, on_device=False), np.random.default_rng(7)
    times = random.normal(60, 0.5, (2, steps))
    times[SLOW] += np.where(np.arange(steps) < begins, 0, 8)

    def accused(times: Floats, lacked: float = 0) -> list[tuple[tuple[int, ...], int | None]]:
        processor = replace(measured(times / 100 * STEP_NS), ranks=np.arange(2))
        processor.delay_ns[0] = lacked / 100 * STEP_NS
        return [(one.positions, one.since) for one in longer_cpu_time(of, processor)]

    assert accused(times) == [((SLOW,), begins)]
    # Whose peer lacks a core for as long meanwhile is done before it.
    assert accused(times, lacked=10) == []
    # It is like the other from then on.
    assert accused(times - 8 * (np.arange(2)[:, None] == SLOW)) == []


def test_where_it_was_not_measured_nobody_computes_for_longer() -> None:
    of, times = busy(), computed(6)
    assert longer_cpu_time(of, None) == ()
    unknown = measured(times)
    unknown = replace(unknown, delay_ns=np.where(np.arange(RANKS)[:, None] == 0, np.nan, unknown.delay_ns))
    assert longer_cpu_time(of, unknown) == ()
    assert longer_cpu_time(replace(of, steps=of.steps[:2]), measured(times)) == ()


def test_steps_in_which_it_was_not_measured_count_as_usual() -> None:
    times = computed(6)
    times[:, 3] = np.nan
    assert [one.positions for one in longer_cpu_time(busy(), measured(times)) if one.kind == "persistent"] == [(SLOW,)]
