"""Large delays on changing ranks: what they cost, what they are called, and when they are too rare to matter."""

import numpy as np
import pytest
from support.excess_builder import COMPUTE, HOST, INPUT, STEP_NS, Percents, job, nothing

from kair_engine.localize.excess import JobExcess
from kair_engine.localize.localization import conclude, job_patterns
from kair_engine.localize.moments import scattered

CHANGING = [(0, 0), (2, 1), (4, 2), (6, 0)]
"""(step, rank) of the delays."""


def delayed(
    cells: list[tuple[int, int]], *, steps: int = 12, ranks: int = 4, percent: float = 30, row: int = HOST
) -> Percents:
    percents = nothing(steps, ranks)
    for step, rank in cells:
        percents[step, row, rank] = percent
    return percents


def test_delays_on_changing_ranks_cost_the_longest_of_each_step() -> None:
    found = scattered(job(delayed([*CHANGING, (6, 2)])), ())
    assert found is not None
    assert (found.positions, found.steps, found.cause) == ((0, 1, 2), (0, 2, 4, 6), "host")
    assert found.figures == pytest.approx({"delays": 5, "rate": 5 / 48})
    # Two ranks are late in step 6, but the job waits once: 4 times 30 % of a step in 12.
    assert found.lost_ns == pytest.approx(0.1 * STEP_NS)


@pytest.mark.parametrize(("row", "cause"), [(COMPUTE, "compute"), (INPUT, "input"), (HOST, "host")])
def test_they_are_called_after_the_work_that_took_longer(row: int, cause: str) -> None:
    found = conclude(job(delayed(CHANGING, row=row)))
    assert found.anomalies == ()
    (pattern,) = job_patterns(found)
    assert (pattern.cause, pattern.ranks, pattern.steps) == (cause, (0, 1, 2), (0, 2, 4, 6))
    assert pattern.lost_us == pytest.approx(10_000)
    assert pattern.figures == pytest.approx({"delays": 4, "rate": 4 / 48})


def idle(forward: float, backward: float) -> Percents:
    """Of the delayed ranks, in their delayed steps."""
    result = np.zeros((12, 2, 4))
    for step, rank in CHANGING:
        result[step, :, rank] = forward, backward
    return result


def seen(percent: float) -> Percents:
    """Garbage collection as the trace records it."""
    result = np.zeros((12, 4))
    for step, rank in CHANGING:
        result[step, rank] = percent
    return result


@pytest.mark.parametrize(
    ("forward", "backward", "garbage", "on_device", "called"),
    [
        (30, 0, 0, True, "garbage_collection"),
        (26, 4, 0, True, "garbage_collection"),
        (20, 10, 0, True, "host"),
        (30, 0, 0, False, "host"),
        (10, 10, 25, True, "garbage_collection"),
        (10, 0, 25, False, "garbage_collection"),
        (20, 10, 5, True, "host"),
    ],
    ids=[
        "idle in forward alone",
        "nearly so",
        "idle in backward too",
        "backward unseen without a device",
        "recorded as such",
        "recorded as such, without a device",
        "recorded, but little",
    ],
)
def test_garbage_collection_is_told_by_its_record_or_by_the_forward_pass(
    forward: float, backward: float, garbage: float, on_device: bool, called: str
) -> None:
    made = job(delayed(CHANGING), idle=idle(forward, backward), garbage=seen(garbage), on_device=on_device)
    (pattern,) = job_patterns(conclude(made))
    assert pattern.cause == called


def test_slow_compute_is_never_garbage_collection() -> None:
    (pattern,) = job_patterns(conclude(job(delayed(CHANGING, row=COMPUTE), idle=idle(30, 0))))
    assert pattern.cause == "compute"


@pytest.mark.parametrize(("percent", "told"), [(30, True), (14, False)])
def test_rare_delays_of_many_ranks_are_a_finding_where_they_cost_much(percent: float, told: bool) -> None:
    """Of 200 ranks another one is delayed in every third step: each rank's chance is 1 in 600."""
    found = conclude(job(delayed([(step, 7 * step) for step in range(0, 21, 3)], steps=21, ranks=200, percent=percent)))
    assert found.anomalies == ()
    assert [one.lost_us for one in job_patterns(found)] == ([pytest.approx(percent * 1000 / 3)] if told else [])


@pytest.mark.parametrize(
    "made",
    [
        job(delayed([])),
        job(delayed([(0, 0), (2, 1), (4, 0), (6, 1)])),
        job(delayed([(0, 0), (0, 1), (2, 2), (2, 3)])),
        job(delayed([(0, 0), (1, 1), (1, 2)], steps=2)),
        job(delayed(CHANGING, steps=50)),
        job(delayed(CHANGING, percent=9)),
    ],
    ids=["none", "two ranks", "two steps", "a short recording", "2.4 % of the step", "below a tenth of a step"],
)
def test_what_is_no_pattern(made: JobExcess) -> None:
    assert scattered(made, ()) is None


def test_delays_of_a_rank_that_was_found_do_not_count() -> None:
    assert scattered(job(delayed(CHANGING)), {2}) is None
