"""Finds operations that end with the scheduler's tick: their threads wait for others, which have no core.

Where a job has more threads than cores, and the threads of a parallel operation wait for one another busily, it ends
when the last of them has had its turn. That is so on all ranks and at all times: no peer shows it, and no other time of
the operation. But turns end with ticks: what operations take gathers just below whole ticks, whatever they compute.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from kair_engine.arrays import NONE, Floats, Ints, dense, is_one_of
from kair_engine.frozen import dataclass
from kair_engine.results.fix import FIX_KINDS
from kair_engine.whatif.operators.parts import NodeParts

TICKS_NS: Final = (10_000_000.0, 4_000_000.0, 1e9 / 300, 1_000_000.0)
"""Of kernels with 100, 250, 300 and 1000 ticks a second, which is all that Linux is configured with."""
SHORTEST: Final = 0.6
"""Of a tick: what is nearer to none than to one says nothing."""
SURELY: Final = 6.5
"""Of all of one phase: by chance e^-6.5 of the sets of operations whose phases have nothing to do with the tick."""
LIKELY: Final = 3.0
"""The same where it was measured that threads and helpers take turns and are always ready."""
PHASE: Final = (-0.15, 0.05)
"""Of a tick: a turn ends with a tick and the operation begins after one, so it takes a little less than whole ticks."""
_FEWEST_TIMES, _FEWEST_CELLS, _FEWEST_NAMES = 5, 8, 4
"""Times of an operation with so many ticks; of such; and of operators by name."""
_STEADY: Final = 0.6
"""The mean square of the phases' lengths: operators that take a time of their own each come to 1, and times that are
whole ticks to the microsecond; those of threads that wait come to 0.2 to 0.3, as seen."""

_COMPUTING: Final = tuple(FIX_KINDS.index(name) for name in ("compute", "host"))


@dataclass(frozen=True)
class Ticked:
    """What of some parts ended with ticks."""

    tick_ns: float
    value_ns: Floats
    """Per part of a thread what it took where that is as long as a tick, else 0. What of it is its own is not known."""


def ticked(parts: NodeParts, surely: float = SURELY) -> Ticked | None:
    """What threads did that is as long as a tick, if their operations gather at whole ones; the longest such tick.

    `surely`: how much phases must agree.
    """
    rows = np.flatnonzero(parts.thread & parts.own & is_one_of(parts.kind, _COMPUTING))
    rows = rows[parts.value_ns[rows] >= SHORTEST * min(TICKS_NS)]
    for tick in TICKS_NS:
        long = rows[parts.value_ns[rows] >= SHORTEST * tick]
        if _gathers(parts.value_ns[long], parts.name[long].astype(np.int64), tick, surely):
            waited = parts.thread & (parts.kind != NONE) & (parts.value_ns >= SHORTEST * tick)
            return Ticked(tick, np.where(waited, parts.value_ns, 0.0))
    return None


def _gathers(value: Floats, name: Ints, tick: float, surely: float) -> bool:
    """Whether times of several operators are just below whole ticks.

    One phase is that of an operator's times of so many ticks: of those near 4 ms, say, and of those near 8. An operator
    that always takes the same has one by itself, which can be any; one whose times spread has none; one that is slow
    seldom has phases that cancel out. Rayleigh's test asks whether phases agree, each as much as it is one.
    """
    if len(value) < _FEWEST_CELLS * _FEWEST_TIMES:
        return False
    whole = np.rint(value / tick).astype(np.int64)
    cell = dense(np.stack((name, whole)))
    times = np.bincount(cell)
    enough = times >= _FEWEST_TIMES
    if np.count_nonzero(enough) < _FEWEST_CELLS or len(np.unique(name[enough[cell]])) < _FEWEST_NAMES:
        return False
    real, imaginary = (np.bincount(cell, weights=of)[enough] / times[enough] for of in _circle(value / tick))
    squares = float((real**2 + imaginary**2).sum())
    if squares > _STEADY * np.count_nonzero(enough):
        return False
    agree = (float(real.sum()) ** 2 + float(imaginary.sum()) ** 2) / max(squares, 1e-12)
    phase = float(np.arctan2(imaginary.sum(), real.sum())) / (2 * np.pi)
    return agree >= surely and PHASE[0] <= phase <= PHASE[1]


def _circle(turns: Floats) -> Iterator[Floats]:
    yield np.cos(2 * np.pi * turns)
    yield np.sin(2 * np.pi * turns)
