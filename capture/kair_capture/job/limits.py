"""What the system lets this process have, and what holds it up: cores, quotas of its control groups, signals.

How often a signal such as SIGSTOP stopped all threads of this process the kernel counts nowhere: a stopped thread
neither computes, nor is it ready. But all threads are woken for it, also one that only waits. So one is kept, and how
often it was given a core tells.
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
"""Of a group without a quota the first is no number: `max`, or −1."""


class Quota:
    """The next group around this process that has a quota, of the first version of control groups or the second."""

    def __init__(self, proc: Path = PROC, groups: Path = GROUPS) -> None:
        self._proc, self._groups = proc, groups
        self._stat: Path | None = None
        self._last: int | None = None

    def look(self) -> None:
        """Which group that is now; from here on stops are counted."""
        self._stat = next((folder / "cpu.stat" for folder in self._around() if quota_of(folder) is not None), None)
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
    """Return the group of a controller and those around it, from the inside; inside a container its own is the root.

    `cgroup`: the text of /proc/PID/cgroup.
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
    """Cores: `cpu.max` is of the second version, `cpu.cfs_quota_us` of the first; None where a group has no quota."""
    words = text_in(folder / "cpu.max").split() or [text_in(folder / f"cpu.cfs_{of}_us") for of in _OF_CORES]
    if len(words) != len(_OF_CORES) or not all(word.isdecimal() for word in words):
        return None
    quota, period = map(int, words)
    return quota / period if period and quota else None


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
            self._file = open_schedule(THREADS / str(thread.native_id))
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
        """End the thread."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1
        if self._until.locked():
            self._until.release()

    def _wakes(self) -> int | None:
        """How often the thread was given a core."""
        return schedule_in(self._file)[2] or None


def _wait(began_s: list[float], begun: Lock, until: Lock) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # others shall not wake it
    began_s.append(monotonic())
    begun.release()
    until.acquire()
    until.release()
