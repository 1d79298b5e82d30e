"""Who may be heard: each datagram of a sender once, and nobody more often than is reasonable."""

from collections import OrderedDict
from typing import Final

_WINDOW: Final = 1024
"""How far datagrams of one sender may overtake each other."""


class ReplayWindow:
    """The sequence numbers of one sender that were seen: the highest, and which of the 1,024 below it."""

    def __init__(self) -> None:
        self._highest = 0
        self._seen = 0
        """Bit i: `highest − i` was seen."""

    def admits(self, sequence: int) -> bool:
        """Whether this number is new; from now on it is not. What fell out of the window counts as seen."""
        if sequence > self._highest:
            ahead = sequence - self._highest
            kept = self._seen << ahead if ahead < _WINDOW else 0
            self._seen = (kept | 1) & ((1 << _WINDOW) - 1)
            self._highest = sequence
            return True
        behind = self._highest - sequence
        if behind >= _WINDOW or self._seen >> behind & 1:
            return False
        self._seen |= 1 << behind
        return True


class Replays:
    """The windows of all senders. None is forgotten while the epoch lasts; past `most`, new ones are refused."""

    def __init__(self, most: int = 1 << 16) -> None:
        self._most = most
        self._windows: dict[int, ReplayWindow] = {}

    def admits(self, sender: int, sequence: int) -> bool:
        """Whether the sender's datagram of this number is heard for the first time."""
        window = self._windows.get(sender)
        if window is None:
            if len(self._windows) >= self._most:
                return False
            window = self._windows[sender] = ReplayWindow()
        return window.admits(sequence)


class RateLimit:
    """A bucket per source that fills with `per_second` and holds `burst`; sources past `most` push out the oldest."""

    def __init__(self, per_second: float, burst: float, most: int = 1 << 16) -> None:
        self._rate, self._burst, self._most = per_second, burst, most
        self._buckets: OrderedDict[object, tuple[float, float]] = OrderedDict()

    def admits(self, source: object, now: float) -> bool:
        """Whether one more from `source` is within the limit at `now` (seconds, monotonic)."""
        held, then = self._buckets.get(source, (self._burst, now))
        held = min(self._burst, held + (now - then) * self._rate)
        admitted = held >= 1
        self._buckets[source] = (held - 1 if admitted else held, now)
        self._buckets.move_to_end(source)
        if len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        return admitted
