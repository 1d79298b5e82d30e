"""Matrix products whose shapes were recorded: their floating-point operations, and the time that they took.

On a device that is the time of the kernels that a product launched, found by correlation; without one the operator's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final, NamedTuple

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints
from kair_engine.ranks import Rank
from kair_engine.results.collectives import MatrixProducts, ProductShape
from kair_engine.trace.operations import COMPUTE, Operations
from kair_engine.views.sibling_speeds import others_median

_OPERANDS: Final = {
    "aten::mm": 0,
    "aten::addmm": 1,
    "aten::bmm": 0,
    "aten::baddbmm": 1,
    "aten::_scaled_mm": 0,
    "aten::matmul": 0,
}
"""PyTorch's operator → the place of the first matrix among its tensors; the second comes next."""
_TRANSPOSED: Final = "aten::linear"
"""Its weights are (n × k)."""
_LONGEST: Final = 1 << 40
"""Of one dimension: a recording can state any number."""
_MOST_FLOP: Final = 1 << 80
_MOST_DIGITS: Final = 18


class Shape(NamedTuple):
    """`batch` products of an m × k matrix by a k × n one."""

    batch: int
    m: int
    n: int
    k: int

    @property
    def flop(self) -> float:
        """A multiplication and an addition for each term of each element."""
        return 2.0 * self.batch * self.m * self.n * self.k


def shape_of(operator: str, inputs: str) -> Shape | None:
    """Return the shape of a product by its tensors' dimensions, `2048,1408;1408,8`.

    None for what is no matrix product.
    """
    tensors = [_dimensions(text) for text in inputs.split(";")]
    first = 0 if operator == _TRANSPOSED else _OPERANDS.get(operator)
    if first is None or len(tensors) < first + 2:
        return None
    left, right = tensors[first], tensors[first + 1]
    if operator == _TRANSPOSED and len(right) == 2:
        right = right[::-1]
    if len(left) < 2 or len(right) < 2 or left[-1] != right[-2] or not all((*left, *right)):
        return None
    if max(*left, *right) > _LONGEST:
        return None
    if len(right) == 2:
        # One matrix for a whole batch: the rows of all make one product.
        batch, rows = (left[0], left[1]) if operator.endswith("bmm") else (1, prod(left[:-1]))
        return _possible(Shape(batch, rows, right[-1], left[-1]))
    # Dimensions of 1 stretch to those of the other operand.
    batch = max(prod(left[:-2]), prod(right[:-2]))
    return _possible(Shape(batch, left[-2], right[-1], left[-1]))


def _possible(shape: Shape) -> Shape | None:
    """None for more than any machine computes: it is damage, and would be no number of any column."""
    return shape if max(shape) < 1 << 62 and prod(shape) < _MOST_FLOP else None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS


def _dimensions(text: str) -> tuple[int, ...]:
    numbers = text.split(",")
    return tuple(map(int, numbers)) if all(map(_is_number, numbers)) else ()


