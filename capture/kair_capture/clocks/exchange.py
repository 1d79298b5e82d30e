"""Four stamps of one question and its answer, taken by the kernel where it can."""

import socket
import struct
import time
from dataclasses import dataclass
from typing import Any, Final

SO_TIMESTAMPNS: Final = 35
"""Linux: each datagram comes with the time (CLOCK_REALTIME) at which it arrived. Python has no name for it."""
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
        """Time on the way, both ways together."""
        return (self.answered_ns - self.asked_ns) - (self.replied_ns - self.received_ns)

    @property
    def offset_ns(self) -> float:
        """This clock minus the other: off by half of what the two ways differ, so by half the round trip at most."""
        return ((self.asked_ns - self.received_ns) + (self.answered_ns - self.replied_ns)) / 2

    @property
    def middle_ns(self) -> float:
        """When, by this host's clock."""
        return (self.asked_ns + self.answered_ns) / 2


def stamp_arrivals(sock: socket.socket) -> bool:
    """Asks the kernel for stamps; False where it has none, and `receive` takes the time itself."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True


def receive(sock: socket.socket, most_bytes: int) -> tuple[bytes, Any, int]:
    """A datagram, cut to `most_bytes`, who sent it, and when it arrived (Unix ns). Raises OSError as `recvmsg` does."""
    data, ancillary, _, sender = sock.recvmsg(most_bytes, _ANCILLARY)
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS and len(content) >= _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack_from(content)
            return data, sender, seconds * 1_000_000_000 + nanoseconds
    return data, sender, time.time_ns()
