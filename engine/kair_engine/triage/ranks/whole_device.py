"""Ranks that compute longer in all that they run alike: it is the device that is slower, and no part of the code."""

from typing import Final

import numpy as np

from kair_engine.arrays import zero_for_nan
from kair_engine.localize.anomalies import Anomaly
from kair_engine.localize.excess import CLASSES, JobExcess
from kair_engine.ranks import ranks_at
from kair_engine.results.triage import Evidence, ShownBy
from kair_engine.triage.ranks.diagnosis import from_median, peers_of, steps_since

ALIKE: Final = (0.5, 2.0)
"""A kernel is slower like the whole if its growth is this part of the whole's at least, and this many times at most."""
NEARLY_ALL: Final = 0.9
"""Of the usual compute, what has to be in kernels that are slower like the whole."""
FEWEST_KERNELS: Final = 4
"""Of fewer, nobody can say that it is not these."""
WORTH_COUNTING: Final = 0.01
"""Of the usual compute: a kernel that takes less says nothing by itself."""

_COMPUTE: Final = CLASSES.index("compute")


def slower_throughout(job: JobExcess, largest: Anomaly) -> Evidence | None:
    """That the ranks take the same ratio longer than their peers for nearly everything; None where they do not.

    `ratio` is compute of the mean step ÷ what it takes peers; `least_ratio` and `most_ratio` are those of single
    kernels. What is in kernels that no test looks at by themselves counts as one more. Only of devices: on threads the
    host, which has causes of its own, makes everything slower.
    """
    if not job.on_device or CLASSES[largest.class_index] != "compute" or largest.kind == "intermittent":
        return None
    places, later, away = list(largest.positions), steps_since(job, largest), from_median(job, list(largest.positions))
    lost_in_all = away * float(zero_for_nan(job.by_step_ns[later, _COMPUTE][:, places]).mean())
    usual_in_all = float(job.work_ns[_COMPUTE, places].mean()) - lost_in_all
    if lost_in_all <= 0 or usual_in_all <= 0:
        return None
    lost, usual = [], []
    for name, fetches in job.operators.items():
        if not fetches:
            excess, typical = job.operator_ns(name)
            lost.append(away * float(excess[later][:, places].mean()))
            usual.append(float(typical[places].mean()) - (away - 1) * lost[-1] / away)
    kernels = np.array([*usual, usual_in_all - sum(usual)]), np.array([*lost, lost_in_all - sum(lost)])
    counted = kernels[0] >= WORTH_COUNTING * usual_in_all
    takes, longer = kernels[0][counted], kernels[1][counted]
    if np.count_nonzero(counted[:-1]) < FEWEST_KERNELS:
        return None
    growth, whole = longer / takes, lost_in_all / usual_in_all
    alike = (growth >= ALIKE[0] * whole) & (growth <= ALIKE[1] * whole)
    if takes[alike].sum() < NEARLY_ALL * usual_in_all:
        return None
    figures = {
        "ratio": 1 + whole,
        "least_ratio": 1 + float(growth.min()),
        "most_ratio": 1 + float(growth.max()),
        "kernels": int(np.count_nonzero(counted[:-1])),
        "peers": len(peers_of(job, largest)),
    }
    return Evidence("whole_device", figures, ShownBy("localize"), ranks_at(job.ranks, largest.positions))
