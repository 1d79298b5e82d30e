"""Measures how long this process's threads computed, and were ready without a core.

It separates the training thread, threads that communicate for it (gloo's), and helpers (such as OpenMP's).
"""

import os
from contextlib import suppress
from pathlib import Path
from threading import get_ident, get_native_id
from time import process_time_ns, thread_time_ns
from typing import Final, NamedTuple

WORD_BITS: Final = 32
EVERY: Final = 4
_MOST_US: Final = (1 << WORD_BITS) - 1


THREADS: Final = Path("/proc/self/task")


def open_schedule(thread: Path) -> int:
    """Return a file for `schedule_in` with a thread's processor time; −1 if the kernel does not count it."""
    try:
        return os.open(thread / "schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def schedule_in(file: int) -> tuple[int, int, int]:
    """Return CPU time and delay of a thread in ns, and how often it was given a core; 0 for one that has ended."""
    try:
        cpu, delay, times = os.pread(file, 64, 0).split() if file >= 0 else (0, 0, 0)
        return int(cpu), int(delay), int(times)
    except (OSError, ValueError):
        return 0, 0, 0


class Had(NamedTuple):
    """A thread's processor time in one step."""

    cpu_ns: int | None
    """None if it waits busily for a device."""
    delay_ns: int | None
    """Ready without a core; None if the kernel does not count it."""


class ProcessorTime:
    """Processor time of the calling thread, a mean of the last EVERY steps: a look takes 10 µs with cold caches."""

    def __init__(self, *, waits_busily: bool = False) -> None:
        """`waits_busily`, as for a GPU: CPU time then means nothing, and only requested steps are measured."""
        self._waits_busily = waits_busily
        self._thread, self._cpu, self._delay, self._file = 0, 0, 0, -1
        self._steps = self._mean = 0
        self.alone: Had | None = None
        """The last step alone, if requested and known."""

    def after_step(self, thinned: int = 1, *, alone: bool = False) -> int:
        """Return, per step in µs, CPU time in the low 32 bits and waiting for a core in the high ones; 0 if not known.

        `thinned` multiplies the steps that a look covers. `alone` measures a single step, which is worthwhile where it
        is expensive anyway, if `begin` was called at its begin.
        """
        self.alone = None
        if self._thread != get_ident():
            self._open()
            self.begin()
            self._mean = 0
            return 0
        if self._waits_busily and not alone:
            return 0
        self._steps += 1
        if alone or self._steps >= EVERY * thinned:
            steps, before = self._steps, (self._cpu, self._delay)
            self.begin()
            computed, waited = self._cpu - before[0], self._delay - before[1]
            self._mean = _us_a_step(computed, steps) | _us_a_step(waited, steps) << WORD_BITS
            if alone and steps == 1:
                cpu = None if self._waits_busily else max(computed, 0)
                self.alone = Had(cpu, max(waited, 0) if self._file >= 0 else None)
        return 0 if self._waits_busily else self._mean

    def begin(self) -> None:
        """Drop the time so far, which belongs to no step."""
        self._steps, self._cpu, self._delay = 0, thread_time_ns(), self._delay_ns()

    def _open(self) -> None:
        """Open the counters; without them no waiting for a core is assumed."""
        self._thread = get_ident()
        self.close()
        self._file = open_schedule(THREADS / str(get_native_id()))

    def _delay_ns(self) -> int:
        return schedule_in(self._file)[1]

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


def _us_a_step(nanoseconds: int, steps: int) -> int:
    return min(max(nanoseconds // (1000 * steps), 0), _MOST_US)


_NAME: Final = "gloo"
"""Part of the thread names of gloo, and PyTorch's for it."""


class CommunicationThreads:
    """Communication threads that exist when a window begins."""

    def __init__(self, threads: Path = THREADS) -> None:
        self._threads = threads
        self._files: list[int] = []
        self._last: list[int] = []
        """The delay of each so far, in ns."""

    def look(self) -> None:
        """Find them, and count their delays from here on. Systems other than Linux have none."""
        self.close()
        for folder in self._threads.iterdir() if self._threads.is_dir() else ():
            with suppress(OSError):  # a thread may end at any moment
                if _NAME in (folder / "comm").read_text(errors="replace") and (file := open_schedule(folder)) >= 0:
                    self._files.append(file)
        self._last = self._delays()

    def delay_ns(self) -> int | None:
        """Return the longest delay of any of them since the last call, or `look`; None without any."""
        before, self._last = self._last, self._delays()
        return max((max(now - then, 0) for now, then in zip(self._last, before, strict=True)), default=None)

    def cpu_ns(self) -> int:
        """Return the CPU time of all of them so far."""
        return sum(schedule_in(file)[0] for file in self._files)

    def close(self) -> None:
        """Close the files."""
        while self._files:
            os.close(self._files.pop())
        self._last = []

    def _delays(self) -> list[int]:
        return [schedule_in(file)[1] for file in self._files]


class HelperThreads:
    """All other threads, except communicating ones: one look, whatever their number."""

    def __init__(self, communicating: CommunicationThreads) -> None:
        self._communicating = communicating
        self._begin = 0

    def begin(self) -> None:
        """Drop their CPU time so far, which belongs to no step."""
        self._begin = self._so_far()

    def cpu_ns(self) -> int:
        """Return their CPU time since `begin`."""
        return max(self._so_far() - self._begin, 0)

    def _so_far(self) -> int:
        return process_time_ns() - thread_time_ns() - self._communicating.cpu_ns()
