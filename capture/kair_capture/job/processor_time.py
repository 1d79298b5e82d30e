"""How long this process's threads computed, and were ready and had no core.

The one that trains, those that communicate for it (gloo's), and those that help it (OpenMP's, say) are told apart.
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
    """Return what a thread had of the processor, to be read by `schedule_in`; −1 where the kernel does not count it."""
    try:
        return os.open(thread / "schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def schedule_in(file: int) -> tuple[int, int, int]:
    """CPU time and delay of a thread, ns, and how often it was given a core; 0 of one that has ended."""
    try:
        cpu, delay, times = os.pread(file, 64, 0).split() if file >= 0 else (0, 0, 0)
        return int(cpu), int(delay), int(times)
    except (OSError, ValueError):
        return 0, 0, 0


class Had(NamedTuple):
    """What a thread had of the processor in one step."""

    cpu_ns: int | None
    """None where it waits busily, beside a device."""
    delay_ns: int | None
    """Ready, and without a core; None where the kernel does not count it."""


class ProcessorTime:
    """Of whichever thread asks, as the mean of the last EVERY steps: a look takes 10 µs where caches are cold."""

    def __init__(self, *, waits_busily: bool = False) -> None:
        """`waits_busily`: as for a GPU; then CPU time says nothing, and only steps that are asked for are looked at."""
        self._waits_busily = waits_busily
        self._thread, self._cpu, self._delay, self._file = 0, 0, 0, -1
        self._steps = self._mean = 0
        self.alone: Had | None = None
        """Of the last step alone, where that was asked for and is known."""

    def after_step(self, thinned: int = 1, *, alone: bool = False) -> int:
        """Per step, µs: CPU time in the low 32 bits, waiting for a core in the high ones; 0 while it is not known.

        `thinned`: a look covers so many times as many steps.

        `alone`: not as a mean, which is worth a look where a step costs much anyway; `begin` was called at its begin.
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
        """Drop what was so far, which is no step's."""
        self._steps, self._cpu, self._delay = 0, thread_time_ns(), self._delay_ns()

    def _open(self) -> None:
        """Open the figures; a kernel without them says nothing about waiting for a core, and none is assumed."""
        self._thread = get_ident()
        self.close()
        self._file = open_schedule(THREADS / str(get_native_id()))

    def _delay_ns(self) -> int:
        return schedule_in(self._file)[1]

    def close(self) -> None:
        """Lets the file go."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


def _us_a_step(nanoseconds: int, steps: int) -> int:
    return min(max(nanoseconds // (1000 * steps), 0), _MOST_US)


_NAME: Final = "gloo"
"""In the names that gloo, and PyTorch for it, give their threads."""


class CommunicationThreads:
    """Those that there are when a window begins."""

    def __init__(self, threads: Path = THREADS) -> None:
        self._threads = threads
        self._files: list[int] = []
        self._last: list[int] = []
        """The delay of each so far, ns."""

    def look(self) -> None:
        """Find them; from here on their delays are counted. Systems other than Linux tell of none."""
        self.close()
        for folder in self._threads.iterdir() if self._threads.is_dir() else ():
            with suppress(OSError):  # a thread may end at any moment
                if _NAME in (folder / "comm").read_text(errors="replace") and (file := open_schedule(folder)) >= 0:
                    self._files.append(file)
        self._last = self._delays()

    def delay_ns(self) -> int | None:
        """Of the one that lacked a core longest since the last call, or `look`; None where there is none."""
        before, self._last = self._last, self._delays()
        return max((max(now - then, 0) for now, then in zip(self._last, before, strict=True)), default=None)

    def cpu_ns(self) -> int:
        """Return what all of them have computed so far."""
        return sum(schedule_in(file)[0] for file in self._files)

    def close(self) -> None:
        """Lets the files go."""
        while self._files:
            os.close(self._files.pop())
        self._last = []

    def _delays(self) -> list[int]:
        return [schedule_in(file)[1] for file in self._files]


class HelperThreads:
    """All of this process but the one that asks, and those that communicate: one look however many they are."""

    def __init__(self, communicating: CommunicationThreads) -> None:
        self._communicating = communicating
        self._begin = 0

    def begin(self) -> None:
        """Drop what they computed so far, which is no step's."""
        self._begin = self._so_far()

    def cpu_ns(self) -> int:
        """Return what they computed since `begin`."""
        return max(self._so_far() - self._begin, 0)

    def _so_far(self) -> int:
        return process_time_ns() - thread_time_ns() - self._communicating.cpu_ns()
