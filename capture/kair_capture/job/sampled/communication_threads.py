"""How long the threads that communicate for this process (gloo's) computed, and were ready and had no core."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

THREADS: Final = Path("/proc/self/task")
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
        """Finds them; from here on their delays are counted. Systems other than Linux tell of none."""
        self.close()
        for folder in self._threads.iterdir() if self._threads.is_dir() else ():
            with suppress(OSError):  # a thread may end at any moment
                if _NAME in (folder / "comm").read_text(errors="replace"):
                    self._files.append(os.open(folder / "schedstat", os.O_RDONLY | os.O_CLOEXEC))
        self._last = self._delays()

    def delay_ns(self) -> int | None:
        """Of the one that lacked a core longest since the last call, or `look`; None where there is none."""
        before, self._last = self._last, self._delays()
        return max((max(now - then, 0) for now, then in zip(self._last, before, strict=True)), default=None)

    def cpu_ns(self) -> int:
        """What all of them have computed so far."""
        return sum(_had(file)[0] for file in self._files)

    def close(self) -> None:
        """Lets the files go."""
        while self._files:
            os.close(self._files.pop())
        self._last = []

    def _delays(self) -> list[int]:
        return [_had(file)[1] for file in self._files]


def _had(file: int) -> tuple[int, int]:
    """CPU time and delay of a thread, ns; of one that has ended, or that the kernel does not count, 0."""
    try:
        cpu, delay = os.pread(file, 64, 0).split()[:2]
        return int(cpu), int(delay)
    except (OSError, ValueError):
        return 0, 0
