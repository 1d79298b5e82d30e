"""Measures a host's clock against the coordinator's, with error bounds, and replaces a host's clock that may be set
back.

Offset and drift are a line through the quickest exchanges of the last minute. An exchange that was quick in both
directions cannot be far off: its error is at most half its round trip. So the quickest fifth is kept, and a line is
fitted by least squares. Windows longer than a minute bend with the clocks' own wander (1 ppm over 300 s: 12 µs off
after 120 s, 4 µs within 60 s).

Each exchange has four stamps of a request and its answer, taken by the kernel if possible.
"""

import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kair_capture.files import write_atomically

SO_TIMESTAMPNS: Final = 35
"""Linux: each datagram comes with its arrival time (CLOCK_REALTIME). Python has no name for it."""
_TIMESPEC: Final = struct.Struct("qq")
_ANCILLARY: Final = socket.CMSG_SPACE(_TIMESPEC.size)


@dataclass(frozen=True)
class Exchange:
    """Unix ns: asked and answered by this host's clock, received and replied by the other's."""

    asked_ns: int
    received_ns: int
    replied_ns: int
    answered_ns: int

    @property
    def round_trip_ns(self) -> int:
        """Return the travel time in both directions together."""
        return (self.answered_ns - self.asked_ns) - (self.replied_ns - self.received_ns)

    @property
    def offset_ns(self) -> float:
        """Return this clock minus the other; its error is half the difference of both ways, at most half the round
        trip.
        """
        return ((self.asked_ns - self.received_ns) + (self.answered_ns - self.replied_ns)) / 2

    @property
    def middle_ns(self) -> float:
        """Return the middle of the exchange, by this host's clock."""
        return (self.asked_ns + self.answered_ns) / 2


def stamp_arrivals(sock: socket.socket) -> bool:
    """Ask the kernel for stamps; return False if it has none, and `receive` takes the time itself."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True


def receive(sock: socket.socket, most_bytes: int) -> tuple[bytes, Any, int]:
    """Return a datagram, cut to `most_bytes`, its sender, and its arrival time (Unix ns).

    Raises OSError as `recvmsg` does.
    """
    data, ancillary, _, sender = sock.recvmsg(most_bytes, _ANCILLARY)
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS and len(content) >= _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack_from(content)
            return data, sender, seconds * 1_000_000_000 + nanoseconds
    return data, sender, time.time_ns()


CLOCK_FILE: Final = "clock"
"""File in a run folder by which a host's processes agree on a clock that was set back."""
SET_BACK_NS: Final = 5_000_000
"""A smaller loss against the monotonic clock is a late reading, by a thread that waited for its core."""
_READ_WITHIN_NS: Final = 50_000
_READINGS: Final = 5


