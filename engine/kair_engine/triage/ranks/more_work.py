"""Accuses ranks that have more to compute than their peers in every step: more calls of operators, or larger inputs.

How long work takes is noisy; how much there is of it is not. A rank that calls an operator oftener, or gives it larger
tensors, does so whatever else runs on its core. What that should cost at the usual speed is an excess without noise: it
shows a rank in a few steps, of which times alone show nothing.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints, present, zero_for_nan
from kair_engine.localize.anomalies import FALSE_ALARM_RATE, SMALLEST_SHARE, Anomaly
from kair_engine.localize.excess import CLASSES, JobExcess, OperatorExcess
from kair_engine.localize.input_growth import LARGER_INPUTS
from kair_engine.localize.localization import Localization, also_slow
from kair_engine.localize.noise import above_peers, on_top_by_chance, places_among
from kair_engine.localize.persistence import can_accuse
from kair_engine.ranks import Position
from kair_engine.stats import TRIM, known_role_medians, log_binomial, role_medians, trimmed_mean
from kair_engine.timeline.processor_time import ProcessorTimes
from kair_engine.triage.ranks.cpu_time import computed_ns

MIN_OBSERVED_FRACTION = 0.25
"""Observed slowdown must reach this fraction of the predicted one: a faster core hides part of it."""
PEERS_BELOW = 0.8
"""A rank must have more work than this share of its peers, in the mean over steps."""
MIN_LAST_STEPS = 4
"""A rank must have had more work for this many steps: fewer at the end may be the last batches of an epoch."""
_COMPUTE = CLASSES.index("compute")


def with_more_work(
    found: Localization, given: Floats | None = None, processor: ProcessorTimes | None = None
) -> Localization:
    """`found`, with an anomaly more for each rank that has more work and that no test has found slow.

    `given` is what ranks gave their models (steps × ranks), where that is known, `processor` what their threads were
    measured to compute.
    """
    if not can_accuse(found.job):
        return found
    known = {place for one in found.anomalies for place in one.positions}
    for anomaly in _anomalies(found.job, given, processor):
        if not known & set(anomaly.positions):
            found = also_slow(found, anomaly)
    return found


def _anomalies(job: JobExcess, given: Floats | None, processor: ProcessorTimes | None) -> Iterator[Anomaly]:
    work, computed = more_work_ns(job, given), _computed_ns(job, processor)
    least = SMALLEST_SHARE * job.step_time_ns
    for code in np.unique(job.role):
        members = np.flatnonzero(job.role == code)
        if len(members) < 2:
            continue
        of_role = work[:, members]
        # Of two ranks the median is halfway.
        begins = _begins(of_role > least / 2)
        for at in np.flatnonzero(_mostly_on_top(of_role, begins)).tolist():
            first = int(begins[at])
            later = slice(first, None)
            expected = float(trimmed_mean(above_peers(of_role[later], at), TRIM))
            lost = max(float(trimmed_mean(above_peers(of[later][:, members], at), TRIM)) for of in computed)
            if expected <= least or lost < MIN_OBSERVED_FRACTION * expected:
                continue
            # Batches are drawn anew for every step: what one step has says nothing of the next one's. Then those with
            # more work are the last ones, all of them and no other, in one of all orders.
            orders = log_binomial(len(of_role), first)
            p_value = on_top_by_chance(of_role[later], (at,), 1.0) * math.exp(-orders)
            if p_value < FALSE_ALARM_RATE:
                since = job.steps[first].step if first else None
                yield Anomaly("persistent", (Position(int(members[at])),), _COMPUTE, p_value, lost, since=since)


def _computed_ns(job: JobExcess, processor: ProcessorTimes | None) -> list[Floats]:
    """What ranks computed (steps × ranks), by the clock and, where that was measured, by their threads' CPU time.

    Where all lack cores, waiting for one hides by the clock who has more to compute.
    """
    by_clock = zero_for_nan(job.by_step_ns[:, _COMPUTE])
    if processor is None or not processor.tells_all:
        return [by_clock]
    return [by_clock, computed_ns(job, processor)]


def _begins(is_more: Bools) -> Ints:
    """Per rank the first of the last steps, in all of which it has more work, where it had none before; else the first.

    `is_more` is (steps × ranks).
    """
    ends_with = np.where(is_more.all(axis=0), len(is_more), np.argmin(is_more[::-1], axis=0))
    begins = len(is_more) - ends_with
    began = (ends_with >= MIN_LAST_STEPS) & (is_more.argmax(axis=0) == begins)
    return np.where(began, begins, 0)


def _mostly_on_top(work: Floats, begins: Ints) -> Bools:
    """Per rank whether from its step on it has more work (steps × ranks) than most of its peers, in the mean."""
    steps, ranks = work.shape
    of_last = np.cumsum(places_among(work)[::-1], axis=0)[::-1]
    reached = of_last[begins, np.arange(ranks)]
    return np.asarray(reached >= PEERS_BELOW * (ranks - 1) * (steps - begins))


def more_work_ns(job: JobExcess, given: Floats | None = None) -> Floats:
    """(steps × ranks): what a rank's work beyond its role's median should cost at the usual speed.

    Each operator's inputs beyond the usual, in the share that they are more, at what it usually takes; where shapes are
    not recorded its further calls. Libraries choose kernels by what they are given, so that one rank can give more to a
    kernel though the operators that launch it are given no more: inputs count where they are more of those, too. Where
    no shapes tell it, what models are `given` does, at what forward and backward passes usually take.
    """
    work = np.zeros((len(job.steps), len(job.ranks)))
    for name, fetches in job.operators.items():
        if not fetches:
            known = [(at, of) for at, step in enumerate(job.steps) if (of := step.operators.get(name)) is not None]
            steps, of_steps = [at for at, _ in known], [of for _, of in known]
            more = _more_inputs_ns(of_steps, job)
            work[steps] += np.where(np.isnan(more), _further_calls_ns(of_steps, job), more)
    if given is not None:
        more = zero_for_nan(growth(given, job.role))
        of_batches = np.where(np.abs(more) > LARGER_INPUTS, more, 0.0) * usual_passes_ns(job)
        work = np.where(~job.tells_inputs & (np.abs(of_batches) > np.abs(work)), of_batches, work)
    return work


def usual_passes_ns(job: JobExcess) -> Floats:
    """(ranks): what forward and backward passes take in the median step of the median rank of each one's role.

    All that is computed, where the recording does not tell passes.
    """
    passes = np.median(job.passes_ns.sum(axis=1), axis=0)
    passes = np.where(passes > 0, passes, job.work_ns[_COMPUTE])
    return np.asarray(role_medians(passes[None], job.role)[0])


def _further_calls_ns(of_steps: Sequence[OperatorExcess], job: JobExcess) -> Floats:
    """(steps × ranks), of one operator."""
    calls, usual, excess, typical = (
        zero_for_nan(np.stack(of))
        for of in zip(*((of.calls, of.usual_calls, of.excess_ns, of.typical_ns) for of in of_steps), strict=True)
    )
    further, of_role = calls - usual, role_medians(calls, job.role)
    # What no peer calls takes what it takes on the rank.
    of_call = np.where(
        of_role > 0, typical / np.maximum(of_role, 1e-9), excess / np.where(further > 0, further, np.inf)
    )
    # Calls that are made besides may be of less: they take no longer than calls do where most of them are made.
    own, most = np.median((typical + excess) / np.maximum(calls, 1e-9), axis=0), np.median(calls, axis=0)
    for code in present(job.role):
        members = np.flatnonzero(job.role == code)
        of_call[:, members] = np.minimum(of_call[:, members], own[members[np.argmax(most[members])]])
    return np.asarray(further * np.median(of_call, axis=0))


def _more_inputs_ns(of_steps: Sequence[OperatorExcess], job: JobExcess) -> Floats:
    """(steps × ranks), of one operator, below 0 of less; NaN where a rank or its peers do not tell its inputs."""
    calls = np.stack([np.where(of.calls > 0, of.calls, np.nan) for of in of_steps])
    larger, in_all = (np.stack(of) for of in zip(*((of.larger, of.in_all) for of in of_steps), strict=True))
    more = (1 + larger) * (1 + growth(calls, job.role)) - 1
    typical = np.median([zero_for_nan(of.typical_ns) for of in of_steps], axis=0)
    is_more = np.minimum(more * np.sign(in_all), np.abs(in_all)) > LARGER_INPUTS
    return np.asarray(np.where(np.isnan(more), np.nan, np.where(is_more, more, 0.0) * typical))


def growth(given: Floats, role: Ints) -> Floats:
    """By what share of its role's median each of (steps × ranks) is given more; NaN where that is not told."""
    return given / known_role_medians(given, role) - 1
