"""Implements a ring of fixed-size records in shared memory, between one training thread and one consuming process.

It is one file: a header of 4,096 bytes, then `capacity` records of 48 bytes, little endian. Each published word has its
own cache line. A record costs 0.3 to 0.4 µs (benchmarks/capture/ring.py). If the ring is full, new records are dropped
and counted: training never waits for the reader. The texts that records refer to by number are in an append-only file
per process, which is read while it grows.
"""

import mmap
import os
import platform
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import Final

MAGIC: Final = 0x4B41_4952_5249_4E47
VERSION: Final = 1

HEADER_BYTES: Final = 4096
RECORD: Final = struct.Struct("<QQIIHHIQQ")
"""time_ns, value, step, name, kind, depth, extra, detail, sequence; the sequence is the record's index + 1."""
RECORD_BYTES: Final = RECORD.size

# Indices of the header's 64-bit words; a cache line has eight.
WORD_MAGIC: Final = 0
WORD_VERSION: Final = 1
WORD_CAPACITY: Final = 2
WORD_RECORD_BYTES: Final = 3
WORD_PID: Final = 4
WORD_START: Final = 5
"""When the producing process began (/proc/PID/stat, ticks since boot), in case its pid is reused."""
WORD_ORDERING: Final = 6
WORD_HEAD: Final = 8
"""Records below this index may be read."""
WORD_COMMITTED_STEP: Final = 16
"""The last complete step, + 1; 0 before the first."""
WORD_COMMITTED_HEAD: Final = 17
"""The head when that step was committed; written before the step, so it is never behind it."""
WORD_TAIL: Final = 24
"""Records that were read; only the consumer writes it."""
WORD_DROPS: Final = 32
"""Records that found no room."""

DEFAULT_CAPACITY: Final = 1 << 15


class Ordering(IntEnum):
    """When a record may be read."""

    AT_ONCE = 1
    """Stores are visible in program order (x86-64), so the head is published with every record."""
    STEP_LATE = 2
    """They may not be: the head is published at a step's end, and then only up to the step before."""


class Kind(IntEnum):
    """The subject of a record."""

    STEP = 1
    """A finished step: time is its begin, value its duration, extra its flags (StepFlag), detail ProcessorTime, or in a
    thinned one its waiting in collectives (ns); name is its number of samples, 0 if not known.
    """
    SCOPE = 2
    """A finished scope: time, value, name, depth (0 outermost)."""
    COLLECTIVE = 3
    """A thread was inside a collective, or waited for one: time, value, name."""
    GC = 4
    """A pause of the garbage collector: time, value; extra is the generation."""
    INPUT = 5
    """The loop waited for its data loader: time, value."""
    CLOCK = 6
    """The two clocks at one moment: time is CLOCK_MONOTONIC, value Unix time, extra the ns between both readings."""
    USER_EVENT = 7
    """A named moment or value: time, value, name."""
    DELAY = 8
    """`kair confirm` delayed the step: time, value, name (the place)."""
    DEVICE = 9
    """The rank's own time of steps that its device has ended since the last such record: value is their mean, extra
    their number.
    """


class StepFlag(IntEnum):
    """Bits of a STEP record's `extra`."""

    SKIPPED = 1
    """The optimizer was not run, as with mixed precision when gradients overflow."""
    ACCUMULATING = 2
    """Several backward passes preceded the optimizer's step."""
    SAMPLED = 4
    """The profiler was on, which slows the step: it says nothing about its rank."""
    INCOMPLETE = 8
    """It ended by something other than the next step's begin."""
    MISSED = 16
    """A requested window before it was missed: the rank was past it, or had no profiler."""
    DELAYED = 32
    """`kair confirm` delayed some rank in it, or in the previous step: it says nothing about any rank's speed."""
    THINNED = 64
    """Its parts were not recorded, because steps are short: those of the last step that recorded them are used."""


UNFIT: Final = StepFlag.SAMPLED | StepFlag.INCOMPLETE | StepFlag.DELAYED
"""Flags of steps that say nothing about their rank's speed."""
EVERY_SHIFT: Final = 8
"""Lowest of four bits in a STEP record's `extra`: log2 of the interval between steps that record their parts."""


def processor_ordering() -> Ordering:
    """Return this processor's guarantee.

    Python has no fence. On x86-64 none is needed: stores are seen in program order, and an aligned store of eight bytes
    is never torn. On others (aarch64) a head could become visible before the record that it covers.
    """
    return Ordering.AT_ONCE if platform.machine().lower() in ("x86_64", "amd64") else Ordering.STEP_LATE


def ring_bytes(capacity: int) -> int:
    """Return the size of a ring's file."""
    return HEADER_BYTES + capacity * RECORD_BYTES


def start_ticks(pid: int) -> int:
    """Return when the process began, in clock ticks since boot; 0 without a process or /proc."""
    stat = _stat(pid)
    return int(stat[19]) if stat else 0


def is_stopped(pid: int) -> bool:
    """Return whether a signal such as SIGSTOP has stopped the process."""
    return _stat(pid)[:1] == [b"T"]


