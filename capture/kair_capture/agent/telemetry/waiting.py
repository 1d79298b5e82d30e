"""Finds what a thread of another process waits in: its system call, the file, and where that is stored."""

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from kair_capture.agent.telemetry.host import unescaped
from kair_capture.agent.telemetry.kept_files import KeptFile, number_after, read_once

_OF_A_FILE: Final = frozenset(
    {
        *("read", "pread", "readv", "preadv", "write", "pwrite", "writev", "recv", "recvmsg", "send", "sendmsg"),
        *("connect", "accept"),
        *("getdents", "fstat", "fsync", "fdatasync", "flock", "ioctl"),
    }
)
"""Calls whose first argument is the number of an open file."""
_OF_A_PATH: Final = {"open": 1, "stat": 1, "access": 1, "readlink": 1}
"""Calls with a path → the index of that argument in `openat` and the like."""
_X86: Final = {
    "read": (0,), "write": (1,), "open": (2, 257, 437), "stat": (4, 6, 262, 332), "fstat": (5,), "poll": (7, 271),
    "mmap": (9,), "ioctl": (16,), "pread": (17,), "pwrite": (18,), "readv": (19,), "writev": (20,),
    "access": (21, 269, 439), "connect": (42,), "accept": (43, 288),
    "select": (23, 270), "sched_yield": (24,), "nanosleep": (35, 230), "send": (44,), "recv": (45,), "sendmsg": (46,),
    "recvmsg": (47,), "wait": (61, 247), "flock": (73,), "fsync": (74,), "fdatasync": (75,), "getdents": (78, 217),
    "futex": (202, 449), "epoll_wait": (232, 281, 441), "preadv": (295, 327), "io_getevents": (208, 333),
    "io_uring_enter": (426,), "munmap": (11,), "madvise": (28,), "readlink": (89, 267),
}  # fmt: skip
_ARM: Final = {
    "read": (63,), "write": (64,), "open": (56, 437), "stat": (79, 291), "fstat": (80,), "poll": (73,),
    "mmap": (222,), "ioctl": (29,), "pread": (67,), "pwrite": (68,), "readv": (65,), "writev": (66,),
    "access": (48, 439), "connect": (203,), "accept": (202, 242),
    "select": (72,), "sched_yield": (124,), "nanosleep": (101, 115), "send": (206,), "recv": (207,), "sendmsg": (211,),
    "recvmsg": (212,), "wait": (260, 95), "flock": (32,), "fsync": (82,), "fdatasync": (83,), "getdents": (61,),
    "futex": (98, 449), "epoll_wait": (22, 441), "preadv": (69, 286), "io_getevents": (4, 292),
    "io_uring_enter": (426,), "munmap": (215,), "madvise": (233,), "readlink": (78,),
}  # fmt: skip
"""Names → numbers of calls, from the kernel's tables for 64-bit programs; equivalent calls share a name."""
_TABLES: Final = {"x86_64": _X86, "aarch64": _ARM}
_WITHOUT_FOLDER: Final = frozenset({("x86_64", 2), ("x86_64", 4), ("x86_64", 6), ("x86_64", 21), ("x86_64", 89)})
"""Older variants, whose first argument is the path."""
_MOST_FILES: Final = 8
"""Files that are named; later ones are named by their mount, or a dataset would become a list of names."""
_MOUNTS_FOR_S: Final = 30.0
_PATH_BYTES: Final = 256
RUNNING: Final = "running"
PAGE_FAULT: Final = "page fault"
_KINDS: Final = ("socket:", "pipe:", "anon_inode:")


def calls_of(machine: str) -> Mapping[int, str]:
    """Return call numbers → names on the processor `machine` (as in `uname`); empty if it is not known."""
    return {number: name for name, numbers in _TABLES.get(machine, {}).items() for number in numbers}


class Mount(NamedTuple):
    """One of a process's file systems."""

    folder: str
    kind: str
    """`ext4`, `nfs4`, `fuse.slowfs`."""


