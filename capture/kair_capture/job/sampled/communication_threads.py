"""How long the threads that communicate for this process (gloo's) were ready and had no core."""

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

    def look(self) -> None:
        """Finds them; from here on their delays are counted. Systems other than Linux tell of none."""
        self.close()
        for folder in self._threads.iterdir() if self._threads.is_dir() else ():
            with suppress(OSError):  # a thread may end at any moment
                if _NAME in (folder / "comm").read_text(errors="replace"):
                    self._files.append(os.open(folder / "schedstat", os.O_RDONLY | os.O_CLOEXEC))
        self._last = self._so_far()

    def delay_ns(self) -> int | None:
        """Of the one that lacked a core longest since the last call, or `look`; None where there is none."""
        before, self._last = self._last, self._so_far()
        return max((max(now - then, 0) for now, then in zip(self._last, before, strict=True)), default=None)

    def close(self) -> None:
        """Lets the files go."""
        while self._files:
            os.close(self._files.pop())
        self._last = []

    def _so_far(self) -> list[int]:
        return [_delay_ns(file) for file in self._files]


def _delay_ns(file: int) -> int:
    """Of a thread that has ended, or that the kernel does not count, 0."""
    try:
        return int(os.pread(file, 64, 0).split()[1])
    except (OSError, ValueError, IndexError):
        return 0
