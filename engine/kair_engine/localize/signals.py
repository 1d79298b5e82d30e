"""What ranks are compared in: a table of signals, each a matrix (steps × ranks) of what a rank takes beyond its role.

A new signal is one more row: what it measures, what healthy ranks differ by in it, and in which shapes it is looked at.
"""

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

import numpy as np

from kair_engine.arrays import Bools, Floats, zero_for_nan
from kair_engine.frozen import dataclass
from kair_engine.localize.excess import CLASSES
from kair_engine.localize.excess_table import Excesses
from kair_engine.localize.peers import USUAL_OF_STEP, USUAL_OF_WORK, WIDE_OF_STEP, WIDE_OF_WORK
from kair_engine.results import SMALLEST_SHARE
from kair_engine.stats import TRIM, beyond_role, median, role_medians, trimmed_mean

_COMPUTE = CLASSES.index("compute")
Shape = Literal["steady", "since", "now_and_then"]
"""Slow in every step; since one of them; in some steps."""

FLOOR_OF_STEP = 0.001
"""No signal is known better than to this share of the step."""
SUMMARY_WEIGHT = 2.0
"""All that a rank takes by itself counts as much as two other signals: it alone is looked at in every shape."""
KERNEL_SIGNALS: Mapping[str, tuple[Shape, ...]] = {
    "cpu_time": ("steady", "since"),
    "run_queue_wait": ("steady",),
    "asleep": ("steady", "now_and_then"),
}
"""What the kernel measured of training threads, and the shapes in which it is looked at."""
OF_HELD_BACK = "run_queue_wait", "asleep"
"""What a quota, a lower priority, fewer cores or a stop signal makes longer."""


class Measured(NamedTuple):
    """What else is known about ranks, besides their excesses."""

    of_kernel: Mapping[str, Floats] = {}
    """KERNEL_SIGNALS, (steps × ranks) each, ns."""
    work: Floats | None = None
    """(steps × ranks): what they should take for the work that they were given beyond their role, ns."""
    held_back: Bools | None = None
    """The ranks of which the system states that it holds them back, and not their peers: a quota, a lower priority."""


@dataclass(frozen=True)
class Signal:
    """One row of the table; the arrays have the ranks last."""

    name: str
    above_ns: Floats
    """(steps × ranks): beyond the median of the role."""
    usual_ns: Floats
    """Per rank, what healthy ones differ by for good."""
    wide_ns: Floats
    """Per rank, what those differ by that differ more than most."""
    shapes: tuple[Shape, ...] = ("steady",)
    weight: float = 1.0
    class_index: int | None = None
    """The class of time that it is part of; None where it is of several."""
    operator: str | None = None
    asked: Bools | None = None
    """The ranks that may be slow in it; None where any may."""


def signals_of(job: Excesses, measured: Measured) -> list[Signal]:
    """Return the table for one job, its summary first; single operators are `operators_of`."""
    of_class = zero_for_nan(job.by_step_ns)
    work = role_medians(job.work_ns, job.role)
    by_share = _spreads(job, work[_COMPUTE])
    every: tuple[Shape, ...] = ("steady", "since", "now_and_then")
    table = [Signal("own", _above(job, of_class.sum(axis=1)), *by_share, every, SUMMARY_WEIGHT)]
    for row, name in enumerate(CLASSES):
        if name == "compute":
            spreads = _of_work(job, work[row])
        elif name == "communication":
            continue  # a transfer is its link's (links.py)
        else:
            spreads = _of_step(job)
        table.append(Signal(name, _above(job, of_class[:, row]), *spreads, class_index=row))
    if (waited := job.exposed_waiting_ns) is not None:
        table.append(Signal("late", _above(job, -waited), *by_share))
    # How much work there is is counted, what holds a rank back is stated: healthy ranks do not differ in it for good.
    floor = np.full(len(job.role), FLOOR_OF_STEP * job.step_time_ns)
    if measured.work is not None:
        table.append(
            Signal("work", _above(job, measured.work), floor, floor, ("steady", "since"), class_index=_COMPUTE)
        )
    for name, shapes in KERNEL_SIGNALS.items():
        if (values := measured.of_kernel.get(name)) is not None:
            computed = role_medians(median(values, axis=0)[None], job.role)[0]
            spreads = _of_work(job, computed) if name == "cpu_time" else _of_step(job)
            table.append(Signal(name, _above(job, values), *spreads, shapes))
    # What the system or the compiler states of a rank is likely why: it counts as much as all other signals together.
    others = sum(one.weight * len(one.shapes) for one in table)
    lost = [name for name in OF_HELD_BACK if name in measured.of_kernel]
    if measured.held_back is not None and lost:
        above = _above(job, np.sum([measured.of_kernel[name] for name in lost], axis=0))
        table.append(Signal("held_back", above, floor, floor, weight=others, asked=measured.held_back))
    compiling = np.zeros((1, len(job.role))) if job.compiling_ns is None else _above(job, job.compiling_ns)
    if compiling.max() > 0:
        table.append(Signal("compilation", compiling, floor, floor, ("now_and_then",), weight=others))
    return table


def operators_of(job: Excesses) -> Iterator[Signal]:
    """Yield the operators in which some rank takes SMALLEST_SHARE of the step more than its role."""
    for name, fetches in job.operators.items():
        per_step, typical = job.operator_ns(name)
        if trimmed_mean(per_step, TRIM).max() > SMALLEST_SHARE * job.step_time_ns:
            row = CLASSES.index("input" if fetches else "compute")
            yield Signal(name, per_step, *_of_work(job, typical), class_index=row, operator=name)


def _above(job: Excesses, values: Floats) -> Floats:
    return beyond_role(values, job.role)


def _spreads(job: Excesses, work: Floats) -> tuple[Floats, Floats]:
    of_work, of_step = _of_work(job, work), _of_step(job)
    return np.hypot(of_work[0], of_step[0]), np.hypot(of_work[1], of_step[1])


def _of_work(job: Excesses, work: Floats) -> tuple[Floats, Floats]:
    return np.hypot(FLOOR_OF_STEP * job.step_time_ns, USUAL_OF_WORK * work), WIDE_OF_WORK * work


def _of_step(job: Excesses) -> tuple[Floats, Floats]:
    every = np.full(len(job.role), job.step_time_ns)
    return USUAL_OF_STEP * every, WIDE_OF_STEP * every
