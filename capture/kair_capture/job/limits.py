"""Reads this process's limits and what stops it: cores, quotas of its control groups, signals.

The kernel does not count how often a signal such as SIGSTOP stopped all threads: a stopped thread neither runs nor is
ready. But each stop wakes all threads, even waiting ones. So one waiting thread is kept, and the number of times it was
given a core shows the stops.
"""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from threading import Lock, Thread
from time import monotonic
from typing import Any, Final

from kair_capture.files import text_in
from kair_capture.job.processor_time import THREADS, open_schedule, schedule_in

PROC: Final = Path("/proc")
GROUPS: Final = Path("/sys/fs/cgroup")
_FIRST_VERSIONS: Final = {"cpu": ("cpu", "cpu,cpuacct", "cpuacct,cpu"), "memory": ("memory",)}
"""Controller → the folders that it may be in."""
_OF_CORES: Final = ("quota", "period")
"""Without a quota the first is not a number: `max`, or −1."""


class Quota:
    """The nearest group around this process with a quota, of control groups v1 or v2."""

    def __init__(self, proc: Path = PROC, groups: Path = GROUPS) -> None:
        self._proc, self._groups = proc, groups
        self._stat: Path | None = None
        self._last: int | None = None

    def look(self) -> None:
        """Find that group now, and count stops from here on."""
        self._stat = next((folder / "cpu.stat" for folder in self._around() if quota_of(folder) is not None), None)
        self._last = self._so_far()

    def stops(self) -> int | None:
        """Return the stops since the last call, or `look`; None without a quota."""
        if self._stat is None:
            self.look()  # one may be set at any time
            return None
        before, self._last = self._last, self._so_far()
        return None if before is None or self._last is None else max(self._last - before, 0)

    def cores(self) -> float | None:
        """Return how many cores it may use, by the smallest quota around it; None without one."""
        return min((cores for folder in self._around() if (cores := quota_of(folder)) is not None), default=None)

    def _around(self) -> list[Path]:
        return groups_around("cpu", text_in(self._proc / "self" / "cgroup"), self._groups)

    def _so_far(self) -> int | None:
        if self._stat is not None:
            for line in text_in(self._stat).splitlines():
                name, _, value = line.partition(" ")
                if name == "nr_throttled" and value.isdecimal():
                    return int(value)
        return None


def groups_around(controller: str, cgroup: str, groups: Path = GROUPS) -> list[Path]:
    """Return a controller's group and those around it, innermost first; a container sees its own as the root.

    `cgroup` is the text of /proc/PID/cgroup.
    """
    for line in cgroup.splitlines():
        _, controllers, name = (*line.split(":", 2), "", "")[:3]
        if controller in controllers.split(","):
            roots = [groups / one for one in _FIRST_VERSIONS[controller]]
        elif not controllers and (groups / "cgroup.controllers").exists():
            roots = [groups]
        else:
            continue
        if (root := next((one for one in roots if one.is_dir()), None)) is None:
            continue
        folder = root / name.lstrip("/")
        inside = folder if folder.is_dir() and ".." not in folder.parts else root
        return [one for one in (inside, *inside.parents) if one.is_relative_to(root)]
    return []


def quota_of(folder: Path) -> float | None:
    """Return the quota in cores (`cpu.max` in v2, `cpu.cfs_quota_us` in v1); None without one."""
    words = text_in(folder / "cpu.max").split() or [text_in(folder / f"cpu.cfs_{of}_us") for of in _OF_CORES]
    if len(words) != len(_OF_CORES) or not all(word.isdecimal() for word in words):
        return None
    quota, period = map(int, words)
    return quota / period if period and quota else None


def limits(quota: Quota) -> dict[str, Any]:
    """Return the `nice` level, the usable `cpus`, and the `quota` of its process in cores; None for none."""
    found: dict[str, Any] = {"nice": None, "cpus": [], "quota": quota.cores()}
    with suppress(OSError):
        found["nice"] = os.getpriority(os.PRIO_PROCESS, 0)
        found["cpus"] = sorted(os.sched_getaffinity(0))
    return found


_WAKES: Final = 2
"""Wakes of a waiting thread per stop: one to stop, one to wait again."""
_BEGUN_WITHIN_S: Final = 0.05


class Halts:
    """Stops by signals, counted from `look` to `close` with a waiting thread."""

    def __init__(self) -> None:
        self._until = Lock()
        self._file = -1
        self._last = 0
        self._waits = False
        """Whether the thread is known to wait: before, it gets a core for other reasons."""

    def look(self) -> None:
        """Start counting stops; nothing is counted without a thread, or if the kernel has no counts."""
        self.close()
        self._until, begun = Lock(), Lock()
        self._until.acquire()
        begun.acquire()
        began_s: list[float] = []
        thread = Thread(target=_wait, args=(began_s, begun, self._until), name="kair-halts", daemon=True)
        self._waits = False
        with suppress(OSError, RuntimeError):
            thread.start()
            # A thread that starts this quickly releases the interpreter only to wait.
            if begun.acquire(timeout=_BEGUN_WITHIN_S):
                self._waits = monotonic() - began_s[0] < sys.getswitchinterval()
            self._file = open_schedule(THREADS / str(thread.native_id))
        self._last = self._wakes() or 0

    def count(self) -> int | None:
        """Return the stops since the last call, or `look`; None if not known. A stop counts when it is over.

        If a quota stopped the process just then, the thread may have begun to wait at any time since `look`.
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
        """End the thread."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1
        if self._until.locked():
            self._until.release()

    def _wakes(self) -> int | None:
        """Return how often the thread was given a core."""
        return schedule_in(self._file)[2] or None


def _wait(began_s: list[float], begun: Lock, until: Lock) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # other signals must not wake it
    began_s.append(monotonic())
    begun.release()
    until.acquire()
    until.release()
