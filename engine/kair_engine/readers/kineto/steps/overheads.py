"""What the profiler and the driver do within a launch: Kineto records it beside all threads, and not whose it is.

A launch that makes CUPTI ask for a buffer, or that loads a kernel's code, takes milliseconds instead of microseconds
(pytorch/kineto#1020). It does so on the thread that launches, which goes on when that is done.
"""

import numpy as np
import numpy.typing as npt

from kair_engine.readers.kineto.classify import Category, NameClass

Int64s = npt.NDArray[np.int64]
_NESTED = 2
"""Calls of a thread that are looked at: a driver's call may lie within one of the runtime's."""


def on_their_threads(
    category: Int64s, name_class: Int64s, thread: Int64s, start: Int64s, duration: Int64s
) -> tuple[Int64s, Int64s, Int64s]:
    """(thread, start, duration) of a step's records, ns, with overheads on the thread of the call that they fall into.

    That is the shortest one that holds them whole, but no synchronisation, which waits anyway; the call itself begins
    when they are over. What falls into none stays where it is.
    """
    overheads = np.flatnonzero(category == Category.OVERHEAD)
    if not len(overheads):
        return thread, start, duration
    end, lasts = start + duration, duration[overheads]
    calls = np.flatnonzero((category == Category.RUNTIME) & (name_class != NameClass.SYNCHRONIZE))
    calls = calls[np.lexsort((start[calls], thread[calls]))]
    holding = np.full(len(overheads), -1)
    begins = start.copy()
    for one in np.unique(thread[calls]).tolist():
        of_thread = calls[thread[calls] == one]
        last = np.searchsorted(start[of_thread], start[overheads], side="right") - 1
        for back in range(_NESTED):
            call = of_thread[np.maximum(last - back, 0)]
            held = (last >= back) & (end[call] >= end[overheads]) & (duration[call] > lasts)
            np.maximum.at(begins, call[held], end[overheads[held]])
            shorter = held & ((holding < 0) | (duration[call] < duration[holding]))
            holding[shorter] = call[shorter]
    moved = thread.copy()
    moved[overheads[holding >= 0]] = thread[holding[holding >= 0]]
    return moved, begins, end - begins
