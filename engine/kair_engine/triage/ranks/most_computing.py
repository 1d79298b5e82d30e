"""Accuses whom most waiting is for, where the kernel measured that its thread computes for longer than its peers'.

What a thread computes is not longer for want of a core, as all is on a busy host that a trace shows of it.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kair_engine.arrays import Floats, present
from kair_engine.localize.anomalies import FEWEST_STEPS, Anomaly
from kair_engine.localize.excess import CLASSES, JobExcess, role_medians
from kair_engine.localize.excess_table import ExcessTable
from kair_engine.localize.large_delays import stalling
from kair_engine.localize.localization import Localization, also_slow
from kair_engine.localize.noise import above_peers
from kair_engine.localize.persistence import slow_in_class
from kair_engine.ranks import Position
from kair_engine.results.blame import BlameResult
from kair_engine.stats import TRIM, trimmed_mean
from kair_engine.timeline.processor_time import ProcessorTimes
from kair_engine.triage.ranks.most_awaited import most_awaited
from kair_engine.triage.ranks.most_stopped import HALF_OF_WAITING

_COMPUTE = CLASSES.index("compute")
_OF_THREADS = [CLASSES.index(name) for name in ("compute", "input", "host")]
"""Where computing shows."""


def computing_longer(job: JobExcess, processor: ProcessorTimes | None) -> tuple[Anomaly, ...]:
    """What the tests of stage 1 say of single ranks by what their threads computed; empty if that was not measured."""
    if processor is None or not processor.tells_all or len(job.steps) < FEWEST_STEPS:
        return ()
    table = _table(job, _computed_ns(job, processor))
    steady = (one for code in present(job.role) for one in slow_in_class(table, _COMPUTE, code))
    return tuple(one for one in (*steady, *stalling(table)) if len(one.positions) == 1)


def with_most_computing(found: Localization, blamed: BlameResult, longer: Sequence[Anomaly]) -> Localization:
    """`found`, with an anomaly more where most waiting is for a rank of those that compute `longer`, and not found."""
    if not longer:
        return found
    place = most_awaited(found, blamed, most_of_waiting=HALF_OF_WAITING)
    alone = next((one for one in longer if one.positions == (place,)), None)
    return found if place is None or alone is None else also_slow(found, _in_its_class(found.job, place, alone))


def _computed_ns(job: JobExcess, processor: ProcessorTimes) -> Floats:
    """(steps × ranks): what the training threads computed; of steps in which that is not known, the rank's median."""
    rows = np.searchsorted(processor.ranks, job.ranks)
    columns = np.searchsorted(processor.steps, [step.step for step in job.steps])
    computed = processor.cpu_ns[rows][:, columns].T
    return np.where(np.isnan(computed), np.nanmedian(computed, axis=0), computed)


def _table(job: JobExcess, computed: Floats) -> ExcessTable:
    """What was computed as all that there is of compute time."""
    excess, work = np.zeros_like(job.by_step_ns), np.zeros_like(job.work_ns)
    excess[:, _COMPUTE], work[_COMPUTE] = computed - role_medians(computed, job.role), np.median(computed, axis=0)
    return ExcessTable(job.role, job.unit, excess, job.step_times_ns, work, {})


def _in_its_class(job: JobExcess, place: Position, found: Anomaly) -> Anomaly:
    """As a slowness in what the rank loses most in by the clock."""
    members = np.flatnonzero(job.role == job.role[place])
    of_class = np.nan_to_num(job.by_step_ns[:, _OF_THREADS][:, :, members], nan=0.0)
    at = int(np.searchsorted(members, place))
    lost = [float(trimmed_mean(above_peers(of_class[:, row], at), TRIM)) for row in range(len(_OF_THREADS))]
    most = int(np.argmax(lost))
    return replace(found, class_index=_OF_THREADS[most], excess_ns=max(lost[most], 0.0))
