"""Shows ranks whose threads neither compute nor are ready to for longer than their peers', though they wait for nobody.

A thread that sleeps, is stopped, or waits for a disk does neither. On a busy host a trace shows that among all that
threads lose for want of a core; without what the kernel measured of that, little noise is left.
"""

import numpy as np

from kair_engine.arrays import Floats, present, zero_for_nan
from kair_engine.frozen import dataclass
from kair_engine.localize.anomalies import Anomaly
from kair_engine.localize.excess import CLASSES, JobExcess
from kair_engine.localize.excess_table import ExcessTable
from kair_engine.localize.large_delays import stalling
from kair_engine.localize.persistence import can_accuse, slow_in_class
from kair_engine.ranks import ranks_at
from kair_engine.results.evidence import Evidence
from kair_engine.stats import role_medians
from kair_engine.timeline.processor_time import ProcessorTimes
from kair_engine.triage.ranks.cpu_time import CPU_CLASSES, as_in

_HOST = CLASSES.index("host")


@dataclass(frozen=True)
class Blocked:
    """Single ranks by a test, and the means over steps that say so, per rank of the job, ns."""

    longer: tuple[Anomaly, ...]
    mean_ns: Floats

    def beyond_peers_ns(self, job: JobExcess) -> Floats:
        """Per rank of the job, for how much longer than its peers it is asleep, if it is one of them; else 0."""
        places = [place for one in self.longer for place in one.positions]
        beyond = self.mean_ns - role_medians(self.mean_ns[None], job.role)[0]
        return np.where(np.isin(np.arange(len(job.ranks)), places), np.maximum(beyond, 0.0), 0.0)

    def evidence(self, job: JobExcess, anomaly: Anomaly) -> tuple[Evidence, ...]:
        """That a rank is one of them; nothing of another."""
        if anomaly.positions not in {one.positions for one in self.longer}:
            return ()
        (place,) = anomaly.positions
        peers = np.flatnonzero(job.role == job.role[place])
        others = self.mean_ns[peers[peers != place]] / 1e3
        figures = {
            "asleep_us_per_step": float(self.mean_ns[place]) / 1e3,
            "peers_least_us": float(others.min()),
            "peers_most_us": float(others.max()),
        }
        return (Evidence("asleep", figures, None, ranks_at(job.ranks, anomaly.positions)),)


def blocked_longer(job: JobExcess, processor: ProcessorTimes | None) -> Blocked:
    """What the tests of stage 1 say of single ranks by how long their threads were asleep; nothing beside a device."""
    nobody = Blocked((), np.zeros(len(job.ranks)))
    if processor is None or not processor.tells_all or not can_accuse(job) or job.on_device:
        return nobody
    computed, lacked = (as_in(job, processor, of) for of in (processor.cpu_ns, processor.delay_ns))
    spent = zero_for_nan(np.stack([step.work_ns for step in job.steps]))[:, CPU_CLASSES].sum(axis=1)
    asleep = spent - computed - lacked
    excess = np.zeros_like(job.by_step_ns)
    excess[:, _HOST] = asleep - role_medians(asleep, job.role)
    table = ExcessTable(job.role, job.unit, excess, job.step_times_ns, np.zeros_like(job.work_ns), {}, job.on_device)
    steady = (one for code in present(job.role) for one in slow_in_class(table, _HOST, code))
    longer = tuple(one for one in (*steady, *stalling(table)) if len(one.positions) == 1)
    return Blocked(longer, np.maximum(asleep, 0.0).mean(axis=0)) if longer else nobody
