"""Finds runtime calls that wait for the device, whatever their names.

A call that lasts longer than a launch and returns just as a stream of the device runs out of work waited for that
stream. So do `cudaStreamSynchronize`, `urQueueFinish`, `synStreamSynchronize` and `aclrtSynchronizeStream`. A function
counts as one of them if nearly all of its long calls return so.
"""

import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from kair_engine.arrays import Bools, Int64s
from kair_engine.readers.launch_queue import EARLIER_NS, LONGEST_USUAL_NS, RETURNS_NS

FEWEST: Final = 3
"""A function needs this many such calls to be recognised."""
NEARLY_ALL: Final = 0.9
"""Share of a function's long calls that return so. A function that returns at any time reaches only the share of time
in which streams have nothing to run."""
_ALLOCATES: Final = re.compile(r"alloc|free", re.IGNORECASE)
"""Memory is freed when the device is done with it: such a call waits for the device because of memory."""


def blocking_functions(
    names: Sequence[str],
    name: Int64s,
    begin_ns: Int64s,
    over_ns: Int64s,
    *,
    launching: Int64s,
    stream: Int64s,
    ran_ns: Int64s,
) -> Int64s:
    """Return the functions, as indices into `names`, that wait for the device.

    Calls are given by their functions, begins and ends; `launching` are the functions that launch something. The
    device's operations are given by their streams, and by their begins and ends (`ran_ns`, 2 × operations).
    """
    long = over_ns - begin_ns > LONGEST_USUAL_NS
    functions = np.setdiff1d(np.unique(name[long]), launching)
    functions = np.array([at for at in functions.tolist() if not _ALLOCATES.search(names[at])], dtype=np.int64)
    rows = np.flatnonzero(long & np.isin(name, functions))
    waited = np.zeros(len(rows), dtype=bool)
    for one in np.unique(stream).tolist() if len(rows) else ():
        waited |= _drained(begin_ns[rows], over_ns[rows], *ran_ns[:, stream == one])
    often = np.bincount(name[rows], minlength=len(names))
    returned_so = np.bincount(name[rows], weights=waited, minlength=len(names))
    return np.flatnonzero((returned_so >= FEWEST) & (returned_so >= NEARLY_ALL * often))


def _drained(begin_ns: Int64s, over_ns: Int64s, started_ns: Int64s, ended_ns: Int64s) -> Bools:
    """Return per call whether a stream's latest operation began within it and ended as the call returned."""
    order = np.argsort(started_ns, kind="stable")
    started, ended = started_ns[order], np.maximum.accumulate(ended_ns[order])
    at = np.searchsorted(started, over_ns) - 1
    last = ended[np.maximum(at, 0)]
    returns = (last <= over_ns + EARLIER_NS) & (last >= over_ns - RETURNS_NS)
    return np.asarray((at >= 0) & returns & (last > begin_ns))
