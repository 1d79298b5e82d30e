"""Scanned rows as records, written in one go; compiled by numba."""

from typing import Final

import numpy as np
import numpy.typing as npt

from kair_engine.numba_or_not import Int32s, Int64s
from kair_engine.numba_or_not import njit_without_arrays as njit
from kair_engine.readers.kineto.compiled.scanned import CORRELATION, DURATION, EXTERNAL_ID, SHAPE, SIZE, START

WORDS: Final = 7
"""Of a record (`rows.RECORD`), of 64 bits each: four numbers, the size, track and name, the detail."""


@njit(cache=True, nogil=True)
def pack(
    rows: Int64s, names: Int32s, tracks: Int32s, copies: npt.NDArray[np.bool_], sizes: Int64s, packed: Int64s
) -> int:
    """Fills `packed` with rows, up to the first whose name or track is not known (-1); returns how many.

    The size is a row's own on one of the tracks of `copies`, else that of its shape. Nothing has details yet.
    """
    for row in range(len(packed)):
        name, track, shape = names[row], tracks[row], rows[SHAPE, row]
        if name < 0 or track < 0:
            return row
        packed[row, 0], packed[row, 1] = rows[START, row], rows[DURATION, row]
        packed[row, 2], packed[row, 3] = rows[CORRELATION, row], rows[EXTERNAL_ID, row]
        packed[row, 4] = rows[SIZE, row] if copies[track] else sizes[shape] if shape >= 0 else -1
        packed[row, 5] = (np.int64(name) << 32) | track
        packed[row, 6] = -1
    return len(packed)
