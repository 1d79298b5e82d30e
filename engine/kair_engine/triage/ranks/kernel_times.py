"""What else is known about ranks, as signals of stage 1: their work, and the kernel's times of threads.

Separates ranks that lack cores from those that compute more, by what the kernel measured of their threads. For delays
that come now and then it looks at the steps in which they come: what a thread lacks a core for just there is not its
own work, whatever the others are like.
"""

from collections.abc import Collection, Sequence
from typing import Final

import numpy as np

from kair_engine.arrays import Floats, zero_for_nan
from kair_engine.frozen import dataclass
from kair_engine.localize.anomalies import Anomaly
from kair_engine.localize.compared import Compared
from kair_engine.localize.excess import CLASSES, JobExcess
from kair_engine.localize.signals import Measured
from kair_engine.ranks import Position, Rank
from kair_engine.results.evidence_kinds import Asleep, ComputesMore, Evidence, NoCore
from kair_engine.stats import role_medians
from kair_engine.timeline.host_time import ProcessorTimes
from kair_engine.triage.ranks.diagnosis import MIN_EXPLAINED
from kair_engine.triage.ranks.more_work import more_work_ns

CPU_CLASSES: Final = [CLASSES.index(name) for name in ("compute", "input", "host")]
"""The classes of time in which a thread runs, waits for a core, or sleeps: in the others it waits for somebody."""


def measured_signals(
    job: JobExcess, processor: ProcessorTimes | None, given: Floats | None, held: Collection[Position]
) -> Measured:
    """Return what ranks should take for more work, what the kernel measured of their threads, and whom it holds back.

    Computing counts whatever else the host is busy with. `given` is what ranks gave their models (steps × ranks).
    """
    signals = dict[str, Floats]()
    if processor is not None and processor.tells_all:
        signals["cpu_time"] = in_job(job, processor, processor.cpu_ns)
        signals["run_queue_wait"] = in_job(job, processor, processor.delay_ns)
        if (asleep := asleep_ns(job, processor)) is not None:
            signals["asleep"] = asleep
    held_back = np.isin(np.arange(len(job.ranks)), list(held)) if held else None
    return Measured(signals, more_work_ns(job, given), held_back)


def asleep_ns(job: JobExcess, processor: ProcessorTimes | None) -> Floats | None:
    """Return (steps × ranks): how long threads neither computed nor were ready to, though they waited for nobody.

    A thread that sleeps, is stopped, or waits for a disk does neither. None if that was not measured, and with a
    device, for which threads wait.
    """
    if processor is None or not processor.tells_all or job.on_device:
        return None
    spent = zero_for_nan(np.stack([step.work_ns for step in job.steps]))[:, CPU_CLASSES].sum(axis=1)
    return np.asarray(spent - in_job(job, processor, processor.cpu_ns) - in_job(job, processor, processor.delay_ns))


def asleep_beyond_peers_ns(job: JobExcess, processor: ProcessorTimes | None, slow: Sequence[Anomaly]) -> Floats:
    """Per rank of the job, how much longer than its peers it is asleep in the mean step, if it is slow; else 0."""
    if (asleep := asleep_ns(job, processor)) is None:
        return np.zeros(len(job.ranks))
    beyond = np.maximum((asleep - role_medians(asleep, job.role)).mean(axis=0), 0.0)
    return np.where(np.isin(np.arange(len(beyond)), [place for one in slow for place in one.positions]), beyond, 0.0)


def asleep_evidence(of: Compared, processor: ProcessorTimes | None) -> tuple[Evidence, ...]:
    """Return that ranks are asleep for longer than their peers by most of what they lose; nothing of others."""
    if (asleep := asleep_ns(of.job, processor)) is None or not of.peers:
        return ()
    mean = np.maximum(asleep[of.later], 0.0).mean(axis=0)
    mine, others = float(mean[of.mine].mean()), mean[of.peers]
    if mine - float(np.median(others)) < MIN_EXPLAINED * of.largest.excess_ns:
        return ()
    return (Asleep(mine / 1e3, float(others.min()) / 1e3, float(others.max()) / 1e3, ranks=of.ranks),)


