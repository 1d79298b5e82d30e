"""Reads files of the system repeatedly: they stay open, and unreadable ones are no error."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
SYS: Final = Path("/sys")
_MOST_BYTES: Final = 1 << 20
TICKS: Final = os.sysconf("SC_CLK_TCK")
"""Per second, of the kernel's process times."""
PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class KeptFile:
    """A file of /proc or /sys. A process's file never switches to another process with the same number."""

    __slots__ = ("_handle", "_is_gone", "_size", "path")

    def __init__(self, path: Path | str, size: int = 4096) -> None:
        """`size` is the most bytes that `read` returns."""
        self.path: Final = str(path)
        self._size = size
        self._handle = -1
        self._is_gone = False

    @property
    def is_gone(self) -> bool:
        """Return whether it is unreadable: missing, not permitted, or its process has ended."""
        return self._is_gone

    def read(self) -> bytes:
        """Return the file's begin; empty if it is unreadable, which is not retried."""
        if self._is_gone:
            return b""
        try:
            if self._handle < 0:
                self._handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            return os.pread(self._handle, self._size, 0)
        except OSError:
            self.close()
            self._is_gone = True
            return b""

    def read_whole(self) -> bytes:
        """Return the whole file: lists come page by page."""
        first = self.read()
        parts, length = [first], len(first)
        with suppress(OSError):
            while parts[-1] and length < _MOST_BYTES:
                parts.append(os.pread(self._handle, self._size, length))
                length += len(parts[-1])
        return b"".join(parts)

    def read_at(self, place: int) -> bytes:
        """Return the bytes from a position; empty if there are none or reading is not permitted."""
        with suppress(OSError, OverflowError):
            if self._handle < 0:
                self._handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            return os.pread(self._handle, self._size, place)
        return b""

    def number(self) -> float | None:
        """Return the file's only number."""
        return number_in(self.read())

    def close(self) -> None:
        """Close the file; reading opens it again."""
        if self._handle >= 0:
            os.close(self._handle)
        self._handle = -1


def read_once(path: Path | str, size: int = 1 << 16) -> bytes:
    """Return the begin of a file; empty if it is unreadable."""
    file = KeptFile(path, size)
    try:
        return file.read()
    finally:
        file.close()


def number_in(text: bytes) -> float | None:
    """Return the number; None for other texts, such as `max`."""
    try:
        return float(text)
    except ValueError:
        return None


def number_after(text: bytes, label: bytes) -> float | None:
    """Return the number after `label`; None if the label is missing."""
    at = text.find(label)
    if at < 0:
        return None
    words = text[at + len(label) : at + len(label) + 40].split(None, 1)
    return number_in(words[0]) if words else None


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder, sorted; [] if it is unreadable."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208  (names alone)
    except OSError:
        return []
