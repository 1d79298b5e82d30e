"""Where the time of a device goes: it runs something, or idles for want of a launch, or though something is launched.

The balance of a step goes from the end of the device's operations of the step before to the end of its own, so that
those of all steps add up to the recording. What triage claims of idle devices is held against it.
"""

from typing import Final

import numpy as np

from kair_engine.arrays import NONE, Floats, Ints
from kair_engine.frozen import dataclass
from kair_engine.timeline.spans import Clock, Spans
from kair_engine.trace.operations import SCOPE, SYNC, Operations
from kair_engine.whatif.operators.stops.stopped_parts import LONGEST_LATENCY_NS

COPIES: Final = ("cudaMemcpy", "hipMemcpy")
"""What the names of host calls begin with that copy, and wait for that where the memory is not pinned."""


@dataclass(frozen=True)
class Balance:
    """Of a step, per rank, in ns. The first four add up to `length_ns`."""

    busy_ns: Floats
    """Some stream of it runs something, if only to wait for other ranks."""
    unlaunched_ns: Floats
    """Idle, and what it runs next had not been launched."""
    ready_ns: Floats
    """Idle for longer than a launch takes, though what it runs next was launched: another process may have it."""
    unknown_ns: Floats
    """Idle for as long as launches take, or before what nobody is known to have launched."""
    length_ns: Floats
    unknown_inside_ns: Floats
    """Of the busy time, in CUDA graphs of which only begin and end are recorded."""
    waits: Floats
    """How often it was idle though something was launched."""
    longest_ns: float
    """The longest of these, on any rank."""
    awaited_ns: Floats
    """How long threads waited for the device in calls that do nothing else: who never does loses nothing."""


def balance(ops: Operations, free_ns: Ints) -> Balance:
    """Of a step with a device; `free_ns` is when each rank's device was done with the step before.

    A gap is idle time in which no stream of the rank runs anything: what a stream waits for on another one runs then.
    """
    ranks = len(ops.ranks)
    rows = np.flatnonzero(ops.on_stream & (ops.kind != SCOPE))
    done = ops.begin_ns + ops.length_ns
    np.maximum.at(done, ops.rank[rows], ops.end_ns[rows])
    begin = np.minimum(np.maximum(ops.begin_ns, free_ns), done)
    clock = Clock.of(ops)
    edges = np.arange(ranks)
    first, last = clock.at(edges, begin), clock.at(edges, done)
    start, end = (clock.at(ops.rank[rows], of[rows]) for of in (ops.start_ns, ops.end_ns))
    inside = end > first[ops.rank[rows]]
    start, end, rows = np.maximum(start, first[ops.rank[rows]])[inside], end[inside], rows[inside]
    order = np.argsort(start, kind="stable")
    start, end, rows = start[order], end[order], rows[order]
    busy = Spans.united(start, end)
    whole = ops.inside_unknown[rows]
    graphs = Spans.united(start[whole], end[whole])
    # Idle are the times before each span of work, and after the last.
    rank = clock.rank(busy.begin)
    opens = np.concatenate(([True], rank[1:] != rank[:-1])) if len(rank) else np.zeros(0, dtype=bool)
    since = np.where(opens, first[rank], np.concatenate(([0], busy.end[:-1])) if len(rank) else rank)
    launch = ops.launch[rows[np.searchsorted(start, busy.begin)]]
    known = launch != NONE
    launched = np.where(known, clock.at(rank, ops.end_ns[launch]), busy.begin)
    ready = busy.begin - np.clip(launched, since, busy.begin)
    long = known & (ready > LONGEST_LATENCY_NS)
    unlaunched = np.where(known, busy.begin - since - ready, 0)

    def by_rank(of: Ints) -> Floats:
        return np.bincount(rank, weights=of, minlength=ranks).astype(float)

    length, ran = (last - first).astype(float), by_rank(busy.length_ns)
    held = by_rank(np.where(long, ready, 0))
    before = by_rank(busy.begin - since)
    late = by_rank(unlaunched) + np.maximum(length - ran - before, 0.0)
    return Balance(
        busy_ns=ran,
        unlaunched_ns=late,
        ready_ns=held,
        unknown_ns=length - ran - late - held,
        length_ns=length,
        unknown_inside_ns=graphs.by_rank(clock, ranks, graphs.length_ns),
        waits=by_rank(long.astype(np.int64)),
        longest_ns=float(ready[long].max(initial=0)),
        awaited_ns=_awaited_ns(ops),
    )


def _awaited_ns(ops: Operations) -> Floats:
    """(ranks): in synchronising calls, and in copies that take longer than to issue them."""
    copies = [code for code, name in ops.name_text.items() if name.startswith(COPIES)]
    blocking = np.isin(ops.name, copies) & (ops.duration_ns > LONGEST_LATENCY_NS)
    rows = np.flatnonzero(~ops.on_stream & ((ops.kind == SYNC) | blocking))
    return np.bincount(ops.rank[rows], weights=ops.duration_ns[rows], minlength=len(ops.ranks)).astype(float)
