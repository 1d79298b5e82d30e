"""What a step is given: batches, the shapes of inputs, and where they are fetched.

Operators are given inputs, whose dimensions are added up per rank. Bytes say little about how much there is to do:
compared with weights, which are as large on all ranks, many more tokens are few more bytes. So dimensions are kept
apart, and only those that differ between ranks are compared (input_growth.py).

Models are given batches, whose size capture records. A training loop that does not mark where it fetches them does so
between the optimizer and the model's operators.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints, dense, present
from kair_engine.frozen import dataclass
from kair_engine.timeline.roles import main_lane_rows
from kair_engine.timeline.self_time import beside_one_another
from kair_engine.trace.model import NOT_RECORDED, Trace
from kair_engine.trace.operations import INPUT, PHASE_NAMES, SCOPE, Operations, lane_order

MOST_DIMENSIONS = 24
"""Dimensions of a call beyond this many say nothing about a batch, such as those of optimizers that take all parameters
at once."""


class Given(NamedTuple):
    """Calls of one sort: what ran, the operator whose inputs are recorded, and how many dimensions its tensors have."""

    operator: str
    given_by: str
    layout: tuple[int, ...]


@dataclass(frozen=True)
class InputShapes:
    """Of every sort of calls that the ranks made."""

    sorts: tuple[Given, ...]
    calls: Floats
    """(sorts × ranks)."""
    dimensions: Floats
    """(sorts × MOST_DIMENSIONS × ranks): each dimension summed over the calls; 0 beyond the layout's."""
    elements: Floats
    """(sorts × ranks): the product of a call's dimensions, summed over the calls."""


def input_shapes(ops: Operations, rows: Ints) -> InputShapes:
    """Of these rows, as far as their inputs' dimensions are recorded."""
    ranks = len(ops.ranks)
    given_by = ops.given_by[rows]
    code = np.where(given_by == NONE, NONE, NONE if ops.inputs is None else ops.inputs[given_by])
    known = np.flatnonzero(code != NONE)
    if not len(known):
        return _nothing(ranks)
    rows, given_by, code = rows[known], given_by[known], code[known]
    codes, place = np.unique(code, return_inverse=True)
    parsed = [_parsed(ops.inputs_text[one]) for one in codes.tolist()]
    layouts = list(dict.fromkeys(layout for layout, _ in parsed))
    number, widest = {of: at for at, of in enumerate(layouts)}, max(len(of) for _, of in parsed)
    layout = np.array([number[of] for of, _ in parsed])[place]
    sizes = np.stack([np.pad(of, (0, widest - len(of))) for _, of in parsed])
    # Dimensions can be any number: their product as a logarithm first, so that nothing overflows.
    product = np.exp([min(float(np.log(np.maximum(of, 1.0)).sum()), 600.0) for _, of in parsed])
    columns = np.stack((ops.name[rows], ops.name[given_by], layout))
    sort = dense(columns)
    _, first, sort = np.unique(sort, return_index=True, return_inverse=True)
    cell, cells = sort * ranks + ops.rank[rows], len(first) * ranks

    def total(weights: Floats | None = None) -> Floats:
        return np.bincount(cell, weights=weights, minlength=cells).reshape(len(first), ranks).astype(float)

    dimensions = np.zeros((len(first), MOST_DIMENSIONS, ranks))
    for at in range(widest):
        dimensions[:, at] = total(sizes[place, at])
    return InputShapes(
        tuple(
            Given(ops.name_text[name], ops.name_text[by], layouts[of]) for name, by, of in columns[:, first].T.tolist()
        ),
        total(),
        dimensions,
        total(product[place]),
    )


def shapes_of_some(shapes: InputShapes, ranks: Ints) -> InputShapes:
    """Return those of some ranks (positions), without sorts of calls that none of them made."""
    made = np.flatnonzero(shapes.calls[:, ranks].any(axis=1))
    sorts = tuple(shapes.sorts[at] for at in made.tolist())
    of_calls = np.ix_(made, ranks)
    dimensions = shapes.dimensions[made][..., ranks]
    return InputShapes(sorts, shapes.calls[of_calls], dimensions, shapes.elements[of_calls])


def joined_shapes(parts: Sequence[InputShapes], order: Mapping[str, int] | None = None) -> InputShapes:
    """Those of some ranks, then of others; by their operators in that `order`, or as the parts have them."""
    sorts = tuple(dict.fromkeys(sort for part in parts for sort in part.sorts))
    if order is not None:
        sorts = tuple(sorted(sorts, key=lambda sort: (order[sort.operator], order[sort.given_by])))
    values = (
        beside_one_another(sorts, [(part.sorts, getattr(part, name)) for part in parts])
        for name in ("calls", "dimensions", "elements")
    )
    return InputShapes(sorts, *values)


def _nothing(ranks: int) -> InputShapes:
    return InputShapes((), np.zeros((0, ranks)), np.zeros((0, MOST_DIMENSIONS, ranks)), np.zeros((0, ranks)))


@lru_cache(maxsize=1 << 16)
def _parsed(text: str) -> tuple[tuple[int, ...], Floats]:
    """How many dimensions each tensor has, and all of them."""
    tensors = [[float(one) for one in of.split(",")] for of in text.split(";")]
    flat = [one for of in tensors for one in of][:MOST_DIMENSIONS]
    return tuple(map(len, tensors)), np.array(flat)


def batch_bytes(trace: Trace, steps: Ints, ranks: Ints) -> Floats | None:
    """Return (steps × ranks), both in ascending order; NaN where it was not recorded. None if no rank recorded it."""
    return _told(trace, trace.job.step_times.given_bytes, steps, ranks)


def samples_of(trace: Trace, steps: Ints, ranks: Ints) -> Floats | None:
    """How many samples ranks took, (steps × ranks) as `batch_bytes`."""
    return _told(trace, trace.job.step_times.samples, steps, ranks)


def _told(trace: Trace, column: tuple[int, ...], steps: Ints, ranks: Ints) -> Floats | None:
    if not column:
        return None
    times = trace.job.step_times
    of = np.array([times.step, times.rank, column], np.int64)
    of = of[:, np.isin(of[0], steps) & np.isin(of[1], ranks) & (of[2] != NOT_RECORDED)]
    if not of.size:
        return None
    found = np.full((len(steps), len(ranks)), np.nan)
    found[np.searchsorted(steps, of[0]), np.searchsorted(ranks, of[1])] = of[2]
    return found


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

    0 where fetches are marked, and where no name shows what the model does, as in a graph that a compiler fused.
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
    """Return what runs one after the other, by rank and time: the main thread's outermost operations, or streams'."""
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
