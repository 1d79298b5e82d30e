"""Kolmogorov–Smirnov distances of whole counts, compiled by numba: numbers of 16 bits, four ranks at a time."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kair_engine.arrays import Floats
from kair_engine.numba_or_not import IS_COMPILED, njit

Int16s = npt.NDArray[np.int16]

_WINDOWS: Final = 32
"""So many counts fill the registers: of less than a multiple each pair's last ones would be compared one by one."""


def narrowed(curves: Floats) -> Int16s | None:
    """Small numbers with the same distances, ranks × (windows + up to 31 without a difference).

    They count from the middle of all ranks' counts in each window. None where the curves are no whole numbers, or too
    far apart for a difference of 16 bits.
    """
    low, high = curves.min(axis=0), curves.max(axis=0)
    if not (high - low < np.iinfo(np.int16).max).all():
        return None
    ranks, windows = curves.shape
    middle = np.floor((low + high) / 2)
    result = np.zeros((ranks, -(-windows // _WINDOWS) * _WINDOWS), np.int16)
    # Rank by rank, so that nothing else of the curves' size is held.
    for row, curve in zip(result, curves, strict=True):
        if (curve != np.rint(curve)).any():
            return None
        row[:windows] = curve - middle
    return result


def distances(a: Int16s, b: Int16s) -> Floats:
    """D of every rank in `a` from every one in `b`, both of the same `narrowed`."""
    found = np.empty((len(a), len(b)))
    _fill(a, b, found)
    return found


def warm_up() -> None:
    """Loads the machine code, and compiles it where that was not done yet. Raises what numba raises."""
    if not IS_COMPILED:
        raise RuntimeError("numba is switched off: as Python this would take hours")
    distances(np.zeros((1, 1), np.int16), np.zeros((1, 1), np.int16))


@njit(cache=True, nogil=True)
def _fill(a: Int16s, b: Int16s, found: Floats) -> None:
    last = a.shape[0] - 1
    for i in range(0, a.shape[0], 4):
        # Where fewer than four are left the last one is compared again.
        p, q, r = min(i + 1, last), min(i + 2, last), min(i + 3, last)
        for j in range(b.shape[0]):
            found[i, j], found[p, j], found[q, j], found[r, j] = _of_four(a[i], a[p], a[q], a[r], b[j])


@njit(cache=True, nogil=True, inline="always")
def _of_four(a: Int16s, b: Int16s, c: Int16s, d: Int16s, other: Int16s) -> Any:  # noqa: ANN401 - four numbers
    """Of four ranks from one other, whose counts are loaded once."""
    # One number for each: in an array they would not stay in registers.
    of_a = of_b = of_c = of_d = np.int16(0)
    for window in range(len(other)):
        # A difference of two such numbers has 64 bits until it is said that it fits.
        to_a = np.int16(a[window] - other[window])
        to_b = np.int16(b[window] - other[window])
        to_c = np.int16(c[window] - other[window])
        to_d = np.int16(d[window] - other[window])
        of_a = max(of_a, to_a, np.int16(-to_a))
        of_b = max(of_b, to_b, np.int16(-to_b))
        of_c = max(of_c, to_c, np.int16(-to_c))
        of_d = max(of_d, to_d, np.int16(-to_d))
    return of_a, of_b, of_c, of_d
