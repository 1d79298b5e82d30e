"""Reads the limits and counters of a process's control groups, v1 or v2."""

from pathlib import Path
from typing import NamedTuple

from kair_capture.agent.telemetry.kept_files import KeptFile, number_after, number_in, read_once
from kair_capture.job.limits import GROUPS, groups_around, quota_of


class Throttling(NamedTuple):
    """Throttling of a group by its quota so far: time of its threads (s, summed over cores), and how often."""

    time_s: float | None
    times: float | None


class ControlGroups:
    """The groups of processes that share them. `look` finds them; their counter files stay open."""

    def __init__(self, cgroup: str, groups: Path = GROUPS) -> None:
        """`cgroup` is the text of /proc/PID/cgroup."""
        self._own, self._groups = cgroup, groups
        self.quota: float | None = None
        """Usable cores by the smallest quota around it; None if unlimited."""
        self.memory_limit: float | None = None
        """Bytes by the smallest limit around it; None if unlimited."""
        self._is_seen = False
        """Whether its groups of CPU time are visible."""
        self._stat: KeptFile | None = None
        self._pressure: KeptFile | None = None
        self._read_ns = -1
        self._texts = (b"", b"")

    def look(self) -> None:
        """Find the present groups and their limits."""
        around = {one: groups_around(one, self._own, self._groups) for one in ("cpu", "memory")}
        self._is_seen = bool(around["cpu"])
        quotas = [(cores, folder) for folder in around["cpu"] if (cores := quota_of(folder)) is not None]
        self.quota, folder = min(quotas, default=(None, None), key=lambda one: one[0] or 0)
        self._stat = _kept(self._stat, folder, "cpu.stat")
        limits = [limit for one in around["memory"] if (limit := _memory_limit(one)) is not None]
        self.memory_limit = min(limits, default=None)
        with_pressure = (one for one in around["memory"][:1] if (one / "memory.pressure").exists())
        self._pressure = _kept(self._pressure, next(with_pressure, None), "memory.pressure")

    def throttling(self, time_ns: int) -> Throttling | None:
        """Return the throttling by the smallest quota, 0 without one; None if the groups of CPU time are not visible.

        Calls with the same time share one reading.
        """
        if self._stat is None:
            return Throttling(0.0, 0.0) if self._is_seen else None
        text = self._read(time_ns)[0]
        if not text:
            return None
        ns, us = number_after(text, b"throttled_time "), number_after(text, b"throttled_usec ")
        time_s = ns / 1e9 if ns is not None else us / 1e6 if us is not None else None
        return Throttling(time_s, number_after(text, b"nr_throttled "))

    def memory_stalls_s(self, time_ns: int) -> float | None:
        """Return how long some task of the group has waited for memory (s); None if not known."""
        return _us(number_after(self._read(time_ns)[1], b"total="))

    def _read(self, time_ns: int) -> tuple[bytes, bytes]:
        if time_ns != self._read_ns:
            self._read_ns = time_ns
            stat, pressure = (b"" if file is None else file.read() for file in (self._stat, self._pressure))
            self._texts = stat, pressure
        return self._texts

    def close(self) -> None:
        """Close the files."""
        for file in (self._stat, self._pressure):
            if file is not None:
                file.close()


def _memory_limit(folder: Path) -> float | None:
    """Return `memory.max`, or `memory.limit_in_bytes`, which is about 2⁶³ without a limit."""
    text = read_once(folder / "memory.max") or read_once(folder / "memory.limit_in_bytes")
    limit = number_in(text)
    return limit if limit is not None and limit < 2**62 else None


def _kept(before: KeptFile | None, folder: Path | None, name: str) -> KeptFile | None:
    """Return the open file if it is still the right one, else a new one."""
    path = None if folder is None else str(folder / name)
    if before is not None:
        if before.path == path:
            return before
        before.close()
    return None if path is None else KeptFile(path)


def _us(number: float | None) -> float | None:
    return None if number is None else number / 1e6
