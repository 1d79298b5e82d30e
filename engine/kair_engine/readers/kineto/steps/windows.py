"""The training steps of one recording, and the step each event belongs to."""

from typing import Final

import numpy as np
import numpy.typing as npt

from kair_engine.frozen import dataclass

OUTSIDE: Final = -1
_BEFORE_ALL: Final = np.iinfo(np.int64).min
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class StepWindows:
    """Steps by their begin: number, begin and end in ns, and the track of the thread that ran them."""

    number: Int64s
    begin: Int64s
    end: Int64s
    track: int
    marked: bool
    """False where nothing marked a step and the whole recording stands for one."""
    inferred_from: str | None = None
    """The operation that tells the steps, where no mark does."""
    on_device: bool = False
    """True where times are the device's: then what it ran is of the step it ran in, whatever launched it."""

    def index_at(self, start: Int64s) -> Int64s:
        """The index of the step whose window holds each time, or OUTSIDE."""
        index = np.searchsorted(self.begin, start, "right") - 1
        # What is before all finds the last entry, and is behind its end.
        outside = start >= np.append(self.end, _BEFORE_ALL).take(index)
        # The recording's last event may begin at the very end of the window that was made for it.
        if not self.marked:
            outside &= start != self.end[0]
        index[outside] = OUTSIDE
        return index
