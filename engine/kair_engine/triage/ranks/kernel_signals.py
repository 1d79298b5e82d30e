"""What is known of ranks beside their excesses, as signals of stage 1: their work, the kernel's times of threads."""

from collections.abc import Collection, Sequence
from typing import Final

import numpy as np

from kair_engine.arrays import Floats, zero_for_nan
from kair_engine.localize.anomalies import Anomaly
from kair_engine.localize.excess import CLASSES, JobExcess
from kair_engine.localize.signals import Measured
from kair_engine.ranks import Position, ranks_at
from kair_engine.results.evidence import Evidence
from kair_engine.stats import role_medians
from kair_engine.timeline.processor_time import ProcessorTimes
from kair_engine.triage.ranks.more_work import more_work_ns
from kair_engine.triage.ranks.reasons.diagnosis import MIN_EXPLAINED, peers_of, steps_since

CPU_CLASSES: Final = [CLASSES.index(name) for name in ("compute", "input", "host")]
"""The classes of time in which a thread runs, waits for a core, or sleeps: in the others it waits for somebody."""


def measured_signals(
    job: JobExcess, processor: ProcessorTimes | None, given: Floats | None, held: Collection[Position]
) -> Measured:
    """What ranks should take for more work, what the kernel measured of their threads, and whom it holds back.

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
    """(steps × ranks): how long threads neither computed nor were ready to, though they waited for nobody.

    A thread that sleeps, is stopped, or waits for a disk does neither. None where that was not measured, and beside a
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


def asleep_evidence(job: JobExcess, processor: ProcessorTimes | None, largest: Anomaly) -> tuple[Evidence, ...]:
    """That ranks are asleep for longer than their peers by most of what they lose; nothing of others."""
    peers = np.searchsorted(job.ranks, peers_of(job, largest))
    if (asleep := asleep_ns(job, processor)) is None or not len(peers):
        return ()
    mean = np.maximum(asleep[steps_since(job, largest)], 0.0).mean(axis=0)
    mine, others = float(mean[list(largest.positions)].mean()), mean[peers]
    if mine - float(np.median(others)) < MIN_EXPLAINED * largest.excess_ns:
        return ()
    figures = {
        "asleep_us_per_step": mine / 1e3,
        "peers_least_us": float(others.min()) / 1e3,
        "peers_most_us": float(others.max()) / 1e3,
    }
    return (Evidence("asleep", figures, None, ranks_at(job.ranks, largest.positions)),)


def in_job(job: JobExcess, processor: ProcessorTimes, values: Floats) -> Floats:
    """(steps × ranks) of the job of what was measured; of steps in which that is not known, the rank's median."""
    rows = np.searchsorted(processor.ranks, job.ranks)
    columns = np.searchsorted(processor.steps, [step.step for step in job.steps])
    of_job = values[rows][:, columns].T
    return np.where(np.isnan(of_job), np.nanmedian(of_job, axis=0), of_job)
