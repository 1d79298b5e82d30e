"""Steps as their devices ran them, where hosts run ahead.

A mark on the host brackets the launches of a step. Where nothing makes the host wait for its device, their kernels run
a launch queue later, most of them after the mark's end: what a step takes is then told by its device, from the end of
the step before to the end of its own last operation.
"""

from dataclasses import replace
from typing import Final

from kair_engine.trace.model import NOT_TOLD, StepTimes

AHEAD: Final = 0.05
"""Of a step: by so much the device must be behind in the median step, or the host counts as waiting for it."""


def steps_on_devices(times: StepTimes) -> StepTimes | None:
    """The steps' times on the devices; None where hosts do not run ahead of these.

    A step that its device did nothing in keeps its host's time.
    """
    begin, length = list(times.begin_ns), list(times.duration_ns)
    behind, periods = list[int](), list[int]()
    before: tuple[int, int, int] | None = None
    cells = zip(times.rank, times.step, times.device_begin_ns, times.device_end_ns, strict=False)
    for (rank, step, first, over), at in sorted((cell, at) for at, cell in enumerate(cells)):
        if over == NOT_TOLD:
            continue
        follows = before is not None and before[:2] == (rank, step - 1)
        began = before[2] if follows and before is not None else first
        # One step's last operation can be over after the next one's, on another stream.
        ended = max(over, began)
        behind.append(ended - (times.begin_ns[at] + times.duration_ns[at]))
        begin[at], length[at] = began, ended - began
        periods += [ended - began] if follows else []
        before = rank, step, ended
    if not periods or _median(behind) <= AHEAD * _median(periods):
        return None
    return replace(times, begin_ns=tuple(begin), duration_ns=tuple(length))


def _median(values: list[int]) -> int:
    return sorted(values)[len(values) // 2]
