"""Outlying operations as both methods report them."""

from typing import NamedTuple

from kair_engine.results.pinpoint import Outlier
from kair_engine.trace.operations import KIND_NAMES, PHASE_NAMES, Operations


class Identity(NamedTuple):
    """Which operation it is; `start_us` from the step's begin on its rank."""

    step: int
    operator: str
    kind: str
    phase: str | None
    occurrence: int
    start_us: float


def identify(ops: Operations, row: int) -> Identity:
    """Which operation a row is."""
    phase = int(ops.phase[row])
    return Identity(
        step=ops.step,
        operator=ops.operator(row),
        kind=KIND_NAMES[ops.kind[row]],
        phase=PHASE_NAMES[phase] if phase >= 0 else None,
        occurrence=int(ops.occurrence[row]),
        start_us=float(ops.start_ns[row] - ops.begin_ns[ops.rank[row]]) / 1e3,
    )


def outlier(
    which: Identity,
    *,
    z: tuple[float, float],
    score: float,
    p_value: float | None,
    duration_ns: float,
    expected_ns: float,
) -> Outlier:
    """The record of one outlying operation; `z` is (start, duration)."""
    return Outlier(
        step=which.step,
        operator=which.operator,
        phase=which.phase,
        occurrence=which.occurrence,
        start_z=z[0],
        duration_z=z[1],
        score=score,
        p_value=p_value,
        start_us=which.start_us,
        duration_us=duration_ns / 1e3,
        expected_duration_us=expected_ns / 1e3,
    )
