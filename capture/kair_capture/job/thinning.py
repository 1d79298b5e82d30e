"""Decides which steps record their parts: all if steps are long, one in several if recording would cost too much.

A thinned step still records its begin, its length and its waiting time, and any part that takes half of a usual step.
For its other parts, the agent uses the last step that recorded them.
"""

from typing import Final

from kair_capture.ring import EVERY_SHIFT, StepFlag

SHARE: Final = 0.01
"""Share of a step that recording may take."""
WHOLE_NS: Final = 50_000
"""CPU time of recording a whole step, and a thinned one (benchmarks/capture/cost.py)."""
THINNED_NS: Final = 20_000
MOST: Final = 16
"""Thinning more saves hardly anything: thinned steps have a cost too."""
BLOCK: Final = 64
"""Steps after which it is decided again; if ranks differ, the steps of the longer interval are common."""
_EASIER: Final = 0.8
_MIX: Final = 0x9E37_79B9


class Thinning:
    """Thinning of one rank. Steps that record all are not multiples, so that periodic events are neither missed nor
    overrepresented. They are the same on all ranks, and those of a longer interval are among those of a shorter.
    """

    def __init__(self) -> None:
        self.every = 1
        self.shortest_ns = 0
        """Shortest part that the present step records; 0 if it records all."""
        self._began: int | None = None
        self._usual_ns = 0.0

    def begin(self, step: int, now: int) -> int:
        """Begin a step; return its flags."""
        if not step % BLOCK:
            if self._began is not None:
                self._usual_ns = (now - self._began) / BLOCK
                self._choose()
            self._began = now
        self.shortest_ns = 0
        if self.every == 1:
            return 0
        flags = (self.every.bit_length() - 1) << EVERY_SHIFT
        if not (step * _MIX >> 16) % self.every:
            return flags
        self.shortest_ns = max(int(self._usual_ns / 2), 1)
        return flags | StepFlag.THINNED

    def _choose(self) -> None:
        needed = _every(self._usual_ns)
        if needed > self.every or _every(self._usual_ns * _EASIER) < self.every:
            self.every = needed


def _every(usual_ns: float) -> int:
    """Return the interval, a power of two."""
    every = 1
    while every < MOST and WHOLE_NS + (every - 1) * THINNED_NS > SHARE * usual_ns * every:
        every *= 2
    return every
