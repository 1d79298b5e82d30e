"""What the system lets this process have, and what holds it up: cores, quotas, signals.

What the system lets this thread have of its host's cores: ranks that have less than others are slow for it.

The quota of CPU time that this process has, and how often it stopped it: what its control groups tell.

How often a signal stopped this process, as SIGSTOP does: all of its threads at once.

The kernel counts that nowhere: a stopped thread neither computes, nor is it ready. But all threads are woken for it,
also one that only waits. So one is kept, and how often it was given a core tells.
"""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from threading import Lock, Thread
from time import monotonic
from typing import Any, Final

PROC: Final = Path("/proc")
GROUPS: Final = Path("/sys/fs/cgroup")
_OF_CORES: Final = ("quota", "period")
"""Of a group without a quota the first is no number: `max`, or −1."""


class Quota:
    """The next group around this process that has a quota, of the first version of control groups or the second."""

    def __init__(self, proc: Path = PROC, groups: Path = GROUPS) -> None:
        self._proc, self._groups = proc, groups
        self._stat: Path | None = None
        self._last: int | None = None

    def look(self) -> None:
        """Which group that is now; from here on stops are counted."""
        self._stat = next((folder / "cpu.stat" for folder in self._around() if _cores(folder) is not None), None)
        self._last = self._so_far()

    def stops(self) -> int | None:
        """Since the last call, or `look`; None where there is no quota."""
        if self._stat is None:
            self.look()  # one may be set at any time
            return None
        before, self._last = self._last, self._so_far()
        return None if before is None or self._last is None else max(self._last - before, 0)

    def cores(self) -> float | None:
        """How many cores' time it may use: by the least of the quotas around it; None where there is none."""
        return min((cores for folder in self._around() if (cores := _cores(folder)) is not None), default=None)

    def _around(self) -> list[Path]:
        """The process's group and those around it; inside a container its own is the root."""
        for line in _text(self._proc / "self" / "cgroup").splitlines():
            _, controllers, name = (*line.split(":", 2), "", "")[:3]
            root = self._groups / "cpu" if controllers else self._groups
            folder = root / name.lstrip("/")
            if "cpu" in controllers.split(",") or (not controllers and (root / "cgroup.controllers").exists()):
                own = folder if folder.is_dir() else root
                return [one for one in (own, *own.parents) if one.is_relative_to(root)]
        return []

    def _so_far(self) -> int | None:
        if self._stat is not None:
            for line in _text(self._stat).splitlines():
                name, _, value = line.partition(" ")
                if name == "nr_throttled" and value.isdecimal():
                    return int(value)
        return None


def _cores(folder: Path) -> float | None:
    """`cpu.max` is of the second version, `cpu.cfs_quota_us` of the first; None where a group has no quota."""
    words = _text(folder / "cpu.max").split() or [_text(folder / f"cpu.cfs_{of}_us").strip() for of in _OF_CORES]
    if len(words) != len(_OF_CORES) or not all(word.isdecimal() for word in words):
        return None
    quota, period = map(int, words)
    return quota / period if period else None


def _text(path: Path) -> str:
    """A small file of the system; empty where there is none."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def limits(quota: Quota) -> dict[str, Any]:
    """Its `nice` level, the `cpus` that it may run on, and the `quota` of its process in cores; None for none."""
    found: dict[str, Any] = {"nice": None, "cpus": [], "quota": quota.cores()}
    with suppress(OSError):
        found["nice"] = os.getpriority(os.PRIO_PROCESS, 0)
        found["cpus"] = sorted(os.sched_getaffinity(0))
    return found


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
