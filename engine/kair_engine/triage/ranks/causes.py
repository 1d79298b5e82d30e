"""Finds why ranks are slow: their work, the operators, the processor they run on, or what they wait for."""

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial

import numpy as np

from kair_engine.arrays import Floats, Ints
from kair_engine.causes import CAUSES, Cause
from kair_engine.localize.anomalies import FEWEST_STEPS, Anomaly
from kair_engine.localize.compared import Compared
from kair_engine.localize.excess import CLASSES, JobExcess
from kair_engine.localize.large_delays import stalls
from kair_engine.ranks import Position, ranks_at
from kair_engine.results.blame import BlameResult
from kair_engine.results.evidence_kinds import Evidence, Periodic
from kair_engine.results.whatif import HostStops
from kair_engine.step_bar import StepPartsTally
from kair_engine.timeline.host_time import ProcessorTimes
from kair_engine.trace.model import Job
from kair_engine.triage.ranks.diagnosis import (
    MIN_EXPLAINED,
    Diagnosis,
    all_over,
    held_by_calls,
    held_by_profiler,
    idle_host,
    more_stops,
    slower_launches,
    stopped,
)
from kair_engine.triage.ranks.kernel_times import beside_peers
from kair_engine.triage.ranks.within_rank import within_rank
from kair_engine.triage.ranks.work_reasons import (
    Batch,
    batch_beside_peers,
    between_more_calls,
    calls_more,
    inputs_of,
    larger_inputs,
    larger_on_host,
    longer_batch,
    more_calls,
    more_launches,
    same_inputs,
)

ONE_OPERATOR_SHARE = 0.5
"""An operator is named as the culprit when it alone makes up this part of a rank's excess."""
LIKE_THE_REST = 0.25
"""A rank whose other operators are slower too, by more than this part of the largest one, is slow as a whole."""
FEWEST_PERIODIC = 3
"""Events at equal distances, that these are no chance."""


def diagnose(  # noqa: PLR0917  (each of another type)
    job: JobExcess,
    blamed: BlameResult,
    stops: HostStops | None,
    largest: Anomaly,
    parts: StepPartsTally | None = None,
    processor: ProcessorTimes | None = None,
    *,
    is_stopped: bool = False,
    given: Floats | None = None,
    accused: Collection[Position] = (),
    recorded: Job | None = None,
) -> Diagnosis:
    """Return why the ranks of an anomaly are slow, and whether its delays come periodically.

    Periodic delays of the host are a separate cause: something is meant to be done every few steps. `parts`, accounts
    of steps, show what an idle device waits for. What the kernel measured of their threads, `processor`, goes before
    all else; so does `is_stopped`, that something stopped their processes, if they stand still for most of their loss.
    What they gave their models in a step, `given` (steps × ranks), shows larger batches. The `accused` ranks are
    nobody's peers where kernels are compared; `recorded` has the models of devices.
    """
    of = Compared(job, largest)
    if is_stopped and stops is not None and (still := more_stops(of, stops.by_rank_us, largest.excess_ns)):
        return Diagnosis("contention", None, (still,))
    batch = batch_beside_peers(of, given)
    computing = CLASSES[largest.class_index] == "compute" and largest.kind != "intermittent"
    if batch is not None and computing and batch.explains(largest.excess_ns):
        return Diagnosis("uneven_work", largest.operator, (batch.evidence(of.ranks),))
    measured = None if processor is None else beside_peers(of, processor)
    if measured is not None and measured.lacks_cores:
        return Diagnosis("contention", None, (measured.evidence(),))
    computes = measured is not None and measured.computes_more
    of_device = partial(within_rank, of, accused, recorded)
    reason = _why(of, blamed, None if computes else stops, parts, batch, of_device)
    periodic = _periodic(job, largest)
    if measured is not None and computes:
        reason = replace(reason, evidence=(*reason.evidence, measured.evidence()))
    if periodic is None:
        return reason
    cause = "periodic_pause" if reason.cause == "host" else reason.cause
    return replace(reason, cause=cause, evidence=(*reason.evidence, periodic))


