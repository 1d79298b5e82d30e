"""Where each word of a ring lies, and the record that fills it.

A ring is one file in shared memory: a header of 4,096 bytes, then `capacity` records of 48 bytes, little endian. Each
published word stands on a cache line of its own.
"""

import platform
import struct
from enum import IntEnum
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
    """A step that is over: time is its begin, value its duration, extra its flags (StepFlag), detail ProcessorTime."""
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


def processor_ordering() -> Ordering:
    """What this processor promises.

    Python has no fence. On x86-64 none is needed: stores are seen in program order, and an aligned store of eight bytes
    is never torn. On others (aarch64) a head could become visible before the record that it covers.
    """
    return Ordering.AT_ONCE if platform.machine().lower() in ("x86_64", "amd64") else Ordering.STEP_LATE


def ring_bytes(capacity: int) -> int:
    """The size of a ring's file."""
    return HEADER_BYTES + capacity * RECORD_BYTES
