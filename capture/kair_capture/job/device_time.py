"""A rank's own time of a step on its device, by events on the stream that computes: the host may be far ahead of it.

A step is on the device what lies between two ends of it, without what the stream waits from the last gradient to the
end of backward: for other ranks. What a late host or late data leave idle there is the rank's own. Steps are told once
the device is through with them, which may be many steps later; nobody waits for it.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol, Self

_MOST_STEPS: Final = 512
"""Steps that the device has not ended; of a host that is farther ahead the oldest are given up."""
_MOST_WAITS: Final = 64
"""Of one step: one for each backward pass after which gradients are exchanged."""


class Event(Protocol):
    """As torch.cuda.Event, made to tell times."""

    def record(self) -> None:
        """At this place of the current stream; once more, it forgets the place before."""

    def query(self) -> bool:
        """Whether the device has come there."""

    def elapsed_time(self, end: Self, /) -> float:
        """To another one, ms."""


class _Step(NamedTuple):
    begin: Event
    waits: list[tuple[Event, Event]]
    end: Event
    """Which the next step begins with."""

    def own_ms(self) -> float:
        return self.begin.elapsed_time(self.end) - sum(begin.elapsed_time(end) for begin, end in self.waits)


class DeviceTime:
    """The events of one process, of its training alone."""

    def __init__(self, event: Callable[[], Event], is_captured: Callable[[], bool] = lambda: False) -> None:
        """`event` makes one. While the stream `is_captured` into a graph nothing of it is touched.

        The first step is told that begins after this.
        """
        self._make, self._is_captured, self._free = event, is_captured, list[Event]()
        self._begin: Event | None = None
        self._gradient: Event | None = None
        self._waits: list[tuple[Event, Event]] = []
        self._steps: deque[_Step] = deque()

    def gradient_is_there(self) -> None:
        """Which may be the last one of a backward pass."""
        if self._begin is not None and len(self._waits) < _MOST_WAITS and not self._is_captured():
            self._gradient = self._recorded(self._gradient)

    def backward_is_over(self) -> None:
        """Note that backward is over, if a gradient was seen: the stream has waited since the last."""
        if self._gradient is not None and not self._is_captured():
            self._waits.append((self._gradient, self._recorded(None)))
            self._gradient = None

    def step_is_over(self) -> list[float]:
        """Ranks' own times of the steps that the device has ended since it was asked last, ms, the oldest first."""
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