class Waiting:
    """Waits of a process's first thread. If its calls are not readable, the kernel's function is used."""

    def __init__(self, process: Path, machine: str | None = None) -> None:
        """`process` is its folder in /proc."""
        self._process = process
        self._machine = machine or platform.machine()
        self._calls = calls_of(self._machine)
        self._call, self._function = KeptFile(process / "syscall", 256), KeptFile(process / "wchan", 128)
        self._mounts: dict[int, Mount] = {}
        self._mounts_ns: int | None = None
        self._files: set[str] = set()

    def text(self, state: str, time_ns: int) -> str | None:
        """Return `read /mnt/data/shard-3 (fuse.slowfs)`, `read socket`, `futex`, `page fault`; None if not known.

        `state` is the thread's, as in /proc/PID/stat.
        """
        if state == "R":
            return RUNNING
        if (call := self._of_call(state, time_ns)) is not None:
            return call
        function = self._function.read().decode("ascii", "replace").strip()
        return f"kernel: {function}" if function not in ("", "0") else None

    def close(self) -> None:
        """Close the files."""
        self._call.close()
        self._function.close()

    def _of_call(self, state: str, time_ns: int) -> str | None:
        words = self._call.read().split()
        try:
            number, arguments = int(words[0]), [int(word, 16) for word in words[1:-2]]
        except (ValueError, IndexError):
            return RUNNING if words == [b"running"] else None
        if number < 0:
            # In no call: a page is read from a file or swap, or a signal has stopped it.
            return PAGE_FAULT if state == "D" else None
        name = self._calls.get(number, f"system call {number}")
        file = None
        if name in _OF_A_FILE and arguments:
            file = self._file(arguments[0], time_ns)
        elif name in _OF_A_PATH:
            place = 0 if (self._machine, number) in _WITHOUT_FOLDER else _OF_A_PATH[name]
            file = self._path_at(arguments[place], time_ns) if place < len(arguments) else None
        return name if file is None else f"{name} {file}"

    def _file(self, number: int, time_ns: int) -> str | None:
        """Return a description of an open file of the process."""
        try:
            path = str((self._process / "fd" / str(number)).readlink())
        except OSError:
            return None
        kind, _, rest = path.partition(":")
        if f"{kind}:" in _KINDS:
            return rest.strip("[]") if kind == "anon_inode" else kind
        mount = number_after(read_once(self._process / "fdinfo" / str(number)), b"mnt_id:")
        return self._told(path, None if mount is None else self._all_mounts(time_ns).get(int(mount)))

    def _path_at(self, address: int, time_ns: int) -> str | None:
        """Return an absolute path in its memory; None for relative ones."""
        memory = KeptFile(self._process / "mem", _PATH_BYTES)
        text = memory.read_at(address).partition(b"\0")[0].decode(errors="replace")
        memory.close()
        if not text.startswith("/"):
            return None
        around = [one for one in self._all_mounts(time_ns).values() if _is_below(text, one.folder)]
        return self._told(text, max(around, key=lambda one: len(one.folder), default=None))

    def _told(self, path: str, mount: Mount | None) -> str:
        """Return a file's name with its mount's type; for later files, only the mount's folder."""
        if path not in self._files:
            if len(self._files) >= _MOST_FILES:
                path = "a file" if mount is None else mount.folder
            else:
                self._files.add(path)
        return path if mount is None else f"{path} ({mount.kind})"

    def _all_mounts(self, time_ns: int) -> dict[int, Mount]:
        if self._mounts_ns is None or time_ns - self._mounts_ns > _MOUNTS_FOR_S * 1e9:
            self._mounts_ns = time_ns
            text = read_once(self._process / "mountinfo", 1 << 20).decode(errors="replace")
            self._mounts = mounts_in(text)
        return self._mounts


def _is_below(path: str, folder: str) -> bool:
    return folder in ("/", path) or path.startswith(f"{folder}/")


def mounts_in(text: str) -> dict[int, Mount]:
    """Return mount number → mount, from /proc/PID/mountinfo; damaged lines are skipped."""
    found: dict[int, Mount] = {}
    for line in text.splitlines():
        before, separator, after = line.partition(" - ")
        words = before.split(" ")
        if separator and after and len(words) >= 5 and words[0].isdecimal():
            found[int(words[0])] = Mount(unescaped(words[4]), unescaped(after.split(" ")[0]))
    return found


def waits_for_a_file(text: str) -> bool:
    """Return whether the text is a wait for a file system."""
    return " /" in text or text == PAGE_FAULT


def waits_of(process: Path, state: str, time_ns: int) -> str | None:
    """Return what a process waits in, read once."""
    waiting = Waiting(process)
    try:
        return waiting.text(state, time_ns)
    finally:
        waiting.close()
