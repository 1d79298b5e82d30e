"""Finds launches one after the other: the device has run each kernel before the next is launched, and idles."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from kair_engine.arrays import NONE, Floats
from kair_engine.trace.operations import Operations
from kair_engine.triage.devices.spans import Clock, Spans

APART_NS: Final = 50_000
"""From one launch to the next: with more in between the host does something else than launch."""
FEWEST: Final = 5
"""Launches in a row."""


@dataclass(frozen=True)
class Launching:
    """A step's stretches in which the host launches all the while; figures per rank, in ns."""

    idle_ns: Floats
    """How long the device idled in them: no longer than launching took beyond what the kernels themselves do."""
    launched: Floats
    """Kernels (and copies) that were launched in them."""
    length_ns: Floats
    kernel_ns: Floats
    """The median of their kernels, over all ranks: one number."""
    device_idle_ns: Floats
    """How long the device idled in the whole step."""


def launching(ops: Operations) -> Launching:
    """Stretches of a step with a device.

    A queue that fills up while another process has the device, and is empty again soon, is no sign of a device that
    cannot follow: so what counts is how long launching took, beside the time that the kernels took.
    """
    ranks = len(ops.ranks)
    kernels = np.flatnonzero(ops.on_stream & (ops.launch != NONE))
    clock = Clock.of(ops.start_ns, ops.end_ns)
    on_device = np.flatnonzero(ops.on_stream)
    device = ops.rank[on_device]
    busy = Spans.united(clock.at(device, ops.start_ns[on_device]), clock.at(device, ops.end_ns[on_device]))
    device_idle = ops.length_ns - busy.by_rank(clock, ranks, busy.length_ns)
    calls, of_kernel = np.unique(ops.launch[kernels], return_inverse=True)
    worked = np.bincount(of_kernel, weights=ops.duration_ns[kernels], minlength=len(calls))
    order = np.argsort(clock.at(ops.rank[calls], ops.start_ns[calls]), kind="stable")
    place = np.argsort(order, kind="stable")
    calls, worked = calls[order], worked[order]
    begin, end = (clock.at(ops.rank[calls], of[calls]) for of in (ops.start_ns, ops.end_ns))
    cut = np.concatenate(([True], np.diff(begin) > APART_NS)) if len(calls) else np.zeros(0, dtype=bool)
    stretch = np.cumsum(cut) - 1
    first = np.flatnonzero(cut)
    sizes = np.bincount(stretch, minlength=len(first))
    chosen = sizes >= FEWEST
    last = np.concatenate((first[1:], [len(calls)])) - 1 if len(first) else first
    begins, ends = begin[first][chosen], end[last][chosen]
    length = ends - begins
    idle = length - busy.within(begins, ends)
    beyond = length - np.bincount(stretch, weights=worked, minlength=len(first))[chosen]
    rank = clock.rank(begins)
    inside = chosen[stretch][place[of_kernel]] if len(calls) else np.zeros(0, dtype=bool)
    of_stretches = ops.duration_ns[kernels[inside]]

    def by_rank(values: Floats) -> Floats:
        return np.bincount(rank, weights=values, minlength=ranks).astype(float)

    return Launching(
        by_rank(np.maximum(np.minimum(idle, beyond), 0.0)),
        by_rank(sizes[chosen].astype(float)),
        by_rank(length.astype(float)),
        np.full(ranks, float(np.median(of_stretches)) if len(of_stretches) else np.nan),
        np.maximum(device_idle, 0.0),
    )
