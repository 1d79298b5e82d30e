"""Measures a rank's own time of a step on its device, by events on the computing stream: the host may be far ahead.

On the device, a step lies between two step ends, without the stream's wait for other ranks from the last gradient to
the end of backward. Idle time due to a late host or late data is the rank's own. Steps are reported once the device has
finished them, maybe many steps later, without waiting.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol, Self

_MOST_STEPS: Final = 512
"""Steps that the device has not ended; beyond this the oldest are dropped."""
_MOST_WAITS: Final = 64
"""Most waits per step: one for each backward pass after which gradients are exchanged."""


class Event(Protocol):
    """Like torch.cuda.Event with timing."""

    def record(self) -> None:
        """Record the present point of the current stream; again, it replaces the earlier one."""

    def query(self) -> bool:
        """Return whether the device has reached it."""

    def elapsed_time(self, end: Self, /) -> float:
        """Return the time to another event, in ms."""


class _Step(NamedTuple):
    begin: Event
    waits: list[tuple[Event, Event]]
    end: Event
    """Also the begin of the next step."""

    def own_ms(self) -> float:
        return self.begin.elapsed_time(self.end) - sum(begin.elapsed_time(end) for begin, end in self.waits)


class DeviceTime:
    """The events of one process's training."""

    def __init__(self, event: Callable[[], Event], is_captured: Callable[[], bool] = lambda: False) -> None:
        """`event` creates one. While the stream `is_captured` into a graph, it is not touched.

        The first reported step begins after this.
        """
        self._make, self._is_captured, self._free = event, is_captured, list[Event]()
        self._begin: Event | None = None
        self._gradient: Event | None = None
        self._waits: list[tuple[Event, Event]] = []
        self._steps: deque[_Step] = deque()

    def gradient_is_there(self) -> None:
        """Note a gradient, which may be the last of a backward pass."""
        if self._begin is not None and len(self._waits) < _MOST_WAITS and not self._is_captured():
            self._gradient = self._recorded(self._gradient)

    def backward_is_over(self) -> None:
        """Note the end of backward, if a gradient was seen: the stream has waited since the last one."""
        if self._gradient is not None and not self._is_captured():
            self._waits.append((self._gradient, self._recorded(None)))
            self._gradient = None

    def step_is_over(self) -> list[float]:
        """Return own times (ms) of steps that the device has ended since the last call, oldest first."""
        if self._is_captured():
            self._begin, self._gradient, self._waits = None, None, []
            return []
        self.backward_is_over()
        end = self._recorded(None)
        if self._begin is not None:
            self._steps.append(_Step(self._begin, self._waits, end))
        self._begin, self._waits = end, []
        while len(self._steps) > _MOST_STEPS:
            self._give_back(self._steps.popleft())
        found = []
        while self._steps and self._steps[0].end.query():
            step = self._steps.popleft()
            found.append(step.own_ms())
            self._give_back(step)
        return found

    def _recorded(self, event: Event | None) -> Event:
        event = event or (self._free.pop() if self._free else self._make())
        event.record()
        return event

    def _give_back(self, step: _Step) -> None:
        self._free += [step.begin, *(event for wait in step.waits for event in wait)]
