"""The words by which an agent asks a rank for a window of sampled steps."""

import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CONTROL_BYTES: Final = 64
MOST_STEPS: Final = 100

_GENERATION, _FIRST_STEP, _STEPS, _OVERHEAD, _EVERY = range(5)
_MILLION: Final = 1_000_000


@dataclass(frozen=True)
class Window:
    """Steps to sample: `steps` of them, from number `first` on."""

    first: int
    steps: int

    @property
    def last(self) -> int:
        """The last of the steps."""
        return self.first + self.steps - 1


class ControlWords:
    """64 bytes of shared memory, 64-bit words: generation, first step, number of steps; what sampling took so far, and
    steps between those that are sampled unasked."""

    def __init__(self, path: Path) -> None:
        """Opens the file, or makes it. Raises OSError."""
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            # Without its page a full /dev/shm would end the training process by SIGBUS at the first touch.
            os.posix_fallocate(handle, 0, CONTROL_BYTES)
            self._map = mmap.mmap(handle, CONTROL_BYTES)
        finally:
            os.close(handle)
        self._words = memoryview(self._map).cast("Q")
        # What was asked of an earlier process of this rank is not this one's.
        self._seen = self._words[_GENERATION]

    def asked(self) -> Window | None:
        """A window that was asked for since the last call. Costs 0.1 µs where there is none."""
        generation = self._words[_GENERATION]
        if generation == self._seen:
            return None
        window = Window(self._words[_FIRST_STEP], min(self._words[_STEPS], MOST_STEPS))
        # The generation changes last: one that changed meanwhile brings other words, which the next call reads.
        if generation != self._words[_GENERATION]:
            return None
        self._seen = generation
        return window if window.steps else None

    @property
    def overhead(self) -> float:
        """The share of the job's time that sampling took, as the coordinator has it; 0 without one."""
        return self._words[_OVERHEAD] / _MILLION

    @property
    def sampled_every(self) -> int:
        """Steps between those that ranks sample unasked, of the one that does so least; 0 where nobody says."""
        return self._words[_EVERY]

    def tell_pace(self, overhead_ppm: int, every: int) -> None:
        """Says both, the overhead in millionths; what an agent does."""
        self._words[_OVERHEAD], self._words[_EVERY] = overhead_ppm, every

    def ask(self, window: Window) -> None:
        """Asks for a window; what an agent does."""
        self._words[_FIRST_STEP], self._words[_STEPS] = window.first, window.steps
        self._words[_GENERATION] = (self._words[_GENERATION] + 1) & (2**64 - 1)

    def close(self) -> None:
        """Lets the memory go; the file stays."""
        self._words.release()
        self._map.close()
