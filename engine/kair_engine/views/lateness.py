"""Who was late when: what every rank spent beyond its role's median in every step, as a map of ranks and steps.

`late_us[r, s]` is the self time of rank r in step s, which is the step without what it waited for others, minus the
median of it over the ranks of the same role (docs/methods.md). A rank that is no later than its peers has 0.
"""

import numpy as np

from kair_engine.localize.excess import job_excess
from kair_engine.results.lateness import Lateness
from kair_engine.stats import role_medians
from kair_engine.trace.model import Trace
from kair_engine.triage.history.rows import StepHistory


def lateness(trace: Trace) -> Lateness:
    """Of the trace's steps. What triage reduced them to is taken where it is at hand."""
    job = job_excess(trace)
    late_us = np.nan_to_num(job.by_step_ns).sum(axis=1).T / 1e3
    steps = np.array([step.step for step in job.steps], dtype=np.int64)
    return Lateness(job.ranks, steps, np.maximum(late_us, 0.0), job.step_time_ns / 1e3)


def lateness_of_history(history: StepHistory) -> Lateness:
    """Return the same of the steps that the agent wrote down while the job ran."""
    own = history.own
    late_us = np.maximum(own - role_medians(own, history.role), 0.0).T
    return Lateness(history.ranks, history.steps, late_us, history.step_us, sampled=False)
