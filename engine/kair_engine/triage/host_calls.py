"""What all hosts spend in allocators and compilers while their devices run empty: no rank's fault, and no replay's.

A replay keeps what threads wait for one another without a mark, so that it saves too little: the devices' idle time
is the price. All ranks wait for whoever is in such calls longest in a step.
"""

from collections.abc import Collection, Iterator
from typing import Final

import numpy as np

from kair_engine.localize.excess import JobExcess
from kair_engine.ranks import Position
from kair_engine.results.triage import Evidence, Finding
from kair_engine.timeline.host_activity import CALLS, HOST_KINDS
from kair_engine.trace.model import Trace
from kair_engine.triage.findings import new_finding
from kair_engine.triage.shared_costs import of_half

NOTABLE_IN_CALLS: Final = 0.05
"""Of the step, what half of the ranks must lose: the smallest share of it that is told of all."""
_HIT: Final = 0.1
"""Steps that lose less than this part of what the costliest one does are not named."""


def shared_calls(trace: Trace, job: JobExcess, accused: Collection[Position], step_time_ns: float) -> Iterator[Finding]:
    """Yield a finding for each kind of calls that ranks which nobody accuses lose enough in."""
    healthy = np.setdiff1d(np.arange(len(job.ranks)), np.array(sorted(accused), dtype=np.int64))
    if not len(healthy):
        return
    for kind in CALLS:
        of_steps = job.activity_ns[:, HOST_KINDS.index(kind)][:, healthy]
        idle_ns = of_half(of_steps.mean(axis=0))
        if idle_ns < NOTABLE_IN_CALLS * max(float(job.step_times_ns.mean()), 1.0):
            continue
        longest = of_steps.max(axis=1)
        hit = np.flatnonzero(longest >= _HIT * longest.max())
        yield new_finding(
            trace,
            cause=kind,
            seen_on=tuple(trace.job.ranks),
            lost_ns=float(longest.mean()),
            step_time_ns=step_time_ns,
            steps=tuple(job.steps[at].step for at in hit.tolist()),
            evidence=(Evidence("in_calls", {"idle_us_per_step": idle_ns / 1e3}, about=kind),),
        )
