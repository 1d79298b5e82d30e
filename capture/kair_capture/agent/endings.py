"""Finds out how a rank's process ended: its exit status or signal, and the source of that.

The kernel shows it for any process of the same user until its parent collects it, and on Linux 6.15 and later as long
as a pidfd is open. Otherwise the process may have left a mark.
"""

import fcntl
import os
import re
import signal
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from kair_capture.files import object_in
from kair_capture.wire import printable
from kair_engine.results.watch import EndKnownBy
from kair_engine.trace.calls import Frame

_GET_INFO: Final = 0xC040FF0B
"""PIDFD_GET_INFO with the 64 bytes of its first version."""
_INFO_EXIT: Final = 1 << 3
_EXIT_AT: Final = 60
_FAULTS: Final = {
    "Segmentation fault": signal.SIGSEGV,
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
    "Floating point exception": signal.SIGFPE,
    "Floating-point exception": signal.SIGFPE,
    "Illegal instruction": signal.SIGILL,
}
"""`faulthandler`'s names of signals."""
_MOST_BYTES: Final = 1 << 16
_THREAD: Final = re.compile(r"(Current thread|Thread) 0x[0-9a-f]+\b.*\(most recent call first\):")
_FRAME: Final = re.compile(r'  File "(.*)", line (\d{1,9}|\?\?\?) in (.*)')


class Ending(NamedTuple):
    """How a process ended."""

    signal: int
    exit_status: int
    known_by: EndKnownBy
    error: str
    frames: list[Frame]
    at_ns: int
    """When an exception ended it (Unix ns); 0 if not known."""


def ending(
    handle: int | None, pid: int, began: int, fault: Path, end: Path, *, kills: tuple[int | None, int | None]
) -> Ending:
    """Return what is known of a process's end.

    `handle` is a pidfd; `kills` has the out-of-memory kills in its group at its begin and now.
    """
    mark, text = object_in(text_of(end)), text_of(fault)
    frames = _frames_of(mark) or frames_in(text)
    error = printable(str(mark.get("error", "")))[:200]
    at = mark.get("at_ns", 0)
    at = at if isinstance(at, int) and error and 0 < at < 1 << 63 else 0
    status = wait_status(handle, pid, began)
    if status is not None:
        number, code = (os.WTERMSIG(status), -1) if os.WIFSIGNALED(status) else (0, os.WEXITSTATUS(status))
        before, after = kills
        is_out = number == signal.SIGKILL and before is not None and after is not None and after > before
        return Ending(number, code, "out_of_memory" if is_out else "kernel", error, frames, at)
    if (found := _FAULT.search(text)) is not None:
        return Ending(_FAULTS[found[1]], -1, "fault", error, frames, at)
    if mark:
        return Ending(0, 1 if error else 0, "itself", error, frames, at)
    return Ending(0, -1, "", "", frames, 0)


_FAULT: Final = re.compile(rf"^Fatal Python error: ({'|'.join(_FAULTS)})", re.MULTILINE)


def wait_status(handle: int | None, pid: int, began: int) -> int | None:
    """Return the status that the parent gets, as from `waitpid`; None if the kernel does not show it."""
    for _ in range(2):  # its parent may collect it between both attempts
        with suppress(OSError, ValueError, IndexError):
            status = Path(f"/proc/{pid}/stat").read_bytes()
            fields = status[status.rindex(b")") + 2 :].split()
            if fields[0] in (b"Z", b"X") and int(fields[19]) == began:
                return int(fields[49])
        if handle is not None:
            asked = bytearray(64)
            struct.pack_into("<Q", asked, 0, _INFO_EXIT)
            with suppress(OSError):
                fcntl.ioctl(handle, _GET_INFO, asked)
                if struct.unpack_from("<Q", asked)[0] & _INFO_EXIT:
                    return int(struct.unpack_from("<i", asked, _EXIT_AT)[0])
    return None


def kills_file(pid: int) -> Path | None:
    """Return the file that counts out-of-memory kills in the process's memory group; None without one."""
    with suppress(OSError, ValueError):
        lines = Path(f"/proc/{pid}/cgroup").read_text(encoding="ascii", errors="replace").splitlines()
        for line in lines:
            _, controllers, path = line.split(":", 2)
            root, name = ("/sys/fs/cgroup/memory", "memory.oom_control") if controllers else ("/sys/fs/cgroup", _EVENTS)
            if controllers not in ("", "memory"):
                continue
            for folder in (f"{root}{path}", root):  # a container may see its own group as the root
                if memory_kills(file := Path(folder, name)) is not None:
                    return file
    return None


def memory_kills(file: Path | None) -> int | None:
    """Return the number of kills; None if it is not known."""
    with suppress(OSError, ValueError):
        for one in [] if file is None else file.read_text(encoding="ascii").splitlines():
            if one.startswith("oom_kill "):
                return int(one.split()[1])
    return None


_EVENTS: Final = "memory.events"


def frames_in(stacks: str) -> list[Frame]:
    """Return the frames of the thread that was dumped or failed, from `faulthandler`'s text, innermost first."""
    threads: list[tuple[bool, list[Frame]]] = []
    for line in stacks.splitlines():
        if (thread := _THREAD.match(line)) is not None:
            threads.append((thread[1] == "Current thread", []))
        elif threads and (frame := _FRAME.match(line)) is not None:
            threads[-1][1].append((printable(frame[1]), int(frame[2]) if frame[2].isdecimal() else -1, frame[3]))
    # The last one is the first thread: the script's.
    return next((frames for is_current, frames in reversed(threads) if is_current), threads[-1][1] if threads else [])


def text_of(path: Path) -> str:
    """Return the begin of a file of the job; "" if it cannot be read."""
    with suppress(OSError):
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            return file.read(_MOST_BYTES).decode(errors="replace")
    return ""


def _frames_of(mark: dict[str, Any]) -> list[Frame]:
    with suppress(TypeError, ValueError, OverflowError):
        return [(printable(str(file)), int(line), printable(str(name))) for file, line, name in mark.get("frames", ())]
    return []
