"""What this process's TCP connections to other hosts sent in a step, and how fast the kernel saw it delivered."""

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
"""Connections that are looked at in each step: those that had sent most when the window began."""
_TO_ONE: Final = 16
"""Of these, to one address: others are not to be crowded out, of storage say."""
_MOST: Final = 4096
"""Descriptors that are looked through for them."""
# Of the kernel's struct tcp_info (include/uapi/linux/tcp.h, from Linux 4.10 on).
_TOLD: Final = struct.Struct("=68xII24xI16xQ20xI8xQQQ")
"""Round trip and its mean deviation, retransmitted, acknowledged, least round trip; delivery rate, busy, and that for
want of room at the receiver."""
_TCP_INFO: Final = 11
_LONGEST: Final = 128
"""Bytes of an address."""
_LIBC: Final = ctypes.CDLL(None)


class Sent(NamedTuple):
    """Of one connection, what its peer has acknowledged so far, and how fast what was delivered last."""

    bytes: int
    bytes_per_s: int
    """As far as the sender did not lack anything to send."""
    retransmitted: int
    """Segments."""
    round_trip_us: int
    """From sending to its acknowledgement, smoothed over the last few."""
    queued_us: int
    """By so much that is surely above the least one: acknowledgements that wait for company now and then deviate."""
    busy_us: int
    """So long something was not acknowledged yet, and the receiver had room for more; in ticks of the kernel."""


class _Connection(NamedTuple):
    descriptor: int
    own: str
    peer: str
    port: int
    """The peer's: the descriptor may become another connection's."""


class Connections:
    """Those to other addresses that there are when a window begins."""

    def __init__(self) -> None:
        self._last: dict[_Connection, Sent] = {}

    def look(self) -> None:
        """Find them; from here on what they send is counted. Systems other than Linux tell of none."""
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
        """Since the last call, or `look`, from one address to another: what `Sent` has.

        Where there are several connections, rate and round trip are those of most of the bytes, and busy is the one
        that was so for longest.
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
            with suppress(OSError):  # what listed them is closed by then
                if str(entry.readlink()).startswith("socket:"):
                    yield int(entry.name)


def _since(before: Sent, now: Sent) -> Sent:
    return now._replace(
        bytes=now.bytes - before.bytes,
        retransmitted=now.retransmitted - before.retransmitted,
        busy_us=max(now.busy_us - before.busy_us, 0),
    )


def together(several: list[Sent]) -> Sent:
    """Of one step, of what several connections to one address sent since."""
    return Sent(
        sum(one.bytes for one in several),
        _of_most_bytes([(one.bytes_per_s, one.bytes) for one in several]),
        sum(one.retransmitted for one in several),
        _of_most_bytes([(one.round_trip_us, one.bytes) for one in several]),
        _of_most_bytes([(one.queued_us, one.bytes) for one in several]),
        max(one.busy_us for one in several),
    )


def _of_most_bytes(figures: list[tuple[int, int]]) -> int:
    """Return the median of figures, each of so many bytes."""
    left = sum(size for _, size in figures)
    for figure, size in sorted(figures):
        left -= 2 * size
        if left <= 0:
            return figure
    return 0  # there are none


def _connection(descriptor: int) -> _Connection | None:
    """None for what is no TCP connection, or one within a host."""
    own, peer = _address(_LIBC.getsockname, descriptor), _address(_LIBC.getpeername, descriptor)
    if own is None or peer is None or own[0] == peer[0]:
        return None
    return _Connection(descriptor, own[0], *peer)


def _sent(connection: _Connection) -> Sent | None:
    """None where the kernel does not tell, or the descriptor is another's by now."""
    if _address(_LIBC.getpeername, connection.descriptor) != (connection.peer, connection.port):
        return None
    told, size = ctypes.create_string_buffer(_TOLD.size), ctypes.c_uint(_TOLD.size)
    failed = _LIBC.getsockopt(connection.descriptor, socket.IPPROTO_TCP, _TCP_INFO, told, ctypes.byref(size))
    if failed or size.value < _TOLD.size:
        return None
    round_trip, deviates, again, acknowledged, least, rate, busy, full = _TOLD.unpack_from(told)
    return Sent(acknowledged, rate, again, round_trip, max(round_trip - deviates - least, 0), busy - full)


def _address(ask: Callable[..., int], descriptor: int) -> tuple[str, int] | None:
    """Address and port; None of what has none.

    By the system's own calls: a socket object would change what it is made of, where a default timeout is set.
    """
    told, size = ctypes.create_string_buffer(_LONGEST), ctypes.c_uint(_LONGEST)
    if ask(descriptor, told, ctypes.byref(size)):
        return None
    family, port = int.from_bytes(told.raw[:2], sys.byteorder), int.from_bytes(told.raw[2:4], "big")
    if family == socket.AF_INET:
        return socket.inet_ntop(family, told.raw[4:8]), port
    return (socket.inet_ntop(family, told.raw[8:24]), port) if family == socket.AF_INET6 else None
