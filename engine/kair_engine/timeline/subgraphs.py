"""Sub-graphs of a step: the operations that run within a scope that somebody annotated, and all that they launch."""

from collections.abc import Callable, Iterator

import numpy as np

from kair_engine.arrays import NONE, Bools, Ints
from kair_engine.trace.operations import SCOPE, STEP_SCOPE, Operations

MOST = 100
"""Scopes that are looked at, those of a step that take longest: some programs annotate every layer of every step."""


def scopes_named(ops: Operations, fits: Callable[[str], bool]) -> Ints:
    """Rows of the scopes (`record_function`, `Optimizer.step#…`) whose name `fits`; the step itself is none."""
    codes = [code for code, name in ops.name_text.items() if name != STEP_SCOPE and fits(name)]
    return np.flatnonzero((ops.kind == SCOPE) & np.isin(ops.name, codes))


def longest_scopes(ops: Operations) -> Iterator[tuple[str, Ints]]:
    """(name, rows) of the scopes that take longest in the step, over all ranks, at most MOST."""
    rows = scopes_named(ops, lambda _: True)
    if not len(rows):
        return
    taken = np.bincount(ops.name[rows], weights=ops.duration_ns[rows])
    for code in np.argsort(-taken, kind="stable")[: min(MOST, np.count_nonzero(np.bincount(ops.name[rows])))].tolist():
        yield ops.name_text[code], rows[ops.name[rows] == code]


def within(ops: Operations, scopes: Ints) -> Bools:
    """Per row whether it is no scope and begins within one of `scopes` (rows) on its thread, or was launched there.

    What other threads do for a scope (autograd's, or gloo's) is not in it.
    """
    result = np.zeros(len(ops), dtype=bool)
    if not len(scopes):
        return result
    low = int(ops.start_ns.min())
    # A scope may reach beyond all starts, and no further than into its own lane's numbers.
    span = int(ops.end_ns.max()) - low + 2
    key = ops.lane_key * span + (ops.start_ns - low)
    begin = key[scopes]
    order = np.argsort(begin, kind="stable")
    begin, reach = begin[order], np.maximum.accumulate(begin[order] + np.maximum(ops.duration_ns[scopes][order], 1))
    at = np.searchsorted(begin, key, side="right") - 1
    result = (at >= 0) & (key < reach[np.maximum(at, 0)]) & ~ops.on_stream
    launch = ops.launch
    launched = launch != NONE
    result[launched] = result[launch[launched]]
    return np.asarray(result & (ops.kind != SCOPE))


def spans_ns(ops: Operations, scopes: Ints) -> Ints:
    """Per rank of the step, the time that its threads spend within the scopes; what lies in another counts once."""
    order = scopes[np.lexsort((-ops.duration_ns[scopes], ops.start_ns[scopes], ops.lane_key[scopes]))]
    lane, begin, end = ops.lane_key[order], ops.start_ns[order], ops.end_ns[order]
    span = int(end.max(initial=0)) + 1
    reach = np.maximum.accumulate(lane * span + end)
    before = np.r_[NONE, reach[:-1]]
    added = np.maximum(lane * span + end - np.maximum(lane * span + begin, before), 0)
    return np.bincount(ops.rank[order], weights=added, minlength=len(ops.ranks)).astype(np.int64)
