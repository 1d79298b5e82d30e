"""A loop as a program that can be run again: the host's calls, and what they launch on the device.

All times are microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

PLACES: Final = 1022
"""Launches that a stream's queue takes, the running one among them."""
LATENCY, GAP, HAND_OVER = 1.6, 1.7, 2.5
"""From a launch's return, the end of the operation before, and the end of one on another stream to the begin."""


@dataclass(frozen=True, slots=True)
class Operation:
    """What one call launches: a kernel, a copy, or a graph of them."""

    stream: int
    places: float
    """In its stream's launch queue."""
    duration: float
    latency: float = LATENCY
    gap: float = GAP
    hand_over: float = HAND_OVER
    late: float = 0.0
    """How long the device did something else although all was ready."""
    waits: tuple[int, ...] = ()
    """Numbers of operations on other streams; those below 0 are of the same program, run before."""
    collective: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the host that launches something or waits for the device."""

    before: float
    """The host's own time since the call before returned, or since the first step began."""
    own: float
    operation: Operation | None = None
    awaits: int | None = None
    """The number of the operation that must be over before it returns; below 0 of the program, run before."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a program's parts are in its recording."""

    begin: float
    """Of the first step."""
    end: float
    """Of the last one."""
    calls: tuple[tuple[float, float], ...]
    """Begin and end of each."""
    correlations: tuple[int, ...]
    """Of the operations."""
    begins: tuple[float, ...]
    """Of the operations."""


@dataclass(frozen=True)
class Program:
    """The recorded steps of one process."""

    calls: tuple[Call, ...]
    after: float
    """The host's own time from the last call's return to the next step's begin."""
    steps: int
    compute: int
    """The stream that steps run on."""
    placed: Placed = field(default_factory=lambda: Placed(0.0, 0.0, (), (), ()))

    @cached_property
    def operations(self) -> list[Operation]:
        """In the order in which they are launched."""
        return [call.operation for call in self.calls if call.operation is not None]

    @property
    def host_us(self) -> float:
        """The host's own time of a step."""
        return (sum(call.before + call.own for call in self.calls) + self.after) / self.steps

    @property
    def device_us(self) -> float:
        """What a step takes on its stream where all is launched."""
        of_compute = [one for one in self.operations if one.stream == self.compute]
        return sum(one.duration + max(0.0, one.gap) + one.late for one in of_compute) / self.steps
