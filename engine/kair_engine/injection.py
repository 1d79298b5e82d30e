"""The faults that `kair sensitivity` puts into a recording, after what stands out of it already was taken out."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from kair_engine.anomalies import Anomaly, stalls
from kair_engine.arrays import Bools, Floats
from kair_engine.excess import CLASSES, KEPT_SHARE, JobExcess, OperatorExcess
from kair_engine.results import Cause, InjectedFault
from kair_engine.stats import TRIM, trimmed_mean

STALLED_SHARE = 0.2
"""Of the steps: how many an injected stall hits."""
_COMPUTE, _INPUT, _HOST = (CLASSES.index(name) for name in ("compute", "input", "host"))


@dataclass(frozen=True)
class Injection:
    """A fault of size 1 on any of the ranks: what it adds to a class of operations, and to one operator of it."""

    fault: InjectedFault
    cause: Cause | None
    row: int
    added_ns: Floats
    """(steps × ranks); 0 where the rank cannot have it."""
    own_ns: Floats | None
    """Per rank, what it spends on this anyway; None where a ratio to it says nothing."""
    operator: str | None = None
    operator_added_ns: Floats | None = None
    """Per rank and step; None: it is no operator's."""
    stalled_share: float | None = None
    """Of the steps: None where it is there in all of them."""


def injections(job: JobExcess) -> tuple[Injection, ...]:
    """Every kind of fault of a rank. Sizes are in units of the rank's own time (device, operator) or of the step."""
    work = np.nan_to_num(np.stack([step.work_ns for step in job.steps]), nan=0.0)
    own = job.work_ns
    present = ~np.isnan(job.by_step_ns[:, 0])
    step = present * np.array([one.step_time_ns for one in job.steps])[:, None]
    fetch, computing = _largest(job, fetches=True), _largest(job, fetches=False)
    typical = np.zeros(len(job.ranks)) if computing is None else job.operator_ns(computing)[1]
    return (
        Injection("slow_device", "compute", _COMPUTE, work[:, _COMPUTE], own[_COMPUTE]),
        Injection("slow_operator", "compute", _COMPUTE, present * typical, typical, computing, typical),
        Injection("slow_input", "input", _INPUT, step * (own[_INPUT] > 0), own[_INPUT], fetch, own[_INPUT] * 0 + job.step_time_ns),
        Injection("slow_host", "host", _HOST, step * (own[_HOST] > 0), None),
        Injection("stall", None, _HOST, step, None, stalled_share=STALLED_SHARE),
    )


def without_faults(job: JobExcess, found: Iterable[Anomaly]) -> tuple[JobExcess, Bools]:
    """The job without what the anomalies are about, and which ranks still differ by what is their own.

    Of a rank that is slow in all steps its class, and its operators of that class, come down to the mean of its
    role's other ranks; steps in which a rank stalled get what is usual for it in the others.
    """
    anomalies = tuple(found)
    steady = [one for one in anomalies if one.kind != "intermittent"]
    slow = np.isin(np.arange(len(job.ranks)), [rank for one in steady for rank in one.ranks])
    excess, work = job.by_step_ns.copy(), np.stack([step.work_ns for step in job.steps])
    operators = {name: job.operator_ns(name)[0] for name in job.operators}
    for rank, row in sorted({(rank, one.class_index) for one in steady for rank in one.ranks}):
        peers = (job.role == job.role[rank]) & ~slow
        work[:, row, rank] -= _brought_down(excess[:, row], rank, peers)
        for name, fetches in job.operators.items():
            if row == (_INPUT if fetches else _COMPUTE):
                _brought_down(operators[name], rank, peers)
    made = _with(job, excess, work, operators)
    stalled = sorted({rank for one in anomalies if one.kind == "intermittent" for rank in one.ranks})
    hit = stalls(made)
    for rank in stalled:
        if hit[:, rank].any() and not hit[:, rank].all():
            usual = np.nanmedian(excess[~hit[:, rank], :, rank], axis=0)
            excess[hit[:, rank], :, rank] = usual
            for of_operator in operators.values():
                of_operator[hit[:, rank], rank] = np.median(of_operator[~hit[:, rank], rank])
    return _with(job, excess, work, operators), ~slow


def _brought_down(values: Floats, rank: int, peers: Bools) -> float:
    """Takes what the rank has above its peers in the mean out of `values` (steps × ranks) and returns it."""
    if not peers.any():
        return 0.0
    mean = trimmed_mean(np.nan_to_num(values, nan=0.0), TRIM, axis=0)
    above = float(mean[rank] - mean[peers].mean())
    values[:, rank] -= above
    return above


def _with(job: JobExcess, excess: Floats, work: Floats, operators: dict[str, Floats]) -> JobExcess:
    steps = tuple(
        replace(
            step,
            by_class_ns=excess[at],
            work_ns=work[at],
            operators={
                name: OperatorExcess(one.fetches, operators[name][at], one.typical_ns)
                for name, one in step.operators.items()
            },
        )
        for at, step in enumerate(job.steps)
    )
    return replace(job, steps=steps)


def _largest(job: JobExcess, *, fetches: bool) -> str | None:
    """The operator on which ranks spend most, of those in which they differ notably."""
    spent = {name: float(job.operator_ns(name)[1].sum()) for name, of in job.operators.items() if of == fetches}
    return max(spent, key=lambda name: spent[name]) if spent else None
