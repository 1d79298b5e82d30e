"""Between the agent and its heartbeat, which are two processes: packets over a pair of sockets.

The agent works at a low priority and may be late by milliseconds. The stamps of the clock's exchange must not be,
so they are taken in a process of their own.
"""

import socket
import struct
from contextlib import suppress
from enum import IntEnum
from typing import Final

from kair_capture.clocks.fit import ClockFit
from kair_capture.wire.messages import MOST_RANKS, BeatReply

_MOST_BYTES: Final = 8192
COUNTERS: Final = struct.Struct("<8I")
"""ranks, drops, delivered, spooled, discarded, generation, unsent rows, sampled every so many steps."""
PACE: Final = struct.Struct("<II")
"""What sampling took, in millionths; and steps between those that ranks sample unasked, of the slowest to do so."""
_FIT: Final = struct.Struct("<qddddI")


class Packet(IntEnum):
    """What a packet holds."""

    ROWS = 1
    """To the heartbeat: the number of a batch, then its rows."""
    HOST = 2
    """To the heartbeat: the body of a HOST datagram."""
    COUNTERS = 3
    """To the heartbeat: COUNTERS."""
    KEPT = 4
    """From it: the number of a batch that the coordinator keeps."""
    ORDER = 5
    """From it: the body of a BEAT_REPLY, when its generation is new."""
    FIT = 6
    """From it: the clock."""
    REACHED = 7
    """From it: whether the coordinator answers, one byte."""
    COMMUNICATION = 8
    """To the heartbeat: the body of a COMMUNICATION datagram."""
    PACE = 9
    """From it: what the ranks of the job that sample unasked keep to, PACE."""
    KEY = 10
    """From it: the job's key. The store may hang where it is read, and the agent must not wait for that."""


class Link:
    """One end. Sending never blocks: where the other end does not keep up, it says no."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket: Final = sock
        sock.setblocking(False)

    def send(self, kind: Packet, content: bytes) -> bool:
        """Whether the packet was taken. Raises ConnectionError where the other end is gone."""
        try:
            self.socket.send(bytes((kind,)) + content)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            raise ConnectionError(str(error)) from error
        return True

    def received(self) -> list[tuple[Packet, bytes]]:
        """The packets that are there. Raises ConnectionError where the other end is gone."""
        found: list[tuple[Packet, bytes]] = []
        while True:
            try:
                data = self.socket.recv(_MOST_BYTES)
            except (BlockingIOError, InterruptedError):
                return found
            except OSError as error:
                raise ConnectionError(str(error)) from error
            if not data:
                if found:
                    return found
                raise ConnectionError("the other end is gone")
            with suppress(ValueError):
                found.append((Packet(data[0]), data[1:]))

    def close(self) -> None:
        """Closes this end; the other one hears of it."""
        self.socket.close()


def packed_fit(fit: ClockFit) -> bytes:
    """The content of FIT."""
    return _FIT.pack(fit.at_ns, fit.offset_ns, fit.drift, fit.bound_ns, fit.drift_doubt, 0)


def read_fit(content: bytes) -> ClockFit:
    """Of FIT."""
    at, offset, drift, bound, doubt, _ = _FIT.unpack(content)
    return ClockFit(at, offset, drift, bound, doubt)


def is_order(reply: BeatReply) -> bool:
    """Whether a reply asks for a window that can be: someone is to be sampled, for some steps."""
    return reply.generation > 0 and reply.steps > 0 and 0 < len(reply.ranks) <= MOST_RANKS
