"""Writes records from one thread of a training process.

A record costs 0.3 to 0.4 µs (benchmarks/capture/ring.py). Where the ring is full the new record is dropped and counted:
training never waits for who reads.
"""

import mmap
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from kair_capture.ring.layout import (
    DEFAULT_CAPACITY,
    HEADER_BYTES,
    MAGIC,
    RECORD,
    RECORD_BYTES,
    VERSION,
    WORD_CAPACITY,
    WORD_COMMITTED_HEAD,
    WORD_COMMITTED_STEP,
    WORD_DROPS,
    WORD_HEAD,
    WORD_MAGIC,
    WORD_ORDERING,
    WORD_PID,
    WORD_RECORD_BYTES,
    WORD_START,
    WORD_TAIL,
    WORD_VERSION,
    Ordering,
    processor_ordering,
    ring_bytes,
)
from kair_capture.ring.process_identity import start_ticks


class Emit(Protocol):
    """Appends one record; its return says whether there was room."""

    def __call__(  # noqa: PLR0917  # a keyword costs 30 ns more
        self,
        kind: int,
        time_ns: int,
        value: int,
        step: int,
        name: int = 0,
        depth: int = 0,
        extra: int = 0,
        detail: int = 0,
    ) -> bool:
        """Times in ns of CLOCK_MONOTONIC; every field within the unsigned width of the record's."""


class RingProducer:
    """A new ring in the file `path`. `emit` and `commit` are called from one thread only.

    Published words are written through a memoryview of 64-bit words, one store each: `struct.pack_into` zeroes its
    target first, and a reader beside it sees that.
    """

    def __init__(self, path: Path, capacity: int = DEFAULT_CAPACITY, ordering: Ordering | None = None) -> None:
        """`capacity` is a power of two. Raises OSError where the file cannot be made."""
        if capacity < 1 or capacity & (capacity - 1):
            raise ValueError(f"a ring's capacity is a power of two, got {capacity}")
        self.path: Final = path
        self._map = _create(path, ring_bytes(capacity))
        self._words = memoryview(self._map).cast("Q")
        self._fill_header(capacity, processor_ordering() if ordering is None else ordering)
        self.emit, self.commit, self._publish = _writing(self._map, self._words, capacity)

    @property
    def drops(self) -> int:
        """Records that found no room."""
        return int(self._words[WORD_DROPS])

    def close(self) -> None:
        """Lets the memory go; the file stays for who reads it. What is emitted later raises ValueError."""
        self._publish()
        self._words.release()
        self._map.close()

    def _fill_header(self, capacity: int, ordering: Ordering) -> None:
        words = self._words
        words[WORD_VERSION] = VERSION
        words[WORD_CAPACITY] = capacity
        words[WORD_RECORD_BYTES] = RECORD_BYTES
        words[WORD_PID] = os.getpid()
        words[WORD_START] = start_ticks(os.getpid())
        words[WORD_ORDERING] = ordering
        words[WORD_MAGIC] = MAGIC  # last: a reader takes a file without it for one that is being made


def _create(path: Path, size: int) -> mmap.mmap:
    # A ring that is left from another process is not written into: its reader may still be at it.
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        # Without its pages a full /dev/shm would end the training process by SIGBUS at the first touch.
        os.posix_fallocate(handle, 0, size)
        return mmap.mmap(handle, size)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(handle)


def _writing(
    memory: mmap.mmap, words: "memoryview[int]", capacity: int
) -> tuple[Emit, Callable[[int], None], Callable[[], None]]:
    """The functions that write: a record, a step's end, and what is held back.

    Closures: their variables are found in half the time of attributes.
    """
    pack_into, mask = RECORD.pack_into, capacity - 1
    step_late = words[WORD_ORDERING] == Ordering.STEP_LATE
    head = tail = 0
    before = (0, 0)  # records up to the end of the last step, and that step + 1
    busy = False
    fence = threading.Lock()

    def emit(  # noqa: PLR0917  # a keyword costs 30 ns more
        kind: int, time_ns: int, value: int, step: int, name: int = 0, depth: int = 0, extra: int = 0, detail: int = 0
    ) -> bool:
        nonlocal head, tail, busy
        # A signal's handler, or a finalizer, can run between any two lines and emit itself.
        if busy:
            words[WORD_DROPS] += 1
            return False
        busy = True
        try:
            if head - tail >= capacity:
                tail = words[WORD_TAIL]
                if head - tail >= capacity:
                    words[WORD_DROPS] += 1
                    return False
            end = head + 1
            pack_into(
                memory, HEADER_BYTES + (head & mask) * RECORD_BYTES,
                time_ns, value, step, name, kind, depth, extra, detail, end,
            )  # fmt: skip
            head = end
            if not step_late:
                words[WORD_HEAD] = end
            return True
        finally:
            busy = False

    def commit(step: int) -> None:
        nonlocal before
        whole = (head, step + 1)
        if step_late:
            whole, before = before, whole
            # A lock taken and given back orders what was stored before it; a whole step lies between, besides.
            with fence:
                pass
            words[WORD_HEAD] = whole[0]
        # In this order: the records of the step that a reader sees lie below the head that it sees then.
        words[WORD_COMMITTED_HEAD] = whole[0]
        words[WORD_COMMITTED_STEP] = whole[1]

    def publish() -> None:
        with fence:
            pass
        words[WORD_HEAD] = head

    return emit, commit, publish
