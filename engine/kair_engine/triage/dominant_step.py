"""Finds the step that hides all others: it takes longer than they do together.

What a step costs in the mean is then mostly what that one cost, and its shares are that one's. A single step accuses no
rank, whoever was late in it.
"""

import numpy as np

from kair_engine.localize.anomalies import FEWEST_STEPS
from kair_engine.localize.excess import JobExcess
from kair_engine.localize.localization import steps_needed
from kair_engine.ranks import Rank
from kair_engine.results.triage import Verdict
from kair_engine.trace.model import KairWarning, Trace
from kair_engine.triage.waiting import MOST_OF_WAITING


def without_dominant_step(trace: Trace, job: JobExcess) -> tuple[Trace, KairWarning] | None:
    """The trace without it, and what is said of it; None where there is none, or where too few would be left."""
    lengths = job.step_times_ns
    at, others_ns = int(lengths.argmax()), float(lengths.sum() - lengths.max())
    if float(lengths[at]) <= others_ns or len(lengths) - 1 < (steps_needed(job) or FEWEST_STEPS):
        return None
    longest, others = job.steps[at].step, len(lengths) - 1
    figures = {"step": longest, "length_us": float(lengths[at]) / 1e3, "others_us": others_ns / 1e3, "others": others}
    told = KairWarning("giant_step", figures=figures, ranks=_waited_for(job, at))
    return trace.select([step for step in trace.steps if step != longest]), told


def verdict_beside_dominant_step(verdict: Verdict, told: KairWarning) -> Verdict:
    """What may be said of all steps, by the verdict about the others: where one rank was waited for, who knows."""
    return "inconclusive" if verdict == "no_straggler" and told.ranks else verdict


def _waited_for(job: JobExcess, at: int) -> tuple[Rank, ...]:
    """The rank that most of the step went by in waiting for; none where that is no single one."""
    late, ranks = job.steps[at].late, len(job.ranks)
    waited = np.bincount(late.rank, weights=late.wait_ns, minlength=ranks)
    most, of_step = int(waited.argmax()), job.steps[at].step_time_ns * max(ranks - 1, 1)
    return (Rank(int(job.ranks[most])),) if waited[most] >= MOST_OF_WAITING * max(of_step, 1.0) else ()