def _why(  # noqa: PLR0917  (each of another type)
    of: Compared,
    blamed: BlameResult,
    stops: HostStops | None,
    parts: StepPartsTally | None,
    batch: Batch | None,
    of_device: Callable[[], Diagnosis | None],
) -> Diagnosis:
    """Return the cause by the class of their largest excess; if delays are all over it is the processor they run on.

    What more calls or larger inputs explain is uneven work; what stops in the middle of operators explain is the
    processor's; a slow forward and backward pass with a usual optimizer is a longer batch, unless the inputs are no
    longer than usual.
    """
    name = CLASSES[of.largest.class_index]
    if name == "host":
        if held := held_by_profiler(of) or held_by_calls(of):
            return held
        if of.job.on_device and of.peers and parts is not None:
            found = more_launches(of, parts) or stopped(of, stops) or slower_launches(of, parts)
        else:
            found = all_over(of, stops) or between_more_calls(of)
        if found is None:
            found = idle_host(of, blamed)
            more = larger_on_host(of, batch) if found.cause == "host" else ()
            found = replace(found, evidence=(*found.evidence, *more))
        return found
    if name != "compute":
        return all_over(of, stops) or Diagnosis(name)
    return _of_compute(of, stops, batch, of_device)


def _of_compute(
    of: Compared, stops: HostStops | None, batch: Batch | None, of_device: Callable[[], Diagnosis | None]
) -> Diagnosis:
    job, largest, inputs = of.job, of.largest, inputs_of(of)
    of_operator = largest.operator is not None and not calls_more(of)
    # Without devices what compiles is computing, too.
    compiling = None if job.on_device else held_by_calls(of)
    more = None if of_operator else more_calls(of)
    beside = of_device()
    found = compiling or more or larger_inputs(of, inputs)
    if found is None and beside is not None and beside.cause != "compute":
        found = beside
    if found := found or all_over(of, stops):
        return found
    if of_operator:
        return beside or Diagnosis("compute")
    same = same_inputs(of, inputs) if batch is None else batch.same(largest.excess_ns, of.ranks)
    if beside is not None:  # a longer batch takes longer in all that is computed with it
        return replace(beside, evidence=(*same, *beside.evidence))
    # A stall of the whole process lands in whatever operator it hits.
    stalled = largest.kind == "intermittent"
    if not stalled and one_operator(job, largest.positions[0], "compute") is not None:
        return Diagnosis("compute", None, same)
    is_told = batch is not None or sum(one.excess_ns for one in inputs) >= MIN_EXPLAINED * largest.excess_ns
    longer = None if is_told else longer_batch(of)
    return stopped(of, stops) or longer or Diagnosis("compute", None, same)


def _periodic(job: JobExcess, largest: Anomaly) -> Evidence | None:
    """Large delays at equal distances, from the recording's begin to its end: those counted, or those beyond noise."""
    if largest.kind != "intermittent" or len(job.steps) < FEWEST_STEPS:
        return None
    numbers = np.array([step.step for step in job.steps])
    for at in (list(largest.hit), np.flatnonzero(stalls(job)[:, largest.positions[0]]).tolist()):
        hit = numbers[at]
        if (every := _at_equal_distances(hit, numbers)) is not None:
            ranks = ranks_at(job.ranks, largest.positions)
            return Periodic(every, len(hit), ranks=ranks)
    return None


def _at_equal_distances(hit: Ints, numbers: Ints) -> int | None:
    """How far apart some of the steps are, if all are; None else."""
    if len(hit) < FEWEST_PERIODIC:
        return None
    every = int(hit[1] - hit[0])
    # By chance events can be equally far apart, but then they mostly leave out the begin or the end.
    throughout = hit[0] - every < numbers[0] and hit[-1] + every > numbers[-1]
    return every if every >= 2 and throughout and (np.diff(hit) == every).all() else None


def one_operator(job: JobExcess, place: int, cause: Cause) -> str | None:
    """Return the operator that makes up most of a rank's excess, and is slower than the rest of what it runs; else
    None.
    """
    time_class = CAUSES[cause].time_class
    if time_class is None:
        return None
    excess: dict[str, float] = {}
    typical: dict[str, float] = {}
    for name, fetches in job.operators.items():
        if fetches == (time_class == "input"):
            per_step, of_rank = job.operator_ns(name)
            excess[name], typical[name] = float(per_step[:, place].mean()), float(of_rank[place])
    if not excess:
        return None
    row = CLASSES.index(time_class)
    largest = max(excess, key=lambda name: excess[name])
    total = float(np.nan_to_num(job.by_step_ns[:, row, place], nan=0.0).mean())
    rest, others = total - excess[largest], float(job.work_ns[row, place]) - typical[largest] - total
    slower = excess[largest] / max(typical[largest], 1.0)
    if excess[largest] <= ONE_OPERATOR_SHARE * total or rest / max(others, 1.0) > LIKE_THE_REST * slower:
        return None
    return largest
