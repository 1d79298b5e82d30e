"""The kinds of array the engine works on."""

from collections.abc import Iterable, Iterator
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.integer[Any]]
"""Of any size: as large as what is to be held needs."""
Int64s = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]
SmallInts = npt.NDArray[np.int8]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

NONE = -1
"""Stands for null inside integer arrays (and nowhere else)."""
_LARGEST_KEY = 1 << 62
_AT_A_TIME = 1 << 19
"""Rows that are looked at together where each is by itself: what is worked out of all at once takes as much memory as
they do, and is in no cache."""
_SPARSE = 4
"""Keys per value up to which a table of all keys is faster than a sort."""


def order_by(*keys: npt.NDArray[np.integer[Any]]) -> Int64s:
    """Return the rows by the first key, among equal ones by the second and so on; otherwise as they are.

    One key made of all sorts several times as fast as `lexsort`, and 40 times where rows are nearly in order.
    """
    packed = as_one(*keys)
    if packed is None:
        return np.lexsort(keys[::-1])
    return np.argsort(packed, kind="stable") if packed.itemsize <= 2 else stable_order(packed, packed)


def stable_order(keys: Ints, room: Ints | None = None) -> Int64s:
    """Return the rows by their keys, equal ones as they are; `room`, as large, is written over: it may be the keys.

    Each key with its row's number behind it is one number: plain sorting of numbers is vectorised, and takes a tenth of
    what `argsort` takes. Keys that leave no place for rows are sorted by that.
    """
    if not len(keys):
        return np.zeros(0, dtype=np.int64)
    low, bits = int(keys.min()), len(keys).bit_length()
    if (int(keys.max()) - low + 1) << bits >= _LARGEST_KEY:
        return np.argsort(keys, kind="stable")
    packed = np.subtract(keys, low, out=room, dtype=np.int64)
    packed <<= bits
    for some in pieces(0, len(keys)):
        packed[some] |= np.arange(some.start, some.stop)
    packed.sort()
    packed &= (1 << bits) - 1
    return packed


def as_one(*keys: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.integer[Any]] | None:
    """Return a key that sorts rows as these do one after another, and is equal where they are; None where it would not
    fit.
    """
    if not len(keys[0]):
        return np.zeros(0, dtype=np.int64)
    lows = [int(key.min()) for key in keys]
    spans = [int(key.max()) - low + 1 for key, low in zip(keys, lows, strict=True)]
    if prod(spans) >= _LARGEST_KEY:
        return None
    # NumPy sorts up to 16 bits by radix; small arrays also need few fresh pages, which cost more than the arithmetic.
    kind = np.uint8 if prod(spans) <= 1 << 8 else np.uint16 if prod(spans) <= 1 << 16 else np.int64
    packed: npt.NDArray[np.integer[Any]] = np.zeros(len(keys[0]), dtype=kind)
    for key, low, span in zip(keys, lows, spans, strict=True):
        # What does not fit on the way wraps around, and back: the whole key fits.
        packed *= np.array(span).astype(kind)
        np.add(packed, key, out=packed, dtype=kind, casting="unsafe")
        packed -= np.array(low).astype(kind)
    return packed


def dense(columns: Ints) -> Int64s:
    """For each column of integers a number, equal for equal ones."""
    low, high = columns.min(axis=1, initial=0), columns.max(axis=1, initial=0)
    # Numbers of recordings can be any: the difference of two need not fit into 64 bits.
    spans = [int(most) - int(least) + 1 for least, most in zip(low, high, strict=True)]
    if prod(spans) >= _LARGEST_KEY:
        return np.unique(columns, axis=1, return_inverse=True)[1].reshape(-1).astype(np.int64)
    # One key for each column sorts ten times as fast as the columns themselves.
    key = np.zeros(columns.shape[1], dtype=np.int64)
    for row, lowest, span in zip(columns, low, spans, strict=True):
        key *= span
        key += row
        key -= lowest
    if prod(spans) <= _SPARSE * len(key):
        occurs = np.zeros(prod(spans), dtype=bool)
        occurs[key] = True
        return np.asarray((np.cumsum(occurs) - 1)[key])
    order = stable_order(key)
    ordered = key[order]
    fresh = np.diff(ordered, prepend=ordered[:1]) != 0
    result = np.empty(len(key), dtype=np.int64)
    result[order] = np.cumsum(fresh)
    return result


def one_of_each(code: Ints) -> Int64s:
    """For each of the numbers 0, 1, … that `dense` gave the place of one that has it."""
    result = np.empty(int(code.max(initial=NONE)) + 1, dtype=np.int64)
    result[code] = np.arange(len(code))
    return result


def present(codes: npt.NDArray[np.integer[Any]]) -> Int64s:
    """Return the values that occur among codes from 0 on, in order; for that `np.unique` loads masked arrays, 10 ms of
    300.
    """
    return np.flatnonzero(np.bincount(codes))


def is_one_of(values: npt.NDArray[np.integer[Any]], few: Iterable[int]) -> Bools:
    """Which values are among a few: of a thousand `np.isin` takes 5 times as long, of a million 20 to 50 times."""
    result = np.zeros(values.shape, dtype=bool)
    for one in few:
        result |= values == one
    return result


def narrow(
    values: npt.NDArray[np.integer[Any]], smallest: type[np.signedinteger[Any]] = np.int8
) -> npt.NDArray[np.integer[Any]]:
    """Return the values in the smallest signed integers that hold them all, from `smallest` on: millions of codes take
    a fraction of the memory. Whoever multiplies them makes them large again before.
    """
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    every = (np.int8, np.int16, np.int32, np.int64)
    kinds = (np.iinfo(kind) for kind in every[every.index(smallest) :])
    return values.astype(next(kind.dtype for kind in kinds if kind.min <= low and high <= kind.max), copy=False)


def zero_for_nan(values: Floats) -> Floats:
    """Return the values with 0 in place of NaN, without a copy where there is none: they are not to be written to.

    `np.nan_to_num` takes several times as long, looking for infinities too.
    """
    unknown = np.isnan(values)
    if not unknown.any():
        return values
    result = values.copy(order="K")
    np.copyto(result, 0.0, where=unknown)
    return result


def offsets(values: Ints, count: int) -> Int64s:
    """Where each of 0 … count-1 begins among the sorted values, and where the last ends."""
    return np.concatenate(([0], np.cumsum(np.bincount(values, minlength=count))))


def ranges(begins: Ints, ends: Ints) -> Int64s:
    """begins[0] … ends[0]-1, begins[1] …, one after another."""
    sizes = ends - begins
    return np.repeat(begins - (np.cumsum(sizes) - sizes), sizes) + np.arange(int(sizes.sum()))


def pieces(begin: int, end: int) -> Iterator[slice]:
    """Yield the rows from `begin` to before `end`, some at a time."""
    for at in range(begin, end, _AT_A_TIME):
        yield slice(at, min(at + _AT_A_TIME, end))


def whole_parts(bounds: Ints, rows: int) -> Iterator[tuple[int, int]]:
    """Consecutive parts, from and to (positions in `bounds`), of at most so many rows each, or of a single one.

    `bounds` says where the rows of each begin, and where the last ones end.
    """
    begin = 0
    while begin < len(bounds) - 1:
        end = max(int(np.searchsorted(bounds, bounds[begin] + rows, side="right")) - 1, begin + 1)
        yield begin, end
        begin = end
