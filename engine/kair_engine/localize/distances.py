"""How ranks' distances are worked out: by machine code where numba is installed and so many are wanted that it pays.

numba takes half a second of CPU to import and to load what it has compiled, and as long again, once, to compile it;
scipy, which is not loaded then, 0.2 s.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kair_engine.arrays import Floats

PAYS_FROM: Final = 1 << 32
"""Counts that are compared, which take scipy 1.2 s and machine code 0.15 s."""

Values = npt.NDArray[Any]
Distances = Callable[[Values, Values], Floats]


def distances_of(curves: Floats, times: int) -> tuple[Values, Distances]:
    """What stands for the curves (ranks × windows), and what takes some rows of it, and others, to their distances.

    `times` is how often as many will be compared. The distances are the same either way, to the last bit.
    """
    ranks, windows = curves.shape
    if times * windows * ranks**2 / 2 >= PAYS_FROM and (compiled := _machine_code()) is not None:
        small = compiled.narrowed(curves)
        if small is not None:
            return small, compiled.distances
    return curves, by_scipy


def by_scipy(a: Values, b: Values) -> Floats:
    """The largest difference between each row of `a` and each of `b`."""
    from scipy.spatial.distance import cdist  # 200 ms; only this method needs it

    return np.asarray(cdist(a, b, "chebyshev"))


@cache
def _machine_code() -> ModuleType | None:
    if find_spec("numba") is None:
        return None
    # A numba too old for its NumPy, a folder where it may not write, a disk that is full.
    with suppress(Exception):
        from kair_engine.localize import compiled_distances as compiled

        compiled.warm_up()
        return compiled
    return None
