"""Finds launches one after the other: the device has run each kernel before the next is launched, and idles."""

from typing import Final

import numpy as np

from kair_engine.arrays import NONE, Floats, Ints
from kair_engine.frozen import dataclass
from kair_engine.timeline.spans import Clock, Spans
from kair_engine.trace.operations import Operations

APART_NS: Final = 50_000
"""From one launch to the next: with more in between the host does something else than launch."""
FEWEST: Final = 5
"""Launches in a row."""


@dataclass(frozen=True)
class Launching:
    """A step's stretches in which the host launches all the while; figures per rank."""

    idle_ns: Floats
    """How long the device idled in them: no longer than launching took beyond what the kernels themselves do."""
    launches: Floats
    """How many there were in them."""
    length_ns: Floats
    """How long they last."""
    kernel_ns: Floats
    """The median of what was launched in them, over all ranks: one number."""
    device_idle_ns: Floats
    """How long the device idled in the whole step."""


def launching(ops: Operations) -> Launching:
    """Of a step with a device.

    A queue that fills up while another process has the device, and is empty again soon, is no sign of a device that
    cannot follow: so what counts is how long launching took, beside the time that the kernels took.
    """
    ranks = len(ops.ranks)
    clock = Clock.of(ops)
    busy, calls = _busy(ops, clock), _Calls.of(ops, clock)
    first, last, stretch = _in_a_row(calls.begin)
    launches = last - first + 1
    begin, end = calls.begin[first], calls.end[last]
    beyond = end - begin - np.bincount(stretch, weights=calls.work_ns, minlength=len(first))
    chosen = launches >= FEWEST
    idle = np.maximum(np.minimum(end - begin - busy.within(begin, end), beyond), 0.0) * chosen
    kernels = calls.kernel_ns[chosen[stretch][calls.of_kernel]]
    rank = clock.rank(begin)

    def by_rank(values: Floats | Ints) -> Floats:
        return np.bincount(rank, weights=values * chosen, minlength=ranks).astype(float)

    return Launching(
        idle_ns=by_rank(idle),
        launches=by_rank(launches),
        length_ns=by_rank(end - begin),
        kernel_ns=np.full(ranks, float(np.median(kernels)) if len(kernels) else np.nan),
        device_idle_ns=np.maximum(ops.length_ns - busy.by_rank(clock, ranks, busy.length_ns), 0.0),
    )


@dataclass(frozen=True)
class _Calls:
    """Launches in the order of ranks and time, on the clock's axis."""

    begin: Ints
    end: Ints
    work_ns: Floats
    """What each launched, in sum."""
    of_kernel: Ints
    """Per operation that was launched, its launch."""
    kernel_ns: Ints

    @classmethod
    def of(cls, ops: Operations, clock: Clock) -> "_Calls":
        kernels = np.flatnonzero(ops.on_stream & (ops.launch != NONE))
        rows, of_kernel = np.unique(ops.launch[kernels], return_inverse=True)
        begin = clock.at(ops.rank[rows], ops.start_ns[rows])
        order = np.argsort(begin, kind="stable")
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        of_kernel, took = place[of_kernel], ops.duration_ns[kernels]
        work = np.bincount(of_kernel, weights=took, minlength=len(rows)).astype(float)
        return cls(begin[order], clock.at(ops.rank[rows], ops.end_ns[rows])[order], work, of_kernel, took)


def _in_a_row(begin: Ints) -> tuple[Ints, Ints, Ints]:
    """(the first and the last of each stretch, the stretch of each launch); ranks lie far apart."""
    new = np.concatenate(([True], np.diff(begin) > APART_NS)) if len(begin) else np.zeros(0, dtype=bool)
    first = np.flatnonzero(new)
    last = np.concatenate((first[1:], [len(begin)])) - 1 if len(first) else first
    return first, last, np.cumsum(new) - 1


def _busy(ops: Operations, clock: Clock) -> Spans:
    """When the ranks' devices ran anything."""
    rows = np.flatnonzero(ops.on_stream)
    return Spans.united(*(clock.at(ops.rank[rows], of[rows]) for of in (ops.start_ns, ops.end_ns)))
