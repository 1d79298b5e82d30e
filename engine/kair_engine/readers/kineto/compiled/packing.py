"""Scanned rows as records, written in one go; compiled by numba."""

from typing import Final

import numpy as np
import numpy.typing as npt

from kair_engine.numba_or_not import Int32s, Int64s
from kair_engine.numba_or_not import njit_without_arrays as njit
from kair_engine.readers.kineto.classify import Category
from kair_engine.readers.kineto.compiled.scan_columns import CORRELATION, DURATION, EXTERNAL_ID, ODD, SHAPE, SIZE, START
from kair_engine.readers.kineto.times import MAX_DURATION_NS

Int8s = npt.NDArray[np.int8]
_NONE: Final = int(Category.NONE)
_COPY: Final = int(Category.COPY)
WORDS: Final = 7
"""Of a record (`rows.RECORD`), of 64 bits each: four numbers, the size, track and name, the detail."""


@njit(cache=True, nogil=True)
def pack(
    rows: Int64s, names: Int32s, tracks: Int32s, categories: Int8s, sizes: Int64s, packed: Int64s
) -> tuple[int, bool]:
    """Fills `packed` with rows, up to the first whose name or track is not known (-1).

    Returns how many, and whether they are all valid, as far as that is plain (`EventTables.valid`). The size is a row's
    own on a track of copies, else that of its shape. Nothing has details yet.
    """
    is_valid = True
    for row in range(len(packed)):
        name, track, shape = names[row], tracks[row], rows[SHAPE, row]
        if name < 0 or track < 0:
            return row, is_valid
        category, duration, correlation = categories[track], rows[DURATION, row], rows[CORRELATION, row]
        is_valid &= category != _NONE and rows[ODD, row] == 0 and 0 <= duration < MAX_DURATION_NS
        external_id = rows[EXTERNAL_ID, row]
        packed[row, 0], packed[row, 1] = rows[START, row], duration
        packed[row, 2], packed[row, 3] = correlation, -1 if external_id == correlation else external_id
        packed[row, 4] = rows[SIZE, row] if category == _COPY else sizes[shape] if shape >= 0 else -1
        packed[row, 5] = (np.int64(name) << 32) | track
        packed[row, 6] = -1
    return len(packed), is_valid