@dataclass
class Products:
    """Adds up products as steps pass: an entry per (step, shape, rank)."""

    ranks: Ints
    shapes: dict[Shape, int] = field(default_factory=dict)
    """Their numbers."""
    _entries: list[Floats] = field(default_factory=list)
    """(step, shape, position of the rank, calls, ns) × entries."""
    _compute_ns: Floats = field(init=False)
    on_device: bool = False
    """Whether time is that of kernels."""

    def __post_init__(self) -> None:
        """Nothing is known yet."""
        self._compute_ns = np.zeros(len(self.ranks))

    def add(self, ops: Operations, step: Ints, place: Ints) -> None:
        """Take in what some ranks did: for each position in the ranks of `ops` its step and its place in `ranks`."""
        device = ops.has_device
        self.on_device |= device
        rows, number = self._rows(ops)
        spent = _kernels_ns(ops, rows) if device else ops.duration_ns.astype(float)
        rows, number = rows[spent[rows] > 0], number[spent[rows] > 0]
        computes = np.where(_computes(ops, device=device), ops.duration_ns, 0)
        np.add.at(self._compute_ns, place, np.bincount(ops.rank, computes, len(place)))
        if not len(rows):
            return
        (number, cell), of_row = np.unique(np.stack((number, ops.rank[rows])), axis=1, return_inverse=True)
        of_row = of_row.reshape(-1)
        calls, ns = np.bincount(of_row), np.bincount(of_row, spent[rows])
        self._entries.append(np.stack((step[cell], number, place[cell], calls, ns)).astype(float))

    def _rows(self, ops: Operations) -> tuple[Ints, Ints]:
        """Return the innermost products, which do the work of those around them; and the numbers of their shapes."""
        if ops.inputs is None:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        codes = [code for code, name in ops.name_text.items() if name in _OPERANDS or name == _TRANSPOSED]
        rows = np.flatnonzero(np.isin(ops.name, codes) & (ops.inputs != NONE) & ~ops.on_stream)
        pairs, of_row = np.unique(np.stack((ops.name[rows], ops.inputs[rows])), axis=1, return_inverse=True)
        of_pair = []
        for name, inputs in pairs.T.tolist():
            shape = shape_of(ops.name_text[name], ops.inputs_text[inputs])
            of_pair.append(NONE if shape is None else self.shapes.setdefault(shape, len(self.shapes)))
        number = np.array(of_pair, dtype=np.int64)[of_row.reshape(-1)]
        rows, number = rows[number != NONE], number[number != NONE]
        innermost = np.ones(len(ops), dtype=bool)
        around = ops.nesting.parent[rows]
        while len(around := around[around != NONE]):
            innermost[around] = False
            around = ops.nesting.parent[np.unique(around)]
        return rows[innermost[rows]], number[innermost[rows]]

    def __len__(self) -> int:
        return sum(entry.shape[1] for entry in self._entries)

    def entries(self) -> Floats:
        """(step, shape, position of the rank, calls, ns) × entries."""
        return np.concatenate(self._entries, axis=1)

    def tflop_per_s(self) -> Floats:
        """Of each rank all its products together; NaN for one without any."""
        _, shape, rank, calls, ns = self.entries()
        flop = np.array([one.flop for one in self.shapes])[shape.astype(np.int64)] * calls
        at = rank.astype(np.int64)
        total, spent = (np.bincount(at, of, minlength=len(self.ranks)) for of in (flop, ns))
        return np.where(spent > 0, total / np.maximum(spent, 1.0) / 1e3, np.nan)

    def times(self, role: Ints) -> Floats:
        """Return (steps × ranks): a rank's time over that of its peers' medians for the same shapes; NaN without peers.

        Peers have the same `role`, a code per rank.
        """
        step, shape, rank, calls, ns = self.entries()
        at, steps = rank.astype(np.int64), np.unique(step)
        cell = np.unique(np.stack((step, shape, role[at])), axis=1, return_inverse=True)[1].reshape(-1)
        expected, _ = others_median(cell.astype(np.int64), ns / calls)
        known = ~np.isnan(expected)
        place = np.searchsorted(steps, step) * len(self.ranks) + at
        size = len(steps) * len(self.ranks)
        own, usual = (
            np.bincount(place[known], of[known], minlength=size).reshape(len(steps), -1)
            for of in (ns, expected * calls)
        )
        return np.where(usual > 0, own / np.maximum(usual, 1e-9), np.nan)

    def result(self, limit: int) -> MatrixProducts:
        """Return the products of all of them."""
        rates = self.tflop_per_s()
        does = ~np.isnan(rates)
        _, _, _, _, ns = self.entries()
        slowest = int(np.nanargmin(rates))
        listed = self._listed()
        return MatrixProducts(
            timed_on="device" if self.on_device else "host",
            tflop_per_s=float(np.median(rates[does])),
            min_tflop_per_s=float(rates[slowest]),
            min_rank=Rank(int(self.ranks[slowest])),
            share_of_compute=float(min(ns.sum() / max(self._compute_ns[does].sum(), 1.0), 1.0)),
            shapes=tuple(self._told(*one) for one in listed[:limit]),
            total_shapes=len(listed),
        )

    def _listed(self) -> Sequence[tuple[Shape, Floats]]:
        """Each shape that took time with its entries, the longest first."""
        entries = self.entries()
        entries = entries[:, np.argsort(entries[1], kind="stable")]
        numbers, begins = np.unique(entries[1], return_index=True)
        shapes = list(self.shapes)
        parts = np.split(entries, begins[1:], axis=1)
        found = [(shapes[int(number)], part) for number, part in zip(numbers, parts, strict=True)]
        return sorted(found, key=lambda one: -float(one[1][4].sum()))

    def _told(self, shape: Shape, entries: Floats) -> ProductShape:
        step, _, rank, calls, ns = entries
        ranks, at = np.unique(rank.astype(np.int64), return_inverse=True)
        called, spent = (np.bincount(at.reshape(-1), of) for of in (calls, ns))
        rate = shape.flop * called / spent / 1e3
        slowest, steps = int(np.argmin(rate)), len(np.unique(step))
        return ProductShape(
            *shape,
            calls=float(called.mean()) / steps,
            us_per_step=float(spent.mean()) / steps / 1e3,
            tflop_per_s=float(np.median(rate)),
            min_tflop_per_s=float(rate[slowest]),
            min_rank=Rank(int(self.ranks[ranks[slowest]])),
        )


def _kernels_ns(ops: Operations, products: Ints) -> Floats:
    """Per row, if it is one of `products`, the time of the kernels that were launched in it; else 0."""
    kernels = np.flatnonzero(ops.on_stream & (ops.kind == COMPUTE))
    is_product = np.zeros(len(ops), dtype=bool)
    is_product[products] = True
    around = ops.launch[kernels]
    while (outside := (around != NONE) & ~is_product[around]).any():
        around = np.where(outside, ops.nesting.parent[around], around)
    launched = around != NONE
    return np.bincount(around[launched], ops.duration_ns[kernels[launched]], minlength=len(ops)).astype(float)


def _computes(ops: Operations, *, device: bool) -> Bools:
    """Return what counts as computing: kernels, or the outermost operators of threads."""
    if device:
        return np.asarray(ops.on_stream & (ops.kind == COMPUTE))
    return np.asarray(~ops.on_stream & (ops.kind == COMPUTE) & (ops.nesting.parent == NONE))
