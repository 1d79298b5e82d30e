"""Forward, backward, optimizer, input: the phase of every operation of a step, from the scopes around it."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kair_engine.readers.kineto.classify import NameClass
from kair_engine.trace.format import PHASES

UNKNOWN: Final = -1
_BEFORE_ALL: Final = np.iinfo(np.int64).min
Int64s = npt.NDArray[np.int64]
Int8s = npt.NDArray[np.int8]

# Later ones win where scopes of two phases cover an operation: what is innermost in practice stands last.
_MARKERS: Final = (
    (NameClass.BACKWARD, PHASES.index("backward")),
    (NameClass.OPTIMIZER, PHASES.index("optimizer")),
    (NameClass.DATA_LOADER, PHASES.index("input")),
)


def host_phases(
    *,
    start: Int64s,
    end: Int64s,
    thread: Int64s,
    name_class: npt.NDArray[np.integer[Any]],
    is_scope: npt.NDArray[np.bool_],
    main_thread: int,
) -> Int8s:
    """Indices into PHASES for host operations; `is_scope` tells those that can mark a phase."""
    phase = np.full(len(start), PHASES.index("forward"), np.int8)
    for marker, code in _MARKERS:
        of_all = np.flatnonzero(is_scope & (name_class == marker))
        for thread_number in sorted(set(thread[of_all].tolist())):
            markers = of_all[thread[of_all] == thread_number]
            rows = np.flatnonzero(thread == thread_number)
            # Autograd's own threads do nothing but backward, also between its functions.
            if marker is NameClass.BACKWARD and thread_number != main_thread:
                phase[rows] = code
            else:
                phase[rows[_covered(start[rows], start[markers], end[markers])]] = code
    return phase


def _covered(times: Int64s, begins: Int64s, ends: Int64s) -> npt.NDArray[np.bool_]:
    """Whether each time lies in the union of the intervals."""
    order = np.argsort(begins, kind="stable")
    begins, reach = begins[order], np.maximum.accumulate(ends[order])
    at = np.searchsorted(begins, times, "right") - 1
    # What is before all finds the last entries, which no time is at or before.
    covered: npt.NDArray[np.bool_] = times < np.append(reach, _BEFORE_ALL).take(at)
    covered |= times == np.append(begins, _BEFORE_ALL).take(at)
    return covered
