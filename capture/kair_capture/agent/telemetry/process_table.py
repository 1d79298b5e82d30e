"""Tracks the parents of a host's processes, reading only new ones."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from kair_capture.agent.telemetry.kept_files import PROC, names_in

_MOST_BYTES: Final = 4096


class ProcessStat(NamedTuple):
    """Part of /proc/PID/stat, times in ticks; for all threads, except state and waits, which are the first one's."""

    name: str
    state: str
    parent: int
    minor_faults: int
    major_faults: int
    ticks: int
    """CPU time."""
    nice: int
    threads: int
    began: int
    resident_pages: int
    core: int
    """Core on which the first thread last ran."""
    disk_ticks: int
    """Time that the first thread waited for disks; 0 if the kernel does not count it."""
    kernel_ticks: int
    """Kernel time within the CPU time."""


def stat_in(text: bytes) -> ProcessStat | None:
    """Return the parsed text; None if it is invalid. A name may contain blanks and parentheses."""
    begin, end = text.find(b"("), text.rfind(b")")
    words = text[end + 2 :].split(None, 41)
    if begin < 0 or len(words) < 40:
        return None
    try:
        return ProcessStat(
            text[begin + 1 : end].decode(errors="replace"),
            words[0].decode("ascii", "replace"),
            int(words[1]),
            int(words[7]),
            int(words[9]),
            int(words[11]) + int(words[12]),
            int(words[16]),
            int(words[17]),
            int(words[19]),
            int(words[21]),
            int(words[36]),
            int(words[39]),
            int(words[12]),
        )
    except ValueError:
        return None


class ProcessTable:
    """Parents of processes, as of the last `refresh`."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc: Final = proc
        self._root: Final = str(proc)
        self._parents: dict[int, int] = {}
        self._children: dict[int, list[int]] = {}

    def refresh(self) -> None:
        """Add new processes and drop those that have ended."""
        here = self.numbers()
        parents = {pid: parent for pid in here if (parent := self._parents.get(pid)) is not None}
        for pid in here:
            if pid not in parents and (stat := self.stat(pid)) is not None:
                parents[pid] = stat.parent
        self.set_parents(parents)

    def set_parents(self, parents: dict[int, int]) -> None:
        """Set the parents, from a scan of all processes."""
        if parents == self._parents:
            return
        self._parents, self._children = parents, {}
        for pid, parent in parents.items():
            self._children.setdefault(parent, []).append(pid)

    def numbers(self) -> list[int]:
        """Return the numbers of all processes."""
        return [int(name) for name in names_in(self._proc) if name.isdecimal()]

    def stat(self, pid: int) -> ProcessStat | None:
        """Return one reading of a process; None if it has ended."""
        return stat_in(self.text(pid, "stat"))

    def text(self, pid: int, name: str) -> bytes:
        """Return the begin of a process's file; empty if it is unreadable.

        The file is closed, because there may be thousands of processes.
        """
        try:
            handle = os.open(f"{self._root}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return b""
        try:
            return os.read(handle, _MOST_BYTES)
        except OSError:
            return b""  # it has ended
        finally:
            os.close(handle)

    def parent(self, pid: int) -> int | None:
        """Return a process's parent, or the one that adopted it."""
        return self._parents.get(pid)

    def descendants(self, pids: Iterable[int]) -> set[int]:
        """Return all descendants of these processes."""
        found: set[int] = set()
        waiting = list(pids)
        while waiting:
            for child in self._children.get(waiting.pop(), ()):
                if child not in found:
                    found.add(child)
                    waiting.append(child)
        return found