def in_job(job: JobExcess, processor: ProcessorTimes, values: Floats) -> Floats:
    """Return (steps × ranks) of the job of what was measured.

    Of steps in which that is not known, the rank's median.
    """
    rows = np.searchsorted(processor.ranks, job.ranks)
    columns = np.searchsorted(processor.steps, [step.step for step in job.steps])
    of_job = values[rows][:, columns].T
    return np.where(np.isnan(of_job), np.nanmedian(of_job, axis=0), of_job)


MIN_MEASURED_FRACTION = 0.5
"""A rank is reported as lacking cores, or as computing more, if that exceeds its peers by this part of its loss."""
_OF_THREADS: Final = frozenset({"compute", "host", "input"})
"""Classes of time in which a thread runs: in the others it waits for somebody."""


@dataclass(frozen=True)
class BesidePeers:
    """Means per step, ns; of delays that come now and then, of the steps with one."""

    ranks: tuple[Rank, ...]
    ready_ns: float
    """Without a core, of these ranks."""
    computed_ns: float
    peers_ready_ns: Floats
    peers_computed_ns: Floats
    excess_ns: float
    hit_steps: int
    """0 where all steps count."""

    @property
    def lacks_cores(self) -> bool:
        """Whether what they lose is that they were ready and had no core, beyond what goes with computing more."""
        more = self._more(self.computed_ns, self.peers_computed_ns)
        missing = self._more(self.ready_ns, self.peers_ready_ns) - self._goes_with(more)
        return missing >= max(MIN_MEASURED_FRACTION * self.excess_ns, more)

    @property
    def computes_more(self) -> bool:
        """Whether it is that their threads computed for longer, with what they lacked a core for because of that."""
        more = self._more(self.computed_ns, self.peers_computed_ns)
        return more + self._goes_with(more) >= MIN_MEASURED_FRACTION * self.excess_ns

    def _goes_with(self, more_ns: float) -> float:
        """How long they lack a core because they compute so much more: as long as they, or peers, do for what they do.

        On a core that four share each millisecond of computing takes three more of waiting for it. Who is held back
        waits longer for what it computes than any of its peers does: that is no more than they would wait.
        """
        of_peers = float((self.peers_ready_ns / np.maximum(self.peers_computed_ns, 1.0)).max())
        return max(more_ns, 0.0) * min(self.ready_ns / max(self.computed_ns, 1.0), of_peers)

    def evidence(self) -> Evidence:
        """Return the figures of what they are."""
        theirs = self.peers_ready_ns if self.lacks_cores else self.peers_computed_ns
        least_us, most_us, hit_steps = float(theirs.min()) / 1e3, float(theirs.max()) / 1e3, self.hit_steps or None
        if not self.lacks_cores:
            return ComputesMore(self.computed_ns / 1e3, least_us, most_us, hit_steps, ranks=self.ranks)
        return NoCore(
            self.ready_ns / 1e3,
            peers_least_us=least_us,
            peers_most_us=most_us,
            hit_steps=hit_steps,
            ranks=self.ranks,
        )

    @staticmethod
    def _more(mine: float, theirs: Floats) -> float:
        return mine - float(np.median(theirs))


def beside_peers(of: Compared, processor: ProcessorTimes) -> BesidePeers | None:
    """Return what was measured of the ranks of an anomaly and of their peers; None where that says nothing of it."""
    job, largest = of.job, of.largest
    if CLASSES[largest.class_index] not in _OF_THREADS or not processor.tells_all or not of.peers:
        return None
    hit = [job.steps[at].step for at in largest.hit] if largest.kind == "intermittent" else []
    if hit:
        looked_at, excess_ns = np.isin(processor.steps, hit), largest.excess_ns * len(job.steps) / len(hit)
    else:
        looked_at, excess_ns = processor.steps >= (largest.since or processor.steps[0]), largest.excess_ns
    told = ~np.isnan(processor.delay_ns[:, looked_at])
    if not told.any(axis=1).all():
        return None
    ready, computed = (np.mean(ns[:, looked_at], axis=1, where=told) for ns in (processor.delay_ns, processor.cpu_ns))
    mine, others = (np.searchsorted(processor.ranks, job.ranks[places]) for places in (of.mine, of.peers))
    return BesidePeers(
        of.ranks,
        float(ready[mine].mean()),
        float(computed[mine].mean()),
        ready[others],
        computed[others],
        excess_ns,
        len(hit),
    )
