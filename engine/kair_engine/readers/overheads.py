"""What the profiler and the driver do within a call, as a launch: it holds up the thread that calls.

A launch that makes CUPTI ask for a buffer, or that loads a kernel's code, takes milliseconds instead of microseconds
(pytorch/kineto#1020). The thread that launches goes on when that is done. Kineto records it beside all threads, and not
whose it is; Nsight Systems with its thread.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
MOST_WITHIN: Final = 8
"""A call that holds more overheads than this waits for something else."""
MAKE_UP: Final = 0.5
"""A call of which overheads make up less than this part waits for something else, too."""


def before_their_calls(
    overheads: Int64s, is_call: Bools, thread: Int64s, start: Int64s, duration: Int64s, *, threads_told: bool
) -> tuple[Int64s, Int64s, Int64s]:
    """(thread, start, duration) of rows, ns, with overheads on the thread of the call that they fall into.

    That is the shortest one that holds them whole, of their own thread if that is told. Calls that wait anyway, as
    synchronisations, are to be left out of `is_call`. The call itself, and those around it on its thread, begin when
    they are over. What falls into none stays where it is.
    """
    if not len(overheads):
        return thread, start, duration
    end = start + duration
    overhead, call = _held(overheads, is_call, thread if threads_told else None, start, end)
    # Of several calls that hold one, the shortest is written last.
    order = np.argsort(-duration[call], kind="stable")
    overhead, call = overhead[order], call[order]
    moved, begins = thread.copy(), start.copy()
    moved[overhead] = thread[call]
    on_it = thread[call] == moved[overhead]
    np.maximum.at(begins, call[on_it], end[overhead[on_it]])
    return moved, begins, end - begins


def _held(
    overheads: Int64s, is_call: Bools, thread: Int64s | None, start: Int64s, end: Int64s
) -> tuple[Int64s, Int64s]:
    """Pairs of (an overhead, a call that holds it whole, and does little else), of one thread where these are told."""
    overheads = overheads[np.argsort(start[overheads], kind="stable")]
    calls = np.flatnonzero(is_call)
    first = np.searchsorted(start[overheads], start[calls], side="left")
    count = np.searchsorted(start[overheads], end[calls], side="right") - first
    some = np.flatnonzero((count > 0) & (count <= MOST_WITHIN))
    call = np.repeat(calls[some], count[some])
    nth = np.arange(len(call)) - np.repeat(np.cumsum(count[some]) - count[some], count[some])
    overhead = overheads[np.repeat(first[some], count[some]) + nth]
    holds = end[call] >= end[overhead]
    if thread is not None:
        holds &= thread[call] == thread[overhead]
    overhead, call = overhead[holds], call[holds]
    within = np.zeros(len(start))
    np.add.at(within, call, end[overhead] - start[overhead])
    held_up = within[call] >= MAKE_UP * (end[call] - start[call])
    return overhead[held_up], call[held_up]
