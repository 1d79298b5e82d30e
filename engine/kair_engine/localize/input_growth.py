"""By how much more ranks give an operator than their peers, in the dimensions that differ between them.

Tokens, rows, lengths differ; weights do not, whatever their size and type. A dimension that several tensors of a call
share (the tokens of an input and of its gradient) counts once.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from kair_engine.arrays import Floats, Ints
from kair_engine.frozen import dataclass
from kair_engine.stats import known_role_medians
from kair_engine.timeline.inputs import Given, InputShapes

LARGER_INPUTS: Final = 0.01
"""Inputs that are larger by more than this share than a peer's are of another size, and so is each dimension."""


@dataclass(frozen=True)
class Dimension:
    """A dimension of an operator's inputs in which ranks differ."""

    given_by: str
    """The operator whose inputs these are: of a kernel the one that launched it."""
    tensor: int
    """Among its tensors."""
    axis: int


@dataclass(frozen=True)
class Growth:
    """The inputs of one operator in one step, per rank; NaN where they were not recorded."""

    larger: Floats
    """By what share of the role's median a call's inputs are larger: the product of the dimensions that differ."""
    in_all: Floats
    """The same of all calls together of the operators that record it, whatever kernels they launch."""
    dimensions: dict[Dimension, Floats]
    """The mean over calls of each dimension that differs."""


def growths(shapes: InputShapes, role: Ints, wanted: Sequence[str]) -> dict[str, Growth]:
    """Return the growth of each of the `wanted` operators that records its inputs; `role` has a code per rank."""
    places: dict[str, list[int]] = {}
    for at, sort in enumerate(shapes.sorts):
        places.setdefault(sort.operator, []).append(at)
    elements: dict[tuple[str, tuple[int, ...]], Floats] = {}
    for sort, of in zip(shapes.sorts, shapes.elements, strict=True):
        elements[sort[1:]] = elements.get(sort[1:], np.zeros_like(of)) + of
    return {name: _growth(shapes, places[name], elements, role) for name in wanted if name in places}


def _growth(
    shapes: InputShapes, places: Sequence[int], elements: dict[tuple[str, tuple[int, ...]], Floats], role: Ints
) -> Growth:
    differing: dict[Dimension, Floats] = {}
    weighed, weights = np.zeros(len(role)), np.zeros(len(role))
    for at in places:
        calls = np.where(shapes.calls[at] > 0, shapes.calls[at], np.nan)
        mean = shapes.dimensions[at, : sum(shapes.sorts[at].layout)] / calls
        usual = known_role_medians(mean, role)
        ratio = np.divide(mean, usual, out=np.full_like(mean, np.nan), where=usual > 0)
        product = np.where(np.isnan(calls), np.nan, 1.0)
        of_sort: list[Floats] = []
        for index in np.flatnonzero((np.abs(np.nan_to_num(ratio, nan=1.0) - 1) > LARGER_INPUTS).any(axis=1)).tolist():
            if any(np.allclose(mean[index], other, equal_nan=True) for other in of_sort):
                continue
            of_sort.append(mean[index])
            product = product * ratio[index]
            differing[_dimension(shapes.sorts[at], index)] = mean[index]
        # Of the sorts of its calls each counts for how many there usually are.
        known, many = ~np.isnan(product), known_role_medians(np.nan_to_num(calls)[None], role)[0]
        weighed += np.where(known, np.nan_to_num(product - 1) * many, 0.0)
        weights += np.where(known, many, 0.0)
    told = {shapes.sorts[at][1:] for at in places}
    in_all = np.sum([elements[one] for one in told], axis=0)
    in_all = np.where(in_all > 0, in_all, np.nan)
    return Growth(
        np.divide(weighed, weights, out=np.full(len(role), np.nan), where=weights > 0),
        in_all / known_role_medians(in_all[None], role)[0] - 1,
        differing,
    )


def _dimension(sort: Given, index: int) -> Dimension:
    for tensor, axes in enumerate(sort.layout):
        if index < axes:
            return Dimension(sort.given_by, tensor, index)
        index -= axes
    raise IndexError(index)
