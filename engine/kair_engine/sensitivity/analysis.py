"""Sensitivity of a recording: faults put into it, and the smallest that stage 1 would find."""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace

import numpy as np

from kair_engine.causes import Cause
from kair_engine.errors import UsageError
from kair_engine.localize.analysis import warnings_of
from kair_engine.localize.anomalies import FALSE_ALARM_RATE
from kair_engine.localize.excess import JobExcess, job_excess
from kair_engine.localize.excess_table import table_of
from kair_engine.localize.localization import conclude, step_time_ns
from kair_engine.localize.unnamed_collectives import with_collectives_marked
from kair_engine.ranks import ranks_at
from kair_engine.results.sensitivity import DetectableFault, InjectedFault, LongerRecording, Reason, SensitivityResult
from kair_engine.sensitivity.bootstrap import source_of
from kair_engine.sensitivity.detection import Detection, Study
from kair_engine.sensitivity.limits import MISSING, limit_of, reason_of, too_few
from kair_engine.sensitivity.without_faults import without_faults
from kair_engine.trace.model import Trace
from kair_engine.trace.requirements import require_steps
from kair_engine.whatif.analysis import leads

FEWEST_DRAWS = 20
CAUSE_OF_FAULT: dict[InjectedFault, Cause | None] = {
    "slow_device": "compute",
    "slow_operator": "compute",
    "slow_input": "input",
    "slow_host": "host",
    "stall": None,
    "slow_link": "communication",
}
FAULTS: tuple[InjectedFault, ...] = tuple(CAUSE_OF_FAULT)

Report = Callable[[int, int, str], None]
"""Told of so many kinds of faults of so many, the last of them that one."""


def sensitivity(
    trace: Trace,
    *,
    draws: int = 100,
    probability: float = 0.95,
    seed: int = 0,
    chosen: Collection[InjectedFault] = FAULTS,
    report: Report = lambda *_: None,
) -> SensitivityResult:
    """The smallest fault of each kind that triage would find, and what more steps would change.

    `draws` recordings like this one are drawn (bootstrap.py), a fault is put on one rank of each, and the smallest
    size that stage 1 finds in `probability` of them is the answer. Only the `chosen` kinds of faults are tried.
    `report` is told how far it is.

    Raises UsageError where the selection holds no step, for fewer than FEWEST_DRAWS draws, and for a probability that
    is none.
    """
    require_steps(trace)
    job = job_excess(with_collectives_marked(trace))
    step_ns = step_time_ns(trace, job)
    found = sensitivity_of(
        job, step_ns=step_ns, draws=draws, probability=probability, seed=seed, chosen=chosen, report=report
    )
    if (ahead := leads(trace)) is None:
        return found
    ranks = trace.job.ranks
    return replace(found, absorbs_us_per_step=ahead.slack_us(ranks), absorbs_once_us=ahead.ahead_us(ranks))


def sensitivity_of(
    job: JobExcess,
    *,
    draws: int,
    probability: float,
    seed: int,
    step_ns: float | None = None,
    chosen: Collection[InjectedFault] = FAULTS,
    report: Report = lambda *_: None,
) -> SensitivityResult:
    """The same of a job's excesses; shares are of `step_ns`, or of the median step."""
    step_ns = step_ns or job.step_time_ns
    if draws < FEWEST_DRAWS:
        raise UsageError(f"the number of draws must be {FEWEST_DRAWS} or more, got {draws}")
    if not 0 < probability < 1:
        raise UsageError(f"the probability must be between 0 and 1, got {probability:g}")
    found, too_little = conclude(job), too_few(len(job.ranks), len(job.steps))
    accused = sorted({place for anomaly in found.anomalies for place in anomaly.positions})
    if too_little is None:
        random = np.random.default_rng(seed)
        known = ~np.isin(np.arange(len(job.ranks)), accused)
        source = source_of(without_faults(table_of(job), found.anomalies), known, random)
        study = Study(job, source, known, draws, probability, random)
        detections = _reported(study.detections(found.links, chosen), len(chosen), report)
        faults = tuple(_answer(detection, study.lengths, step_ns) for detection in detections)
    else:
        faults = tuple(_nothing(fault, too_little) for fault in FAULTS if fault in chosen)
    return SensitivityResult(
        faults=faults,
        probability=probability,
        false_alarm_rate=FALSE_ALARM_RATE,
        step_time_us=step_ns / 1e3,
        corrected_ranks=ranks_at(job.ranks, accused),
        corrected_links=tuple(slow.link.name for slow in found.links) if too_little is None else (),
        draws=draws,
        seed=seed,
        steps=tuple(step.step for step in job.steps),
        warnings=warnings_of(found),
    )


def _reported(detections: Iterable[Detection], kinds: int, report: Report) -> Iterator[Detection]:
    for done, detection in enumerate(detections, 1):
        report(done, kinds, detection.fault.replace("_", " "))
        yield detection


def _answer(detection: Detection, lengths: tuple[int, ...], step_ns: float) -> DetectableFault:
    if not detection.cost_ns:
        return _nothing(detection.fault, MISSING[detection.fault])
    now, *longer = (
        LongerRecording(
            steps,
            smallest_us_per_step=None if cost is None else cost / 1e3,
            smallest_share_of_step=None if cost is None else cost / step_ns,
            stalled_steps=stalls,
        )
        for steps, cost, stalls in zip(lengths, detection.cost_ns, detection.stalls, strict=True)
    )
    limit, own, cost = limit_of(detection, now, longer), detection.own_ns or None, detection.cost_ns[0]
    return DetectableFault(
        fault=detection.fault,
        cause=CAUSE_OF_FAULT[detection.fault],
        operator=detection.operator,
        smallest_us_per_step=now.smallest_us_per_step,
        smallest_share_of_step=now.smallest_share_of_step,
        own_us_per_step=None if own is None else own / 1e3,
        smallest_own_slowdown=None if own is None or cost is None else 1 + cost / own,
        spread_us_per_step=None if detection.spread_ns is None else detection.spread_ns / 1e3,
        stalled_steps=now.stalled_steps,
        longer=tuple(longer),
        limited_by=limit,
        because=reason_of(detection, limit, now, longer, step_ns=step_ns),
    )


def _nothing(fault: InjectedFault, because: Reason) -> DetectableFault:
    return DetectableFault(fault, CAUSE_OF_FAULT[fault], None, None, None, None, None, None, None, (), None, because)
