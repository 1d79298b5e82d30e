"""Which steps record their parts: all where steps are long, one in several where recording would cost too much of them.

A thinned step still records its begin, its length and what it waited, and whichever part takes half of a usual step.
What its other parts take, the agent says by the last step that recorded them.
"""

from typing import Final

from kair_capture.ring import EVERY_SHIFT, StepFlag

SHARE: Final = 0.01
"""Of a step, that recording may take of it."""
WHOLE_NS: Final = 50_000
"""CPU time of recording a whole step, and a thinned one (benchmarks/capture/cost.py)."""
THINNED_NS: Final = 20_000
MOST: Final = 16
"""Thinned further, hardly anything is saved: what is left is the thinned steps' own cost."""
BLOCK: Final = 64
"""Steps after which it is chosen anew; where ranks choose otherwise, the steps of the longer interval are common."""
_EASIER: Final = 0.8
_MIX: Final = 0x9E37_79B9


class Thinning:
    """Of one rank. The steps that record all are no multiples: what comes every so many steps would be missed, or seen
    too often. They are the same on all ranks, and those of a longer interval are among those of a shorter."""

    def __init__(self) -> None:
        self.every = 1
        self.shortest_ns = 0
        """Of a part that the present step records; 0 where it records all."""
        self._began: int | None = None
        self._usual_ns = 0.0

    def begin(self, step: int, now: int) -> int:
        """Return a step begins. Returns what its flags say of it."""
        if not step % BLOCK:
            if self._began is not None:
                self._usual_ns = (now - self._began) / BLOCK
                self._choose()
            self._began = now
        self.shortest_ns = 0
        if self.every == 1:
            return 0
        told = (self.every.bit_length() - 1) << EVERY_SHIFT
        if not (step * _MIX >> 16) % self.every:
            return told
        self.shortest_ns = max(int(self._usual_ns / 2), 1)
        return told | StepFlag.THINNED

    def _choose(self) -> None:
        needed = _every(self._usual_ns)
        if needed > self.every or _every(self._usual_ns * _EASIER) < self.every:
            self.every = needed


def _every(usual_ns: float) -> int:
    """One in so many, a power of two."""
    every = 1
    while every < MOST and WHOLE_NS + (every - 1) * THINNED_NS > SHARE * usual_ns * every:
        every *= 2
    return every
