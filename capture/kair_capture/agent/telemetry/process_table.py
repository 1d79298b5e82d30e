"""The processes of a host, of which new ones alone are looked at: who began whom."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from kair_capture.agent.telemetry.kept_files import PROC, names_in

_MOST_BYTES: Final = 4096


class ProcessStat(NamedTuple):
    """A part of /proc/PID/stat, with times in ticks; of all threads, but for state and waits of the first one."""

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
    """On which the first thread ran last."""
    disk_ticks: int
    """That the first thread waited for disks; 0 where the kernel does not count it."""
    kernel_ticks: int
    """Of the CPU time what the kernel worked for it."""


def stat_in(text: bytes) -> ProcessStat | None:
    """None where the text is none. A name may have blanks and brackets in it."""
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
    """Who began whom, as of the last `refresh`."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc: Final = proc
        self._root: Final = str(proc)
        self._parents: dict[int, int] = {}
        self._children: dict[int, list[int]] = {}

    def refresh(self) -> None:
        """Find those that are new, and forget those that have ended."""
        here = self.numbers()
        parents = {pid: parent for pid in here if (parent := self._parents.get(pid)) is not None}
        for pid in here:
            if pid not in parents and (stat := self.stat(pid)) is not None:
                parents[pid] = stat.parent
        self.set_parents(parents)

    def set_parents(self, parents: dict[int, int]) -> None:
        """By someone who has looked at all of them."""
        if parents == self._parents:
            return
        self._parents, self._children = parents, {}
        for pid, parent in parents.items():
            self._children.setdefault(parent, []).append(pid)

    def numbers(self) -> list[int]:
        """Of all processes that there are."""
        return [int(name) for name in names_in(self._proc) if name.isdecimal()]

    def stat(self, pid: int) -> ProcessStat | None:
        """Of one that is looked at once; None where it has ended."""
        return stat_in(self.text(pid, "stat"))

    def text(self, pid: int, name: str) -> bytes:
        """Return the begin of a file of a process; empty where it cannot be read.

        There may be thousands of processes.
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
        """Who began it, or took it over."""
        return self._parents.get(pid)

    def descendants(self, pids: Iterable[int]) -> set[int]:
        """Their children, and those's children."""
        found: set[int] = set()
        waiting = list(pids)
        while waiting:
            for child in self._children.get(waiting.pop(), ()):
                if child not in found:
                    found.add(child)
                    waiting.append(child)
        return found
