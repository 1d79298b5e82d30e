"""Finds kernels that wait for a device which runs nothing of their rank: another process has it."""

import numpy as np

from kair_engine.arrays import NONE, Floats
from kair_engine.frozen import dataclass
from kair_engine.trace.nesting import lane_order
from kair_engine.trace.operations import SYNC, Operations
from kair_engine.triage.devices.spans import Clock, Spans
from kair_engine.whatif.operators.stops.stopped_parts import LONGEST_LATENCY_NS

COPIES = ("cudaMemcpy", "hipMemcpy")
"""What the names of host calls begin with that copy, and wait for that where the memory is not pinned."""


@dataclass(frozen=True)
class Queueing:
    """A step's waits of what was launched, per rank."""

    waited_ns: Floats
    """How long something waited, was next on its stream, and the device ran nothing of its rank."""
    waits: Floats
    """How many such waits."""
    longest_ns: float
    awaited_ns: Floats
    """How long threads waited for the device in calls that do nothing else: who never does loses nothing."""


def queueing(ops: Operations) -> Queueing:
    """Of a step with a device: waits that are longer than any launch takes.

    A kernel that waits for another stream's has that one running meanwhile, collectives on the device included.
    """
    ranks = len(ops.ranks)
    rows = lane_order(ops.lane_key, ops.start_ns, ops.duration_ns, np.flatnonzero(ops.on_stream))
    clock = Clock.of(ops)
    start, end = (clock.at(ops.rank[rows], of[rows]) for of in (ops.start_ns, ops.end_ns))
    busy = Spans.united(start, end)
    lane = ops.lane_key[rows]
    before = np.concatenate(([0], end[:-1])) if len(rows) else end
    free = np.where(np.concatenate(([False], lane[1:] == lane[:-1])) if len(rows) else before, before, 0)
    launch = ops.launch[rows]
    launched = clock.at(ops.rank[rows], ops.end_ns[launch])
    next_up = np.maximum(free, launched)
    late = (launch != NONE) & (start - next_up > LONGEST_LATENCY_NS)
    waits = Spans.united(next_up[late], start[late])
    alone = waits.length_ns - busy.within(waits.begin, waits.end)
    long = alone > LONGEST_LATENCY_NS
    return Queueing(
        waits.by_rank(clock, ranks, np.where(long, alone, 0)),
        waits.by_rank(clock, ranks, long.astype(np.int64)),
        float(alone.max(initial=0)),
        _awaited_ns(ops),
    )


def _awaited_ns(ops: Operations) -> Floats:
    """(ranks): in synchronising calls, and in copies that take longer than to issue them."""
    copies = [code for code, name in ops.name_text.items() if name.startswith(COPIES)]
    blocking = np.isin(ops.name, copies) & (ops.duration_ns > LONGEST_LATENCY_NS)
    rows = np.flatnonzero(~ops.on_stream & ((ops.kind == SYNC) | blocking))
    return np.bincount(ops.rank[rows], weights=ops.duration_ns[rows], minlength=len(ops.ranks)).astype(float)
