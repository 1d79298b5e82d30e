"""Relabels a slow rank by the class of time that it loses most in, where a test shows it in another class.

A test asks, class by class, whether a rank is slow at all, and the class that varies most between steps shows it least.
Once the rank is known to be slow, the largest loss decides its cause and its price.
"""

from dataclasses import replace

import numpy as np

from kair_engine.localize.anomalies import NO_TEST, SMALLEST_SHARE, Anomaly
from kair_engine.localize.excess import JobExcess
from kair_engine.localize.localization import Localization, also_slow
from kair_engine.localize.noise import STEADY_PART, STEADY_STEPS, above_peers
from kair_engine.stats import TRIM, trimmed_mean
from kair_engine.triage.ranks.cpu_time import CPU_CLASSES


def relabel_by_largest_loss(found: Localization) -> Localization:
    """`found`, with an anomaly more for each rank that is slow in every step and loses more in another class."""
    for one in _largest_of_each(found.anomalies):
        further = _in_another_class(found.job, one)
        if further is not None:
            found = also_slow(found, further)
    return found


def _largest_of_each(anomalies: tuple[Anomaly, ...]) -> list[Anomaly]:
    """Of single ranks that tests by the clock show in every step."""
    largest: dict[tuple[int, ...], Anomaly] = {}
    for one in anomalies:
        known = largest.get(one.positions)
        if known is None or one.excess_ns > known.excess_ns:
            largest[one.positions] = one
    return [one for one in largest.values() if one.kind == "persistent" and one.preemption is None]


def _in_another_class(job: JobExcess, slow: Anomaly) -> Anomaly | None:
    """What the rank loses most in, in nearly every step, where that is more than what is known of it."""
    (place,) = slow.positions
    members = np.flatnonzero(job.role == job.role[place])
    later = [slow.since is None or step.step >= slow.since for step in job.steps]
    of_class = np.nan_to_num(job.by_step_ns[later][:, :, members], nan=0.0)
    at = int(np.searchsorted(members, place))
    apart = {row: above_peers(of_class[:, row], at) for row in CPU_CLASSES if row != slow.class_index}
    lost = {row: float(trimmed_mean(of_row, TRIM)) for row, of_row in apart.items()}
    row = max(lost, key=lambda one: lost[one])
    if lost[row] <= max(slow.excess_ns, SMALLEST_SHARE * job.step_time_ns):
        return None
    if (apart[row] > STEADY_PART * lost[row]).mean() <= STEADY_STEPS:
        return None
    return replace(slow, class_index=row, excess_ns=lost[row], p_value=NO_TEST, operator=None)
