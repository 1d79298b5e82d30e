"""Steps of recordings that mark none and have no optimizer: a sequence of operators that repeats.

A step begins with an operator that runs once in each: between two of its calls about the same operators run about as
often. Of all operators that part a recording so, the one that parts it most often tells the steps.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
FEWEST: Final = 4
"""Calls: between them lie three steps."""
_ALIKE: Final = 0.9
"""Share of a step's operators that it must have in common with the usual one."""
_COVERED: Final = 0.9
"""Share of the operators, and of the time, that lies in such steps."""
_SMALLEST: Final = 8
"""Operators of a step: fewer repeat by themselves."""
_MOST_TRIED: Final = 64
_MOST_CELLS: Final = 20_000_000


def repeating(name: Int64s, start: Int64s, texts: list[str]) -> tuple[str, Int64s] | None:
    """(the operator that begins each step, the times of its calls), or None where nothing repeats.

    `name` (codes, positions in `texts`) and `start` are of one recording's operators, in order of their starts. Ranks
    that run one program find one operator, wherever their recordings begin: of several the first by its name.
    """
    if len(name) < FEWEST * _SMALLEST:
        return None
    codes, dense, counts = np.unique(name, return_inverse=True, return_counts=True)
    possible = np.flatnonzero((counts >= FEWEST) & (counts <= len(name) // _SMALLEST))
    often = np.unique(counts[possible])[::-1][:_MOST_TRIED]
    for count in often.tolist():
        candidates = sorted(possible[counts[possible] == count].tolist(), key=lambda at: texts[codes[at]])
        for one in candidates[:2]:
            calls = np.flatnonzero(dense == one)
            if _parts_alike(dense, start, calls, len(codes)):
                return texts[codes[one]], start[calls]
    return None


def _parts_alike(name: Int64s, start: Int64s, calls: Int64s, names: int) -> bool:
    """Whether nearly all that is recorded lies in parts between two calls that resemble the usual part."""
    parts = len(calls) - 1
    if parts * names > _MOST_CELLS:
        return False
    within = slice(int(calls[0]), int(calls[-1]))
    part = np.searchsorted(calls, np.arange(within.start, within.stop), "right") - 1
    often = np.bincount(part * names + name[within], minlength=parts * names).reshape(parts, names)
    usual = np.median(often, axis=0)
    alike = np.minimum(often, usual).sum(axis=1) >= _ALIKE * np.maximum(often, usual).sum(axis=1)
    lengths = np.diff(calls)
    covered = lengths[alike].sum() >= _COVERED * len(name) * parts / (parts + 1)
    lasting = np.diff(start[calls])
    return bool(covered and lasting[alike].sum() >= _COVERED * lasting.sum())
