"""Reads the records of a ring from another process, also after the producer was killed."""

import mmap
import os
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kair_capture.ring.layout import (
    HEADER_BYTES,
    MAGIC,
    RECORD_BYTES,
    VERSION,
    WORD_CAPACITY,
    WORD_COMMITTED_HEAD,
    WORD_COMMITTED_STEP,
    WORD_DROPS,
    WORD_HEAD,
    WORD_MAGIC,
    WORD_PID,
    WORD_RECORD_BYTES,
    WORD_START,
    WORD_TAIL,
    WORD_VERSION,
    ring_bytes,
)
from kair_capture.ring.process_identity import is_running

RECORD_DTYPE: Final = np.dtype(
    [
        ("time_ns", "<u8"),
        ("value", "<u8"),
        ("step", "<u4"),
        ("name", "<u4"),
        ("kind", "<u2"),
        ("depth", "<u2"),
        ("extra", "<u4"),
        ("detail", "<u8"),
        ("sequence", "<u8"),
    ]
)
Records = npt.NDArray[Any]
"""A structured array of RECORD_DTYPE, one element a record."""


class NotARingError(Exception):
    """The file is no ring, one of another version, or damaged."""


class RingReader:
    """The one consumer of a ring. How far it has read is kept in the ring: a restarted reader goes on from there."""

    def __init__(self, path: Path) -> None:
        """Raises OSError where the file cannot be opened, NotARingError where it is no (whole) ring."""
        self.path: Final = path
        self.lost = 0
        """Records whose sequence number was not their own: not yet whole, or overwritten. They are left out."""
        self._map = _opened(path)
        self._words = memoryview(self._map).cast("Q")
        try:
            self.capacity: Final = self._checked_capacity()
        except NotARingError:
            self.close()
            raise
        self.pid: Final = int(self._words[WORD_PID])
        self._began = int(self._words[WORD_START])
        self._records = np.frombuffer(self._map, RECORD_DTYPE, self.capacity, HEADER_BYTES)

    @property
    def drops(self) -> int:
        """Records that found no room."""
        return int(self._words[WORD_DROPS])

    @property
    def waiting(self) -> int:
        """Records that can be read now."""
        return self._span()[1] - self._span()[0]

    @property
    def is_producing(self) -> bool:
        """Whether the process that made the ring still runs."""
        return is_running(self.pid, self._began)

    def committed(self) -> tuple[int, int] | None:
        """The last whole step, and a number of records among which all of its are; None before the first."""
        step = int(self._words[WORD_COMMITTED_STEP])
        return (step - 1, int(self._words[WORD_COMMITTED_HEAD])) if step else None

    def read(self, limit: int | None = None) -> Records:
        """The records that were not read yet, oldest first, at most `limit`; their places are free from then on."""
        records, past = self._copied(limit)
        self._words[WORD_TAIL] = past
        return records

    def peek(self) -> Records:
        """The same without taking them."""
        return self._copied(None)[0]

    def close(self) -> None:
        """Lets the memory go; the file stays."""
        if hasattr(self, "_records"):
            del self._records
        self._words.release()
        self._map.close()

    def _copied(self, limit: int | None) -> tuple[Records, int]:
        tail, head = self._span()
        head = head if limit is None else min(head, tail + limit)
        places = np.arange(tail, head, dtype=np.uint64)
        records = self._records[(places & np.uint64(self.capacity - 1)).astype(np.intp)]
        own = records["sequence"] == places + np.uint64(1)
        if not own.all():
            self.lost += int((~own).sum())
            records = records[own]
        return records, head

    def _span(self) -> tuple[int, int]:
        tail, head = int(self._words[WORD_TAIL]), int(self._words[WORD_HEAD])
        # Words that cannot be (a damaged file) must not make the reader ask for all memory.
        if not tail <= head <= tail + self.capacity:
            return head, head
        return tail, head

    def _checked_capacity(self) -> int:
        words = self._words
        if words[WORD_MAGIC] != MAGIC or words[WORD_VERSION] != VERSION or words[WORD_RECORD_BYTES] != RECORD_BYTES:
            raise NotARingError(f"{self.path} is not a ring of version {VERSION}")
        capacity = int(words[WORD_CAPACITY])
        if capacity < 1 or capacity & (capacity - 1) or ring_bytes(capacity) != len(self._map):
            raise NotARingError(f"{self.path}: {capacity} records do not fill {len(self._map)} bytes")
        return capacity


def _opened(path: Path) -> mmap.mmap:
    handle = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if os.fstat(handle).st_size < HEADER_BYTES + RECORD_BYTES:
            raise NotARingError(f"{path} is too short for a ring")
        return mmap.mmap(handle, 0)
    finally:
        os.close(handle)
