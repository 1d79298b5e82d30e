"""What ranks wait for one another in the ideal job: its replay, divided as the recording is."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from kair_engine.arrays import NONE, Floats, Ints
from kair_engine.results.whatif import Fix
from kair_engine.timeline.clocks import Synchronisation
from kair_engine.timeline.step_parts import device_ends, waited_between
from kair_engine.trace.operations import Operations
from kair_engine.whatif.model import Baseline
from kair_engine.whatif.operators.batches import Batch
from kair_engine.whatif.operators.step_graph import StepGraph, step_graph
from kair_engine.whatif.operators.timeline import OperationTimes, replayed_times

SAMPLE: Final = 10_000
"""Operations of the first steps that are replayed for it, more or less: the ideal steps of a job are alike."""
_NOTHING: Final = np.zeros(0, dtype=np.int64)


def waits_in_ideal(batches: Iterable[Batch]) -> Mapping[int, float]:
    """Per rank, ns of the mean step; without steps whose operations wait for one another in a circle."""
    waited: dict[int, list[float]] = {}
    looked = 0
    for batch in batches:
        some = _fitting(batch, SAMPLE - looked)
        if looked and not some:
            break
        some = max(some, 1)
        end = batch.replayed([Baseline.IDEAL], None).end[:, 0]
        value_ns, step = batch.all_values_ns([Fix()]), batch.dependencies.parts.step
        first = 0
        for at, (ops, sync) in enumerate(zip(batch.steps[:some], batch.syncs[:some], strict=True)):
            # Where its nodes lie is asked, and not what they wait for: that is replayed already.
            graph = step_graph(ops, sync, _NOTHING, _NOTHING)
            of_step = end[first : first + len(graph.time_ns)]
            first += len(graph.time_ns)
            looked += len(graph.ops)
            if np.isnan(of_step).any():
                continue
            waiting = _waiting(batch.syncs[at], graph, value_ns[step == at], of_step)
            for rank, ns in zip(graph.ops.ranks.tolist(), waiting.tolist(), strict=True):
                waited.setdefault(rank, []).append(ns)
        if looked >= SAMPLE:
            break
    return {rank: float(np.mean(of_rank)) for rank, of_rank in waited.items()}


def _fitting(batch: Batch, room: int) -> int:
    """How many of its first steps have no more operations than that."""
    return int(np.searchsorted(np.cumsum([len(ops) for ops in batch.steps]), room, side="right"))


def _waiting(sync: Synchronisation, graph: StepGraph, value_ns: Floats, end: Floats) -> Floats:
    """Per rank of the step, ns."""
    ops = _as_replayed(graph, replayed_times(graph, value_ns, end), end)
    over = np.maximum(ops.begin_ns + ops.length_ns, device_ends(ops))
    return waited_between(ops, _own_ns(sync, ops), ops.begin_ns, over)


def _as_replayed(graph: StepGraph, times: OperationTimes, end: Floats) -> Operations:
    """Return the step's operations where the replay has them; all times are on the job's clock."""
    start, over = (np.rint(of).astype(np.int64) for of in (times.start, times.end))
    begin, done = (np.rint(end[nodes]).astype(np.int64) for nodes in (graph.begin, graph.end))
    return replace(
        graph.ops,
        start_ns=start,
        duration_ns=np.maximum(over - start, 0),
        begin_ns=begin,
        length_ns=np.maximum(done - begin, 0),
        remembered=None,
    )


def _own_ns(sync: Synchronisation, ops: Operations) -> Ints:
    """Per operation its transfer: from when the last member came to its end; NONE of what is no member of any."""
    found, own = sync.collectives, np.full(len(ops), NONE, dtype=np.int64)
    came = np.full(len(found), np.iinfo(np.int64).min)
    np.maximum.at(came, found.instance, ops.start_ns[found.row])
    own[found.row] = np.clip(ops.end_ns[found.row] - came[found.instance], 0, ops.duration_ns[found.row])
    return own
