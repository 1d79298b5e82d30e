"""Arrays of numbers as columns of the operations table; -1 stands for absent until then."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Int64s = npt.NDArray[np.int64]


def occurrences(stage: Int64s, name: Int64s, kind: Int64s, start: Int64s) -> Int64s:
    """For each row, how many rows of the same stage, name and kind began before it."""
    result = np.empty(len(start), np.int64)
    if not len(start):
        return result
    order = np.lexsort((start, kind, name, stage))
    first = np.ones(len(start), np.bool_)
    first[1:] = np.zeros(len(start) - 1, np.bool_)
    for column in (stage, name, kind):
        first[1:] |= column[order][1:] != column[order][:-1]
    at = np.arange(len(start))
    result[order] = at - np.maximum.accumulate(np.where(first, at, 0))
    return result


def dictionary(codes: Int64s, values: Sequence[str]) -> pa.DictionaryArray:
    """A dictionary array over the values that occur: a row group must not carry the whole file's names."""
    used = np.zeros(len(values), np.bool_)
    used[codes[codes >= 0]] = True
    number = np.cumsum(used) - 1
    known = codes >= 0
    local = np.where(known, number[np.where(known, codes, 0)] if len(values) else -1, 0).astype(np.int32)
    indices = pa.array(local, mask=~known)
    kept = [values[at] for at in np.flatnonzero(used).tolist()]
    return pa.DictionaryArray.from_arrays(indices, pa.array(kept, pa.string()))


def nullable(values: Int64s, kind: pa.DataType) -> pa.Array:
    """`values` as an Arrow array of `kind`, the negative ones null."""
    return pa.array(values, mask=values < 0).cast(kind)
