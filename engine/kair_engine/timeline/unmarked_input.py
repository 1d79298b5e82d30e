"""Where a training loop fetches its batches without any mark of it: between the optimizer and the model's operators."""

import re
from typing import Final

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints, present
from kair_engine.timeline.peers import main_lane_rows
from kair_engine.trace.nesting import lane_order
from kair_engine.trace.operations import INPUT, PHASE_NAMES, SCOPE, Operations

OPTIMIZER: Final = PHASE_NAMES.index("optimizer")
AFTER_A_BATCH: Final = re.compile(
    r".*(embedding|linear|matmul|mm\b|gemm|conv|(layer|batch|group|instance|rms)_?norm|lstm|gru|rnn|attention|einsum)",
    re.IGNORECASE,
)
"""Names of what a model does to a batch, and nobody who draws or reads one and moves it."""
OF_OTHERS: Final = ("c10d", "_c10d", "autograd::", "aten::empty")
"""What the names of other operations of a loop begin with; what a stage receives into is empty."""


def unmarked_fetching_ns(ops: Operations, gap: Ints) -> Floats:
    """Per rank, in ns: the host's gaps (one per row) in which it may have fetched a batch.

    0 where fetches are marked, and where no name tells what the model does, as in a graph that a compiler fused.
    They lie after the optimizer, or the step's begin, and before the model's first operator. The one before that
    operator is the model's own, unless it comes straight after the optimizer.
    """
    rows = _in_turn(ops)
    if not len(rows):
        return np.zeros(len(ops.ranks))
    is_first = np.r_[True, np.diff(ops.rank[rows]) != 0]
    is_optimizer = ops.phase[rows] == OPTIMIZER
    after_optimizer = ~is_optimizer & ~is_first & np.roll(is_optimizer, 1)
    of_model, of_others = (named[rows] for named in _named(ops))
    begins, ends = is_first | after_optimizer, is_optimizer | of_model | of_others
    place = np.arange(len(rows))
    begun, ended = (np.maximum.accumulate(np.where(of, place, NONE)) for of in (begins, ends))
    fetches = (begun > ended) | after_optimizer & of_model
    is_known = np.zeros(len(ops.ranks), dtype=bool)
    is_known[ops.rank[rows[of_model]]] = True
    is_known[ops.rank[ops.kind == INPUT]] = False
    found = rows[fetches & is_known[ops.rank[rows]]]
    return np.bincount(ops.rank[found], weights=gap[found], minlength=len(ops.ranks)).astype(float)


def _in_turn(ops: Operations) -> Ints:
    """What runs one after the other, by rank and time: the main thread's outermost operations, or streams'."""
    if ops.has_device:
        rows = np.flatnonzero(ops.on_stream)
    else:
        rows = np.flatnonzero(main_lane_rows(ops) & (ops.kind != SCOPE) & (ops.nesting.parent == NONE))
    return lane_order(ops.rank, ops.start_ns, ops.duration_ns, rows)


def _named(ops: Operations) -> tuple[Bools, Bools]:
    """Whether each row is what a model does to a batch, and whether it is of the rest of the loop."""
    names = {code: ops.name_text[code] for code in present(ops.name).tolist()}
    of_others = np.isin(ops.name, [code for code, name in names.items() if name.startswith(OF_OTHERS)])
    of_model = np.isin(ops.name, [code for code, name in names.items() if AFTER_A_BATCH.match(name)])
    others = of_others | ops.communication
    return np.asarray(of_model & ~others), np.asarray(others)