def unix_minus_monotonic() -> int:
    """Return how far this host's clock is ahead of the monotonic one, in ns."""
    readings = []
    for _ in range(_READINGS):
        before, unix, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        readings.append((after - before, unix - (before + after) // 2))
        if after - before < _READ_WITHIN_NS:
            break
    return min(readings)[1]


class OnwardClock:
    """A host's Unix time that never goes back: if the clock is set back, it continues from where it was.

    All of a job's processes on a host that use one file agree on it, including restarted ones.
    """

    def __init__(self, file: Path | None = None, ahead_of_monotonic: Callable[[], int] = unix_minus_monotonic) -> None:
        self._file, self._read, self._kept = file, ahead_of_monotonic, 0
        if file is not None:
            with suppress(OSError, ValueError):
                self._kept = int(file.read_bytes()[:32])
        self._most = max(self._kept, ahead_of_monotonic())

    def ahead_ns(self) -> int:
        """Return how far it is ahead of the host's clock, in ns; 0 if that was never set back."""
        now = self._read()
        self._most = max(self._most, now)
        ahead = self._most - now
        return ahead if ahead > SET_BACK_NS else 0

    def now_ns(self) -> int:
        """Return the current time, Unix ns."""
        return time.time_ns() + self.ahead_ns()

    def keep(self) -> None:
        """Store what later processes need. Raises OSError."""
        if self._file is not None and self._most - self._kept > SET_BACK_NS:
            write_atomically(self._file, str(self._most).encode())
            self._kept = self._most


SPAN_NS: Final = 60 * 10**9
_QUICKEST: Final = 0.2
_LEAST: Final = 4
"""Exchanges that a line needs."""
_DRIFT_FROM_NS: Final = 5 * 10**9
"""Over a shorter time the stamps' noise would look like a drift."""
_MOST_EXCHANGES: Final = 512
_UNKNOWN_DRIFT: Final = 100e-6
"""Quartz clocks differ by less; NTP corrects by up to 500 ppm, which the jump test finds."""
_DRIFT_DOUBT: Final = 2e-6
"""Error of a fitted drift due to the clocks' wander alone."""
_JUMPS: Final = 3
"""Consecutive exchanges that contradict the line before a clock counts as set."""


@dataclass(frozen=True)
class ClockFit:
    """This clock minus the other is `offset_ns + drift · (t − at_ns)`, t and at_ns by this clock, within `bound_ns`."""

    at_ns: int
    offset_ns: float
    drift: float
    bound_ns: float
    """At `at_ns`; exceeded only by a clock that drifts abnormally."""
    drift_doubt: float
    """Error of the drift."""

    def offset_at(self, time_ns: int) -> float:
        """Return the ns to subtract from this clock's `time_ns` to get the other's."""
        return self.offset_ns + self.drift * (time_ns - self.at_ns)

    def bound_at(self, time_ns: int) -> float:
        """Return the bound at another time."""
        return self.bound_ns + self.drift_doubt * abs(time_ns - self.at_ns)


class ClockFilter:
    """The exchanges of the last minute, and the line through the quickest of them."""

    def __init__(self, span_ns: int = SPAN_NS) -> None:
        self._span = span_ns
        self._kept: deque[Exchange] = deque(maxlen=_MOST_EXCHANGES)
        self._outliers = 0
        self._fit: ClockFit | None = None

    def add(self, exchange: Exchange) -> None:
        """Add an exchange; one with a negative round trip (a clock was set in between) is dropped."""
        if exchange.round_trip_ns < 0:
            return
        if self._contradicts(exchange):
            self._outliers += 1
            if self._outliers < _JUMPS:
                return
            self._kept.clear()
        self._outliers = 0
        self._kept.append(exchange)
        while exchange.middle_ns - self._kept[0].middle_ns > self._span:
            self._kept.popleft()
        self._fit = fitted(self._kept)

    @property
    def fit(self) -> ClockFit | None:
        """Return the present line; None before the first exchange."""
        return self._fit

    def _contradicts(self, exchange: Exchange) -> bool:
        """Return whether the clocks of the present line cannot have made this exchange."""
        if self._fit is None:
            return False
        now = round(exchange.middle_ns)
        distance = abs(exchange.offset_ns - self._fit.offset_at(now))
        return distance > exchange.round_trip_ns / 2 + self._fit.bound_at(now) + 1000


def fitted(exchanges: Sequence[Exchange]) -> ClockFit:
    """Return the line through the quickest of `exchanges` (at least one), as of the last one."""
    by_speed = sorted(exchanges, key=lambda one: one.round_trip_ns)
    at = round(exchanges[-1].middle_ns)
    chosen = by_speed[: max(_LEAST, round(len(by_speed) * _QUICKEST))]
    times = [one.middle_ns - at for one in chosen]
    if len(chosen) < _LEAST or max(times) - min(times) < _DRIFT_FROM_NS:
        return _without_drift(exchanges, at)
    mean_time = sum(times) / len(times)
    mean_offset = sum(one.offset_ns for one in chosen) / len(chosen)
    spread = sum((time - mean_time) ** 2 for time in times)
    both = sum((time - mean_time) * (one.offset_ns - mean_offset) for time, one in zip(times, chosen, strict=True))
    drift = both / spread
    offset = mean_offset - drift * mean_time
    # A constant asymmetry of the two directions shifts the line but does not turn it.
    slack = chosen[-1].round_trip_ns - chosen[0].round_trip_ns
    doubt = min(_DRIFT_DOUBT + slack / (max(times) - min(times)), _UNKNOWN_DRIFT)
    return ClockFit(at, offset, drift, _bound(exchanges, at, offset, drift, doubt), doubt)


def _without_drift(exchanges: Sequence[Exchange], at: int) -> ClockFit:
    """Return the offset of the exchange that confines it most; old ones confine less, because clocks diverge."""

    def width(one: Exchange) -> float:
        return one.round_trip_ns / 2 + _UNKNOWN_DRIFT * abs(one.middle_ns - at)

    best = min(exchanges, key=width)
    return ClockFit(at, best.offset_ns, 0.0, width(best), _UNKNOWN_DRIFT)


def _bound(exchanges: Sequence[Exchange], at: int, offset: float, drift: float, doubt: float) -> float:
    """Return the error bound: each exchange confines the offset to half its round trip around its own.

    All of these hold, so the narrowest counts.
    """
    return min(
        one.round_trip_ns / 2
        + abs(one.offset_ns - (offset + drift * (one.middle_ns - at)))
        + doubt * abs(one.middle_ns - at)
        for one in exchanges
    )
