"""How much of a rank's communication its computing covers."""

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints
from kair_engine.timeline.self_time import under_way_ns
from kair_engine.trace.operations import COMPUTE, Operations


def communication_and_covered_ns(ops: Operations) -> tuple[Floats, Floats]:
    """Per rank of the step (how long communication is under way, how long of that it computes on another lane).

    What runs at once counts once. Where devices communicate, it is what runs on them. Else threads do: while the
    program's own thread communicates it computes nothing, and an operator that has others inside may only wait.
    """
    on_device = ops.has_device and bool((ops.communication & ops.on_stream).any())
    communicates = ops.communication & ops.on_stream if on_device else ops.communication
    communicates = communicates & (ops.duration_ns > 0)
    computes = np.flatnonzero(ops.on_stream & (ops.kind == COMPUTE) if ops.has_device else _innermost(ops))
    under_way = _united_ns(ops, np.flatnonzero(communicates), None)
    beside = communicates if on_device else communicates & ~ops.of_program
    return under_way, _united_ns(ops, np.flatnonzero(beside), computes)


def _innermost(ops: Operations) -> Bools:
    """Operators that compute on threads of the program, with no other inside."""
    outer = np.zeros(len(ops), dtype=bool)
    outer[ops.nesting.parent[ops.nesting.parent != NONE]] = True
    return np.asarray(~ops.on_stream & (ops.kind == COMPUTE) & ops.of_program & ~outer)


def _united_ns(ops: Operations, rows: Ints, others: Ints | None) -> Floats:
    """Per rank how long any of `rows` is under way, and one of `others` at the same time where they are given."""
    ranks = len(ops.ranks)
    if not len(rows):
        return np.zeros(ranks)
    low = int(ops.start_ns[rows].min())
    span = int(ops.end_ns[rows].max()) - low + 1
    begun = ops.rank[rows] * span + (ops.start_ns[rows] - low)
    order = np.argsort(begun, kind="stable")
    rows, begun = rows[order], begun[order]
    ended = np.maximum.accumulate(begun + ops.duration_ns[rows])
    alone = np.r_[True, begun[1:] > ended[:-1]]
    of = rows[alone]
    base = ops.rank[of] * span - low
    begin, end = begun[alone] - base, ended[np.r_[alone[1:], True]] - base
    lasts = end - begin if others is None else under_way_ns(ops, others, of, end) - under_way_ns(ops, others, of, begin)
    return np.asarray(np.bincount(ops.rank[of], lasts, ranks), dtype=float)
