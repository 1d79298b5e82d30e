"""Measures what this process's TCP connections to other hosts sent in a step, and how fast it was delivered."""

import ctypes
import socket
import struct
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

DESCRIPTORS: Final = Path("/proc/self/fd")
BUSIEST: Final = 64
"""Connections read in each step: those that had sent most when the window began."""
_TO_ONE: Final = 16
"""Most of them to one address, so that storage, for example, does not crowd out others."""
_MOST: Final = 4096
"""Descriptors that are searched for them."""
# From the kernel's struct tcp_info (include/uapi/linux/tcp.h, Linux 4.10 and later).
_TOLD: Final = struct.Struct("=68xII24xI16xQ20xI8xQQQ")
"""Round trip and its mean deviation, retransmitted, acknowledged, smallest round trip; delivery rate, busy time, and
busy time limited by the receiver.
"""
_TCP_INFO: Final = 11
_LONGEST: Final = 128
"""Bytes of an address."""
_LIBC: Final = ctypes.CDLL(None)


class Sent(NamedTuple):
    """Bytes of one connection that its peer has acknowledged so far, and the last delivery rate."""

    bytes: int
    bytes_per_s: int
    """Measured while the sender had data."""
    retransmitted: int
    """Segments."""
    round_trip_us: int
    """From sending to acknowledgement, smoothed."""
    queued_us: int
    """Certain excess over the smallest one, minus deviations due to delayed acknowledgements."""
    busy_us: int
    """Time with unacknowledged data while the receiver had room; in kernel ticks."""


class _Connection(NamedTuple):
    descriptor: int
    own: str
    peer: str
    port: int
    """The peer's: the descriptor may be reused by another connection."""


class Connections:
    """Connections to other addresses at the begin of a window."""

    def __init__(self) -> None:
        self._last: dict[_Connection, Sent] = {}

    def look(self) -> None:
        """Find them, and count from now on what they send. Systems other than Linux have none."""
        found = {}
        for descriptor in _sockets():
            connection = _connection(descriptor)
            if connection is not None and (sent := _sent(connection)) is not None and sent.bytes:
                found[connection] = sent
        to: dict[str, list[_Connection]] = defaultdict(list)
        for connection in sorted(found, key=lambda one: -found[one].bytes):
            to[connection.peer].append(connection)
        chosen = [connection for several in to.values() for connection in several[:_TO_ONE]]
        busiest = sorted(chosen, key=lambda one: -found[one].bytes)[:BUSIEST]
        self._last = {one: found[one] for one in busiest}

    def sent(self) -> list[tuple[str, str, int, int, int, int, int, int]]:
        """Return what was sent since the last call, or `look`: own address, peer address, then the fields of `Sent`.

        Over several connections, rate and round trip are those of most bytes, and busy time is the longest.
        """
        between: dict[tuple[str, str], list[Sent]] = defaultdict(list)
        for connection, before in list(self._last.items()):
            now = _sent(connection)
            if now is None:
                del self._last[connection]  # it is closed
                continue
            self._last[connection] = now
            if now.bytes > before.bytes:
                between[connection.own, connection.peer].append(_since(before, now))
        return [(*ends, *together(several)) for ends, several in between.items()]


def _sockets() -> Iterator[int]:
    with suppress(OSError):
        for entry in islice(DESCRIPTORS.iterdir(), _MOST):
            with suppress(OSError):  # the listing's own descriptor is closed by then
                if str(entry.readlink()).startswith("socket:"):
                    yield int(entry.name)


def _since(before: Sent, now: Sent) -> Sent:
    return now._replace(
        bytes=now.bytes - before.bytes,
        retransmitted=now.retransmitted - before.retransmitted,
        busy_us=max(now.busy_us - before.busy_us, 0),
    )


def together(several: list[Sent]) -> Sent:
    """Combine what several connections to one address sent in one step."""
    return Sent(
        sum(one.bytes for one in several),
        _of_most_bytes([(one.bytes_per_s, one.bytes) for one in several]),
        sum(one.retransmitted for one in several),
        _of_most_bytes([(one.round_trip_us, one.bytes) for one in several]),
        _of_most_bytes([(one.queued_us, one.bytes) for one in several]),
        max(one.busy_us for one in several),
    )


def _of_most_bytes(figures: list[tuple[int, int]]) -> int:
    """Return the median of figures, weighted by their bytes."""
    left = sum(size for _, size in figures)
    for figure, size in sorted(figures):
        left -= 2 * size
        if left <= 0:
            return figure
    return 0  # there are none


def _connection(descriptor: int) -> _Connection | None:
    """Return the connection; None if it is not TCP, or within the host."""
    own, peer = _address(_LIBC.getsockname, descriptor), _address(_LIBC.getpeername, descriptor)
    if own is None or peer is None or own[0] == peer[0]:
        return None
    return _Connection(descriptor, own[0], *peer)


def _sent(connection: _Connection) -> Sent | None:
    """Return the counters; None if the kernel has none, or the descriptor was reused."""
    if _address(_LIBC.getpeername, connection.descriptor) != (connection.peer, connection.port):
        return None
    answer, size = ctypes.create_string_buffer(_TOLD.size), ctypes.c_uint(_TOLD.size)
    failed = _LIBC.getsockopt(connection.descriptor, socket.IPPROTO_TCP, _TCP_INFO, answer, ctypes.byref(size))
    if failed or size.value < _TOLD.size:
        return None
    round_trip, deviates, again, acknowledged, least, rate, busy, full = _TOLD.unpack_from(answer)
    return Sent(acknowledged, rate, again, round_trip, max(round_trip - deviates - least, 0), busy - full)


def _address(ask: Callable[..., int], descriptor: int) -> tuple[str, int] | None:
    """Return address and port; None without one.

    It uses system calls, because a socket object would change the descriptor if a default timeout is set.
    """
    answer, size = ctypes.create_string_buffer(_LONGEST), ctypes.c_uint(_LONGEST)
    if ask(descriptor, answer, ctypes.byref(size)):
        return None
    family, port = int.from_bytes(answer.raw[:2], sys.byteorder), int.from_bytes(answer.raw[2:4], "big")
    if family == socket.AF_INET:
        return socket.inet_ntop(family, answer.raw[4:8]), port
    return (socket.inet_ntop(family, answer.raw[8:24]), port) if family == socket.AF_INET6 else None