def _stat(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat from the state on; empty without a process or /proc."""
    with suppress(OSError):
        # The name, in parentheses, may itself contain spaces and parentheses.
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return []


def unix_of_ticks(ticks: int, ahead_ns: int = 0) -> int:
    """Return the Unix time (s) of these clock ticks since boot; 0 for 0, which means a process that is not known.

    `ahead_ns` is how far the used time is ahead of the host's clock.
    """
    booted = time.time() + ahead_ns * 1e-9 - time.clock_gettime(time.CLOCK_BOOTTIME)
    return max(int(booted + ticks / os.sysconf("SC_CLK_TCK")), 0) if ticks else 0


def is_running(pid: int, began: int) -> bool:
    """Return whether the process that began then exists; a zombie does not count."""
    try:
        status = Path(f"/proc/{pid}/stat").read_bytes()
        state, *rest = status[status.rindex(b")") + 2 :].split()
        return state not in (b"Z", b"X") and int(rest[18]) == began
    except (OSError, ValueError, IndexError):
        return False


def process_namespace() -> int:
    """Return an id of this process's PID namespace, which containers may not share; 0 without /proc."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0


OTHER: Final = 0
"""The number of no name, and of all names beyond the limit."""
MOST_NAMES: Final = 4096
MOST_CHARACTERS: Final = 200


class NameWriter:
    """Gives every text a number, from 1 on, and stores it before the number is first used. Thread-safe."""

    def __init__(self, path: Path) -> None:
        """Append to an existing file, because a process can be captured twice. Raises OSError."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._handle = os.open(path, flags, 0o600)
        self.numbers: dict[str, int] = NameReader(path).numbers()
        """The numbers so far. Lookups need no lock: they are atomic, and a number never changes."""
        # A signal handler or finalizer can run in the middle of `_added` and come here too.
        self._lock, self._is_adding = threading.RLock(), False

    def number(self, text: str) -> int:
        """Return the text's number; OTHER for a new text once there are MOST_NAMES. Raises OSError on a full disk."""
        return self.numbers.get(text) or self._added(text)

    def close(self) -> None:
        """Close the file, which stays."""
        os.close(self._handle)

    def _added(self, text: str) -> int:
        with self._lock:
            if text in self.numbers:
                return self.numbers[text]
            if len(self.numbers) >= MOST_NAMES or self._is_adding:
                return OTHER
            self._is_adding = True
            try:
                number = len(self.numbers) + 1
                # One write: a reader sees at most the line's begin, and waits for its end.
                os.write(self._handle, f"{number}\t{_one_line(text)}\n".encode())
                self.numbers[text] = number
            finally:
                self._is_adding = False
            return number


class NameReader:
    """The texts of a names file, as far as it is written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._texts: dict[int, str] = {OTHER: ""}

    def text(self, number: int) -> str:
        """Return the text of a number; `?` if it is missing."""
        if number not in self._texts:
            self._follow()
        return self._texts.get(number, "?")

    def numbers(self) -> dict[str, int]:
        """Return text → number for all names."""
        self._follow()
        return {text: number for number, text in self._texts.items() if number != OTHER}

    def _follow(self) -> None:
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                whole, end, _ = file.read(MOST_NAMES * (MOST_CHARACTERS * 4 + 16)).rpartition(b"\n")
        except OSError:
            return
        self._read += len(whole) + len(end)
        for line in whole.split(b"\n"):
            number, _, text = line.decode(errors="replace").partition("\t")
            if number.isdecimal() and int(number) <= MOST_NAMES:
                self._texts[int(number)] = text


def _one_line(text: str) -> str:
    """Return the text in printable characters, cut; what cannot be encoded is replaced."""
    kept = text[:MOST_CHARACTERS].encode(errors="replace").decode()
    return "".join(character if character.isprintable() else "�" for character in kept)


Emit = Callable[..., bool]
"""Appends one record, in the order of its fields, trailing zeros omitted; returns whether there was room.

Times are in ns of CLOCK_MONOTONIC, every field within the unsigned width of the record's.
"""


class RingProducer:
    """A new ring in the file `path`. `emit` and `commit` are called from one thread only.

    Published words are written through a memoryview of 64-bit words, one store each: `struct.pack_into` zeroes its
    target first, which a concurrent reader would see.
    """

    def __init__(self, path: Path, capacity: int = DEFAULT_CAPACITY, ordering: Ordering | None = None) -> None:
        """`capacity` is a power of two. Raises OSError if the file cannot be created."""
        if capacity < 1 or capacity & (capacity - 1):
            raise ValueError(f"a ring's capacity is a power of two, got {capacity}")
        self.path: Final = path
        self._map = _create(path, ring_bytes(capacity))
        self._words = memoryview(self._map).cast("Q")
        self._fill_header(capacity, processor_ordering() if ordering is None else ordering)
        self.emit, self.commit, self._publish = _writing(self._map, self._words, capacity)

    @property
    def drops(self) -> int:
        """Return how many records found no room."""
        return int(self._words[WORD_DROPS])

    def close(self) -> None:
        """Release the memory; the file stays for its reader. A later emit raises ValueError."""
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
        words[WORD_MAGIC] = MAGIC  # last: without it a reader treats the file as unfinished


def _create(path: Path, size: int) -> mmap.mmap:
    # Never write into another process's ring: its reader may still use it.
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        # Without allocated pages, a full /dev/shm would end the training process by SIGBUS at the first access.
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
    """Return the functions that write a record, end a step, and publish what is held back.

    They are closures, whose variables are found in half the time of attributes.
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
        # A signal handler or finalizer can run between any two lines and emit too.
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
            # Taking and releasing a lock orders earlier stores; besides, a whole step lies between.
            with fence:
                pass
            words[WORD_HEAD] = whole[0]
        # In this order, so that a visible step's records lie below the visible head.
        words[WORD_COMMITTED_HEAD] = whole[0]
        words[WORD_COMMITTED_STEP] = whole[1]

    def publish() -> None:
        with fence:
            pass
        words[WORD_HEAD] = head

    return emit, commit, publish
