"""How long a thread computed, and how long it was ready and had no core: once a step, 2 µs."""

import os
from contextlib import suppress
from threading import get_ident, get_native_id
from time import thread_time_ns
from typing import Final

WORD_BITS: Final = 32
_MOST_US: Final = (1 << WORD_BITS) - 1


class ProcessorTime:
    """Of whichever thread asks."""

    def __init__(self) -> None:
        self._thread, self._cpu, self._delay, self._file = 0, 0, 0, -1

    def since(self) -> int:
        """Since this thread's last call, µs: CPU time in the low 32 bits, waiting for a core in the high ones.

        0 where another thread called last.
        """
        is_same = self._thread == get_ident()
        if not is_same:
            self._open()
        cpu, delay = thread_time_ns(), self._delay_ns()
        before, self._cpu, self._delay = (self._cpu, self._delay), cpu, delay
        if not is_same:
            return 0
        computed, waited = (cpu - before[0]) // 1000, (delay - before[1]) // 1000
        return min(max(computed, 0), _MOST_US) | min(max(waited, 0), _MOST_US) << WORD_BITS

    def _open(self) -> None:
        """A kernel without these figures says nothing of waiting for a core: then none is assumed."""
        self._thread = get_ident()
        self.close()
        with suppress(OSError):
            self._file = os.open(f"/proc/self/task/{get_native_id()}/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def _delay_ns(self) -> int:
        if self._file < 0:
            return 0
        try:
            return int(os.pread(self._file, 64, 0).split()[1])
        except (OSError, ValueError, IndexError):
            return 0

    def close(self) -> None:
        """Lets the file go."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1
