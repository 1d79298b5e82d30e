"""How much more work ranks have than their peers: more calls of operators, or larger inputs.

How long work takes is noisy; how much there is of it is not. A rank that calls an operator oftener, or gives it larger
tensors, does so whatever else runs on its core. What that should cost at the usual speed is a signal without noise: it
shows a rank in a few steps, of which times alone show nothing.
"""

from collections.abc import Sequence

import numpy as np

from kair_engine.arrays import Floats, Ints, present, zero_for_nan
from kair_engine.localize.excess import CLASSES, JobExcess, OperatorExcess
from kair_engine.localize.input_growth import LARGER_INPUTS
from kair_engine.stats import known_role_medians, role_medians

_COMPUTE = CLASSES.index("compute")


def more_work_ns(job: JobExcess, given: Floats | None = None) -> Floats:
    """Return (steps × ranks): what a rank's work beyond its role's median should cost at the usual speed.

    Each operator's inputs beyond the usual, in the share that they are more, at what it usually takes; where shapes are
    not recorded its further calls. Libraries choose kernels by what they are given, so that one rank can give more to a
    kernel though the operators that launch it are given no more: inputs count where they are more of those, too. If no
    shapes are recorded, what models are `given` counts, at what forward and backward passes usually take.
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
    """Return (ranks): what forward and backward passes take in the median step of the median rank of each one's role.

    If the recording does not mark passes, it is all that is computed.
    """
    passes = np.median(job.passes_ns.sum(axis=1), axis=0)
    passes = np.where(passes > 0, passes, job.work_ns[_COMPUTE])
    return np.asarray(role_medians(passes[None], job.role)[0])


def _further_calls_ns(of_steps: Sequence[OperatorExcess], job: JobExcess) -> Floats:
    """Return (steps × ranks), of one operator."""
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
    """Return (steps × ranks), of one operator, below 0 of less.

    NaN where the inputs of a rank or of its peers were not recorded.
    """
    calls = np.stack([np.where(of.calls > 0, of.calls, np.nan) for of in of_steps])
    larger, in_all = (np.stack(of) for of in zip(*((of.larger, of.in_all) for of in of_steps), strict=True))
    more = (1 + larger) * (1 + growth(calls, job.role)) - 1
    typical = np.median([zero_for_nan(of.typical_ns) for of in of_steps], axis=0)
    is_more = np.minimum(more * np.sign(in_all), np.abs(in_all)) > LARGER_INPUTS
    return np.asarray(np.where(np.isnan(more), np.nan, np.where(is_more, more, 0.0) * typical))


def growth(given: Floats, role: Ints) -> Floats:
    """Return by what share of its role's median each of (steps × ranks) is given more; NaN where that is unknown."""
    return given / known_role_medians(given, role) - 1
