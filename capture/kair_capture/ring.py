"""A ring of fixed-size records in shared memory: one producing thread of a training process, one consuming process.

It is one file: a header of 4,096 bytes, then `capacity` records of 48 bytes, little endian. Each published word stands
on a cache line of its own. A record costs 0.3 to 0.4 µs (benchmarks/capture/ring.py). Where the ring is full the new
record is dropped and counted: training never waits for who reads. The texts that records name by number are in an
append-only file per process, read while it grows.
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
"""When the producing process began (/proc/PID/stat, ticks since boot), so that a pid used again is not taken for it."""
WORD_ORDERING: Final = 6
WORD_HEAD: Final = 8
"""Records that may be read: all indices below."""
WORD_COMMITTED_STEP: Final = 16
"""The last step that is whole, + 1; 0 before the first."""
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
    """The processor makes stores visible in program order (x86-64), so the head is published with every record."""
    STEP_LATE = 2
    """It may not: the head is published at a step's end, and then only up to the step before."""


class Kind(IntEnum):
    """What a record is about."""

    STEP = 1
    """A step that is over: time is its begin, value its duration, extra its flags (StepFlag), detail ProcessorTime, in
    a thinned one what it waited in collectives (ns); in place of a name how many samples it took, 0 where nobody said
    so."""
    SCOPE = 2
    """A scope that is over: time, value, name, depth (0 outermost)."""
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
    """`kair confirm` held the step up: time, value, name (the place)."""
    DEVICE = 9
    """The rank's own time of the steps that its device has ended since the last such record: value is their mean, extra
    their number."""


class StepFlag(IntEnum):
    """Bits of a STEP record's `extra`."""

    SKIPPED = 1
    """The optimizer was not run, as with mixed precision when gradients overflow."""
    ACCUMULATING = 2
    """Several backward passes went before the optimizer's step."""
    SAMPLED = 4
    """The profiler was on: this step is slower for it, and says nothing about its rank."""
    INCOMPLETE = 8
    """It ended otherwise than by the next step's begin."""
    MISSED = 16
    """Before it, a window that was asked for was missed: the rank was past it, or had no profiler."""
    DELAYED = 32
    """`kair confirm` delayed some rank in it, or in the step before: it says nothing about any rank's speed."""
    THINNED = 64
    """Its parts were not recorded, as steps are short: those of the last step that recorded them stand for its own."""


UNFIT: Final = StepFlag.SAMPLED | StepFlag.INCOMPLETE | StepFlag.DELAYED
"""Flags of steps that say nothing about their rank's speed."""
EVERY_SHIFT: Final = 8
"""From this bit of a STEP record's `extra` on, four bits: log2 of how many steps there are to one that records its
parts."""


def processor_ordering() -> Ordering:
    """Return what this processor promises.

    Python has no fence. On x86-64 none is needed: stores are seen in program order, and an aligned store of eight bytes
    is never torn. On others (aarch64) a head could become visible before the record that it covers.
    """
    return Ordering.AT_ONCE if platform.machine().lower() in ("x86_64", "amd64") else Ordering.STEP_LATE


def ring_bytes(capacity: int) -> int:
    """Return the size of a ring's file."""
    return HEADER_BYTES + capacity * RECORD_BYTES


def start_ticks(pid: int) -> int:
    """When the process began, in clock ticks since boot; 0 where there is none, or no /proc."""
    stat = _stat(pid)
    return int(stat[19]) if stat else 0


def is_stopped(pid: int) -> bool:
    """Whether a signal such as SIGSTOP holds the process."""
    return _stat(pid)[:1] == [b"T"]


def _stat(pid: int) -> list[bytes]:
    """Fields of /proc/PID/stat from the state on; none where there is no such process, or no /proc."""
    with suppress(OSError):
        # The name, in brackets, may hold spaces and brackets itself.
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return []


def unix_of_ticks(ticks: int, ahead_ns: int = 0) -> int:
    """When it was so many clock ticks since boot, Unix s; 0 for 0, which stands for a process that is not known.

    `ahead_ns`: how far what counts as the time is ahead of the host's clock.
    """
    booted = time.time() + ahead_ns * 1e-9 - time.clock_gettime(time.CLOCK_BOOTTIME)
    return max(int(booted + ticks / os.sysconf("SC_CLK_TCK")), 0) if ticks else 0


def is_running(pid: int, began: int) -> bool:
    """Whether the process that began then is there; one that ended and was not waited for is not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_bytes()
        state, *rest = status[status.rindex(b")") + 2 :].split()
        return state not in (b"Z", b"X") and int(rest[18]) == began
    except (OSError, ValueError, IndexError):
        return False


def process_namespace() -> int:
    """In which processes have their numbers: that of a container may be another one. 0 without /proc."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0


OTHER: Final = 0
"""The number of no name, and of all names past the most."""
MOST_NAMES: Final = 4096
MOST_CHARACTERS: Final = 200


class NameWriter:
    """Gives every text a number, from 1 on, and writes it down before the number is first used. Thread-safe."""

    def __init__(self, path: Path) -> None:
        """Goes on with a file that is there: a process can be captured twice. Raises OSError where it cannot be."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._handle = os.open(path, flags, 0o600)
        self.numbers: dict[str, int] = NameReader(path).numbers()
        """What `number` has given so far. A look-up here needs no lock: it is whole, and a number never changes."""
        # A signal's handler, or a finalizer, can run in the middle of `_added` and come here itself.
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
                # One write: a reader sees the line's begin at most, and waits for its end.
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
        """Return the text of a number, `?` for one that is not there."""
        if number not in self._texts:
            self._follow()
        return self._texts.get(number, "?")

    def numbers(self) -> dict[str, int]:
        """text → number, of all that are there."""
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
    """Printable, cut to the most characters; what cannot be encoded is replaced."""
    kept = text[:MOST_CHARACTERS].encode(errors="replace").decode()
    return "".join(character if character.isprintable() else "�" for character in kept)


Emit = Callable[..., bool]
"""Appends one record, given in the order of its fields as far as they are not 0; whether there was room.

Times are in ns of CLOCK_MONOTONIC, every field within the unsigned width of the record's.
"""


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
    """Return the functions that write: a record, a step's end, and what is held back.

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
