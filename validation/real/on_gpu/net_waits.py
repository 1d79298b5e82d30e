"""Waits without the time in which the rank was stopped, computed without torch: tests import it in every process."""

from collections.abc import Sequence


def net_of_stops(waits: Sequence[Sequence[int]], spells: Sequence[Sequence[int]]) -> int:
    """The nanoseconds of the waits in which the rank was not stopped."""
    waited = 0
    for begin, end in waits:
        stopped = sum(max(0, min(end, stop_end) - max(begin, stop)) for stop, stop_end in spells)
        waited += max(0, end - begin - stopped)
    return waited
