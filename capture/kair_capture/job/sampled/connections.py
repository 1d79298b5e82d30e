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
# Of the kernel's struct tcp_info (include/uapi/linux/tcp.h, from Linux 4.9 on).
_RETRANSMITTED: Final = struct.Struct("=100xI")
_ACKNOWLEDGED: Final = struct.Struct("=120xQ")
_RATE: Final = struct.Struct("=160xQ")
_TCP_INFO: Final = 11
_LONGEST: Final = 128
"""Bytes of an address."""
_LIBC: Final = ctypes.CDLL(None)


class Sent(NamedTuple):
    """Of one connection, what its peer has acknowledged so far, and the rate of what was delivered last."""

    bytes: int
    bytes_per_s: int
    """As far as the sender did not lack anything to send."""
    retransmitted: int
    """Segments."""


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
        """Finds them; from here on what they send is counted. Systems other than Linux tell of none."""
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

    def sent(self) -> list[tuple[str, str, int, int, int]]:
        """Since the last call, or `look`, from one address to another: bytes, bytes/s, segments sent again.

        The rate is that of most of the bytes, where there are several connections.
        """
        between: dict[tuple[str, str], list[Sent]] = defaultdict(list)
        for connection, before in list(self._last.items()):
            now = _sent(connection)
            if now is None:
                del self._last[connection]  # it is closed
                continue
            self._last[connection] = now
            if now.bytes > before.bytes:
                more = Sent(now.bytes - before.bytes, now.bytes_per_s, now.retransmitted - before.retransmitted)
                between[connection.own, connection.peer].append(more)
        return [(*ends, *_together(several)) for ends, several in between.items()]


def _sockets() -> Iterator[int]:
    with suppress(OSError):
        for entry in islice(DESCRIPTORS.iterdir(), _MOST):
            with suppress(OSError):  # what listed them is closed by then
                if str(entry.readlink()).startswith("socket:"):
                    yield int(entry.name)


def _together(several: list[Sent]) -> Sent:
    several.sort(key=lambda one: one.bytes_per_s)
    total, passed, rate = sum(one.bytes for one in several), 0, 0
    for one in several:
        passed, rate = passed + one.bytes, one.bytes_per_s
        if 2 * passed >= total:
            break
    return Sent(total, rate, sum(one.retransmitted for one in several))


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
    told, size = ctypes.create_string_buffer(_RATE.size), ctypes.c_uint(_RATE.size)
    failed = _LIBC.getsockopt(connection.descriptor, socket.IPPROTO_TCP, _TCP_INFO, told, ctypes.byref(size))
    if failed or size.value < _RATE.size:
        return None
    return Sent(*(of.unpack_from(told)[0] for of in (_ACKNOWLEDGED, _RATE, _RETRANSMITTED)))


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
