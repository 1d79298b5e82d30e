"""A rank that is slow is told by what it loses most in, whichever class a test shows it in; in percent of the step."""

from dataclasses import replace

import numpy as np
import pytest
from support.excess_builder import COMPUTE, HOST, STEP_NS, job, nothing

from kair_engine.arrays import Floats
from kair_engine.localize.anomalies import Anomaly
from kair_engine.localize.excess import JobExcess
from kair_engine.localize.localization import Localization, also_slow, conclude
from kair_engine.triage.ranks.dominant_category import relabel_by_largest_loss

STEPS, RANKS, SLOW = 8, 2, 0
SHOWN = Anomaly("persistent", (SLOW,), HOST, 0.004, 13 / 100 * STEP_NS)
GROWS = np.arange(40.0, 40 + STEPS)


def twins(compute: Floats) -> JobExcess:
    """Of two ranks one is idle for 13 % of the step longer, and computes for so much longer in each step."""
    percents = nothing(STEPS, RANKS)
    percents[:, HOST, SLOW] = 13
    percents[:, COMPUTE, SLOW] = compute
    return job(percents, on_device=False)


def of(job: JobExcess, shown: Anomaly = SHOWN) -> Localization:
    return also_slow(replace(conclude(job), anomalies=()), shown)


def test_what_it_loses_most_in_leads() -> None:
    _, further = relabel_by_largest_loss(of(twins(GROWS))).anomalies
    assert (further.kind, further.positions, further.class_index) == ("persistent", (SLOW,), COMPUTE)
    assert further.excess_ns == pytest.approx(43.5 / 100 * STEP_NS)


@pytest.mark.parametrize(
    ("compute", "shown"),
    [
        (np.full(STEPS, 12.0), SHOWN),
        (np.where(np.arange(STEPS) < 4, 80.0, 0.0), SHOWN),
        (GROWS, replace(SHOWN, kind="intermittent")),
    ],
    ids=["it loses less there", "in half of the steps only", "it is slow in single steps"],
)
def test_else_nothing_is_added(compute: Floats, shown: Anomaly) -> None:
    assert relabel_by_largest_loss(of(twins(compute), shown)).anomalies == (shown,)


def test_steps_before_it_began_say_nothing() -> None:
    since = replace(SHOWN, since=2)
    _, further = relabel_by_largest_loss(of(twins(np.where(np.arange(STEPS) < 2, -300.0, 20.0)), since)).anomalies
    assert (further.class_index, further.since) == (COMPUTE, 2)
    assert further.excess_ns == pytest.approx(20 / 100 * STEP_NS)
