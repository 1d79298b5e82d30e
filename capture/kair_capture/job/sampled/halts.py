"""How often a signal stopped this process, as SIGSTOP does: all of its threads at once.

The kernel counts that nowhere: a stopped thread neither computes, nor is it ready. But all threads are woken for it,
also one that only waits. So one is kept, and how often it was given a core tells.
"""

import os
import signal
import sys
from contextlib import suppress
from threading import Lock, Thread
from time import monotonic
from typing import Final

_WAKES: Final = 2
"""Of a waiting thread for each stop: one to stand still, one to go on waiting."""
_BEGUN_WITHIN_S: Final = 0.05


class Halts:
    """Counted from `look` to `close`, while the thread is there."""

    def __init__(self) -> None:
        self._until = Lock()
        self._file = -1
        self._last = 0
        self._waits = False
        """Whether the thread is known to wait by now: until then it is given a core for other reasons."""

    def look(self) -> None:
        """From here on stops are counted. Where no thread can be begun, or the kernel does not count, none are told."""
        self.close()
        self._until, begun = Lock(), Lock()
        self._until.acquire()
        begun.acquire()
        began_s: list[float] = []
        thread = Thread(target=_wait, args=(began_s, begun, self._until), name="kair-halts", daemon=True)
        self._waits = False
        with suppress(OSError, RuntimeError):
            thread.start()
            # Sooner than that it gives up the interpreter only to wait.
            if begun.acquire(timeout=_BEGUN_WITHIN_S):
                self._waits = monotonic() - began_s[0] < sys.getswitchinterval()
            self._file = os.open(f"/proc/self/task/{thread.native_id}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        self._last = self._wakes() or 0

    def count(self) -> int | None:
        """Since the last call, or `look`; None where that is not known. A stop counts when it is over.

        Of a process that a quota stopped just then the thread may have begun to wait at any time since `look`.
        """
        now = self._wakes()
        if now is None:
            return None
        if not self._waits:
            self._waits, self._last = True, now
            return None
        halts = max(now - self._last, 0) // _WAKES
        self._last += _WAKES * halts
        return halts

    def close(self) -> None:
        """Ends the thread."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1
        if self._until.locked():
            self._until.release()

    def _wakes(self) -> int | None:
        """How often the thread was given a core."""
        if self._file < 0:
            return None
        try:
            return int(os.pread(self._file, 64, 0).split()[2])
        except (OSError, ValueError, IndexError):
            return None


def _wait(began_s: list[float], begun: Lock, until: Lock) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # others shall not wake it
    began_s.append(monotonic())
    begun.release()
    until.acquire()
    until.release()
