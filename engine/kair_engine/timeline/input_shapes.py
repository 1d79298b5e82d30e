"""What operators are given in a step: the dimensions of their inputs, added up per rank.

Bytes say little of how much there is to do: beside weights, which are as large on all ranks, many more tokens are few
more bytes. So dimensions are kept apart, and only those that differ between ranks are compared (input_growth.py).
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from kair_engine.arrays import NONE, Floats, Ints, dense
from kair_engine.frozen import dataclass
from kair_engine.trace.operations import Operations

MOST_DIMENSIONS = 24
"""Dimensions of a call beyond this many tell nothing of a batch, as those of optimizers that take all parameters at
once."""


class Given(NamedTuple):
    """Calls of one sort: what ran, the operator whose inputs are told, and how many dimensions its tensors have."""

    operator: str
    told_by: str
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
    told_by = ops.given_by[rows]
    code = np.where(told_by == NONE, NONE, NONE if ops.inputs is None else ops.inputs[told_by])
    known = np.flatnonzero(code != NONE)
    if not len(known):
        return _nothing(ranks)
    rows, told_by, code = rows[known], told_by[known], code[known]
    codes, place = np.unique(code, return_inverse=True)
    parsed = [_parsed(ops.inputs_text[one]) for one in codes.tolist()]
    layouts = list(dict.fromkeys(layout for layout, _ in parsed))
    number, widest = {of: at for at, of in enumerate(layouts)}, max(len(of) for _, of in parsed)
    layout = np.array([number[of] for of, _ in parsed])[place]
    sizes = np.stack([np.pad(of, (0, widest - len(of))) for _, of in parsed])
    # Dimensions can be any number: their product as a logarithm first, so that nothing overflows.
    product = np.exp([min(float(np.log(np.maximum(of, 1.0)).sum()), 600.0) for _, of in parsed])
    columns = np.stack((ops.name[rows], ops.name[told_by], layout))
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


def joined_shapes(parts: Sequence[InputShapes]) -> InputShapes:
    """Those of some ranks, then of others."""
    sorts = tuple(dict.fromkeys(sort for part in parts for sort in part.sorts))
    place = {sort: at for at, sort in enumerate(sorts)}

    def together(values: Sequence[Floats]) -> Floats:
        ranks = sum(of.shape[-1] for of in values)
        result, begin = np.zeros((len(sorts), *values[0].shape[1:-1], ranks)), 0
        for part, of in zip(parts, values, strict=True):
            result[[place[sort] for sort in part.sorts], ..., begin : begin + of.shape[-1]] = of
            begin += of.shape[-1]
        return result

    return InputShapes(
        sorts,
        together([part.calls for part in parts]),
        together([part.dimensions for part in parts]),
        together([part.elements for part in parts]),
    )


def _nothing(ranks: int) -> InputShapes:
    return InputShapes((), np.zeros((0, ranks)), np.zeros((0, MOST_DIMENSIONS, ranks)), np.zeros((0, ranks)))


@lru_cache(maxsize=1 << 16)
def _parsed(text: str) -> tuple[tuple[int, ...], Floats]:
    """How many dimensions each tensor has, and all of them."""
    tensors = [[float(one) for one in of.split(",")] for of in text.split(";")]
    flat = [one for of in tensors for one in of][:MOST_DIMENSIONS]
    return tuple(map(len, tensors)), np.array(flat)
