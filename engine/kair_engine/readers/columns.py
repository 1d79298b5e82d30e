"""Arrays of numbers as columns of the operations table; -1 stands for absent until then."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kair_engine.arrays import as_one

Int64s = npt.NDArray[np.int64]
Integers = npt.NDArray[np.integer[Any]]


def occurrences(phase: Integers, name: Integers, kind: Integers, start: Integers) -> Int64s:
    """For each row, how many rows of the same phase, name and kind began before it."""
    key = as_one(phase, name, kind)
    assert key is not None
    # Starts of few lanes, each in order, and few different keys sort several times as fast one after another.
    order = np.argsort(start, kind="stable")
    order = order.take(np.argsort(key.take(order), kind="stable"))
    ordered = key.take(order)
    begins = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(key)])
    result = np.empty(len(start), np.int64)
    result[order] = np.arange(len(start)) - np.repeat(begins, np.diff(begins, append=len(start)))
    return result


def dictionary(codes: Integers, values: Sequence[str], rows: Integers | None = None) -> pa.DictionaryArray:
    """A dictionary array over the values that occur: a row group must not carry the whole file's names.

    Of `rows`, positions in `codes`, all of which occur; of the codes themselves where it is None.
    """
    # The last entry, which -1 finds, stands for null.
    used = np.zeros(len(values) + 1, np.bool_)
    used[codes] = True
    number = (np.cumsum(used) - 1).astype(np.int32).take(codes, mode="wrap")
    absent = codes < 0 if used[-1] else None
    if rows is not None:
        number, absent = number[rows], None if absent is None else absent[rows]
    kept = tuple([values[at] for at in np.flatnonzero(used[:-1]).tolist()])
    return pa.DictionaryArray.from_arrays(numbers(number, absent), _texts(kept), safe=False)


def nullable(values: Integers, kind: pa.DataType) -> pa.Array:
    """`values` as an Arrow array of `kind`, the negative ones null."""
    return numbers(values.astype(kind.to_pandas_dtype()), values < 0)


def numbers(values: Integers, absent: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """`values` as an Arrow array of their own kind, null where they are absent.

    Of their memory: `pa.array` loads pandas where that is installed, 0.16 s, and takes eight times as long with nulls.
    """
    valid = None if absent is None else pa.py_buffer(np.packbits(~absent, bitorder="little"))
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [valid, data])


@lru_cache(maxsize=8)
def _texts(values: tuple[str, ...]) -> pa.StringArray:
    """Those of each column are, in the next step, mostly the same."""
    encoded = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)))
