"""Files of the system that are read again and again: they stay open, and what cannot be read is no error."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
SYS: Final = Path("/sys")
_MOST_BYTES: Final = 1 << 20
TICKS: Final = os.sysconf("SC_CLK_TCK")
"""Of the kernel's times of processes, a second."""
PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class KeptFile:
    """Of /proc or /sys. A process's file never becomes that of another process with its number."""

    __slots__ = ("_handle", "_is_gone", "_size", "path")

    def __init__(self, path: Path | str, size: int = 4096) -> None:
        """`size`: bytes that it has at most; more are not read but by `read_whole`."""
        self.path: Final = str(path)
        self._size = size
        self._handle = -1
        self._is_gone = False

    @property
    def is_gone(self) -> bool:
        """Whether it cannot be read: not there, not permitted, or its process has ended."""
        return self._is_gone

    def read(self) -> bytes:
        """Its begin; empty where it cannot be read, which is not tried again then."""
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
        """All of it: lists are told a page at a time."""
        first = self.read()
        parts, length = [first], len(first)
        with suppress(OSError):
            while parts[-1] and length < _MOST_BYTES:
                parts.append(os.pread(self._handle, self._size, length))
                length += len(parts[-1])
        return b"".join(parts)

    def read_at(self, place: int) -> bytes:
        """From a place on; empty where there is nothing to be read, or it may not be."""
        with suppress(OSError, OverflowError):
            if self._handle < 0:
                self._handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            return os.pread(self._handle, self._size, place)
        return b""

    def number(self) -> float | None:
        """Where it is one number alone."""
        return number_in(self.read())

    def close(self) -> None:
        """Lets it go; it is opened again when it is read."""
        if self._handle >= 0:
            os.close(self._handle)
        self._handle = -1


def read_once(path: Path | str, size: int = 1 << 16) -> bytes:
    """Return the begin of a file; empty where it cannot be read."""
    file = KeptFile(path, size)
    try:
        return file.read()
    finally:
        file.close()


def number_in(text: bytes) -> float | None:
    """None where it is no number, such as `max`."""
    try:
        return float(text)
    except ValueError:
        return None


def number_after(text: bytes, label: bytes) -> float | None:
    """Return the number that follows the label `label`; None where that is not in the text."""
    at = text.find(label)
    if at < 0:
        return None
    words = text[at + len(label) : at + len(label) + 40].split(None, 1)
    return number_in(words[0]) if words else None


def names_in(folder: Path) -> list[str]:
    """Of a folder's entries, in order; none where it cannot be read."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208  (names alone)
    except OSError:
        return []
