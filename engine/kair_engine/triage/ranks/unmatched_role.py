"""Accuses ranks that have no peer, where their threads (or devices) are idle far longer than all others of the job.

Stages of a pipeline compute different layers, so one of a single rank has nobody to be compared with in what it
computes. What its host keeps it idle, while it waits for nobody, has nothing to do with layers.
"""

from collections.abc import Iterator

import numpy as np

from kair_engine.arrays import zero_for_nan
from kair_engine.localize.anomalies import FALSE_ALARM_RATE, FEWEST_STEPS, Anomaly, UnmatchedRoleIdle
from kair_engine.localize.excess import CLASSES, JobExcess
from kair_engine.localize.localization import Localization, also_slow
from kair_engine.localize.noise import above_peers, steady_by_chance
from kair_engine.ranks import Position
from kair_engine.stats import TRIM, trimmed_mean

MIN_EXTRA_IDLE = 0.2
"""A rank must surely be idle longer than the others by this share of the step: the first and the last stage fetch
batches and tell losses, which takes a tenth of healthy steps."""
IDLE_RATIO = 3.0
"""A rank must be idle this many times as long as the rank that is idle longest of all others."""
MIN_OTHERS = 2
"""At least this many others must show whether a rank is idle for little or for much."""
_HOST = CLASSES.index("host")


def with_unmatched_role_idle(found: Localization) -> Localization:
    """`found`, with an anomaly more for each rank without peers that is idle so far beyond all others of the job."""
    known = {place for one in found.anomalies for place in one.positions}
    for anomaly in _idle_alone(found.job):
        if not known & set(anomaly.positions):
            found = also_slow(found, anomaly)
    return found


def _idle_alone(job: JobExcess) -> Iterator[Anomaly]:
    if len(job.steps) < FEWEST_STEPS or len(job.ranks) <= MIN_OTHERS:
        return
    idle = zero_for_nan(np.stack([step.work_ns[_HOST] for step in job.steps]))
    mean = trimmed_mean(idle, TRIM)
    roles, members = np.unique(job.role, return_counts=True)
    for place in np.flatnonzero(np.isin(job.role, roles[members == 1])).tolist():
        others = np.delete(mean, place)
        if mean[place] < IDLE_RATIO * others.max():
            continue
        p_value = steady_by_chance(idle, place, MIN_EXTRA_IDLE * job.step_time_ns)
        if p_value < FALSE_ALARM_RATE:
            excess = float(trimmed_mean(above_peers(idle, place), TRIM))
            alone = UnmatchedRoleIdle(float(mean[place]), float(others.min()), float(others.max()))
            yield Anomaly("persistent", (Position(place),), _HOST, p_value, excess, unmatched_role_idle=alone)
