"""A rank that no other communicates like is accused of idle time that no rank of the job needs; steps take 100 ms."""

import numpy as np
import pytest
from support.excess_builder import COMPUTE, HOST, STEP_NS, job, nothing

from kair_engine.localize.anomalies import Anomaly, UnmatchedRoleIdle
from kair_engine.localize.excess import JobExcess
from kair_engine.localize.localization import conclude
from kair_engine.triage.ranks.unmatched_role import with_unmatched_role_idle


def stages(idle: list[float], *, steps: int = 10, role: list[int] | None = None) -> JobExcess:
    """Each rank a stage of its own, idle for these percents of the step, and computing for unlike ones."""
    work = np.zeros((4, len(idle)))
    work[COMPUTE], work[HOST] = 10 * np.arange(1, len(idle) + 1), idle
    return job(nothing(steps, len(idle)), work=work, role=role or list(range(len(idle))), on_device=False)


def accused(of: JobExcess) -> list[Anomaly]:
    return list(with_unmatched_role_idle(conclude(of)).anomalies)


def test_the_stage_that_is_idle_far_longer_than_all_others_is_accused() -> None:
    (one,) = accused(stages([3, 40, 4, 2]))
    assert (one.kind, one.positions, one.class_index) == ("persistent", (1,), HOST)
    # The median of the others is 3 %. On top of four in ten steps: 4 · 4^−10.
    assert one.excess_ns == pytest.approx(0.37 * STEP_NS)
    assert one.p_value == pytest.approx(4 * 4.0**-10)
    assert one.unmatched_role_idle == UnmatchedRoleIdle(0.4 * STEP_NS, 0.02 * STEP_NS, 0.04 * STEP_NS)


@pytest.mark.parametrize(
    ("idle", "steps", "role"),
    [
        ([3, 20, 4, 2], 10, None),  # no fifth of the step
        ([3, 40, 15, 2], 10, None),  # another one is idle for more than a third of it
        ([3, 40, 4, 2], 3, None),  # one of four is on top in three steps by chance too often
        ([3, 40], 10, None),  # who of the two does as is usual?
        ([3, 40, 4, 2], 10, [0, 1, 1, 0]),  # each has a peer, which tests compare it with
    ],
)
def test_others_are_not(idle: list[float], steps: int, role: list[int] | None) -> None:
    assert accused(stages(idle, steps=steps, role=role)) == []
