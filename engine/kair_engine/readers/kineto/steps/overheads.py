"""What the profiler and the driver do within a launch: Kineto records it beside all threads, and not whose it is.

A launch that makes CUPTI ask for a buffer, or that loads a kernel's code, takes milliseconds instead of microseconds
(pytorch/kineto#1020). It does so on the thread that launches, which goes on when that is done.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from kair_engine.readers.kineto.classify import Category, NameClass

Int64s = npt.NDArray[np.int64]
MOST_WITHIN: Final = 8
"""A call that holds more of them waits for something else, as do those of which they make up less than this:"""
MAKE_UP: Final = 0.5


def on_their_threads(
    category: Int64s, name_class: Int64s, thread: Int64s, start: Int64s, duration: Int64s
) -> tuple[Int64s, Int64s, Int64s]:
    """(thread, start, duration) of a step's records, ns, with overheads on the thread of the call that they fall into.

    That is the shortest one that holds them whole, but no synchronisation, which waits anyway. The call itself, and
    those around it on its thread, begin when they are over. What falls into none stays where it is.
    """
    overheads = np.flatnonzero(category == Category.OVERHEAD)
    if not len(overheads):
        return thread, start, duration
    end = start + duration
    overhead, call = _held(overheads, category, name_class, start, end)
    # Of several calls that hold one, the shortest is written last.
    order = np.argsort(-duration[call], kind="stable")
    overhead, call = overhead[order], call[order]
    moved, begins = thread.copy(), start.copy()
    moved[overhead] = thread[call]
    on_it = thread[call] == moved[overhead]
    np.maximum.at(begins, call[on_it], end[overhead[on_it]])
    return moved, begins, end - begins


def _held(overheads: Int64s, category: Int64s, name_class: Int64s, start: Int64s, end: Int64s) -> tuple[Int64s, Int64s]:
    """Pairs of (an overhead, a call that holds it whole, and does little else)."""
    overheads = overheads[np.argsort(start[overheads], kind="stable")]
    calls = np.flatnonzero((category == Category.RUNTIME) & (name_class != NameClass.SYNCHRONIZE))
    first = np.searchsorted(start[overheads], start[calls], side="left")
    count = np.searchsorted(start[overheads], end[calls], side="right") - first
    some = np.flatnonzero((count > 0) & (count <= MOST_WITHIN))
    call = np.repeat(calls[some], count[some])
    nth = np.arange(len(call)) - np.repeat(np.cumsum(count[some]) - count[some], count[some])
    overhead = overheads[np.repeat(first[some], count[some]) + nth]
    holds = end[call] >= end[overhead]
    overhead, call = overhead[holds], call[holds]
    within = np.zeros(len(start))
    np.add.at(within, call, end[overhead] - start[overhead])
    held_up = within[call] >= MAKE_UP * (end[call] - start[call])
    return overhead[held_up], call[held_up]
