"""The coordinator's socket: what comes in is checked, and only then looked at."""

import secrets
import socket
import time
from collections import Counter
from dataclasses import dataclass
from typing import Final, Protocol

from kair_capture.clocks.exchange import receive, stamp_arrivals
from kair_capture.wire.admission import RateLimit, Replays
from kair_capture.wire.datagram import MOST_BYTES, Datagram, Kind, RefusedError, sealed, unsealed
from kair_capture.wire.messages import (
    BadMessageError,
    Beat,
    BeatReply,
    Capture,
    CaptureReply,
    Communication,
    Host,
    Rows,
    numbered,
)

_PER_SENDER: Final = (2000.0, 4000.0)
"""Datagrams a second and at once that one sender is answered: an agent has 10 beats, and rows in bursts."""
_BUFFER: Final = 4 << 20


@dataclass(frozen=True)
class Order:
    """What a host's agent is to be told of the last window."""

    generation: int = 0
    first_step: int = 0
    steps: int = 0
    ranks: tuple[int, ...] = ()
    overhead_ppm: int = 0
    """The share of the job's time that sampling took, in millionths."""
    sampled_every: int = 0
    """Steps between those that ranks sample unasked, of the rank that does so least."""


class Service(Protocol):
    """Who answers; everything that gets here is signed, and new."""

    def on_beat(self, sender: int, beat: Beat) -> tuple[int, Order]:
        """The ms until the next beat, and the order."""

    def on_host(self, sender: int, host: Host) -> bool:
        """Whether the host may take part."""

    def on_communication(self, communication: Communication) -> None:
        """How one of its ranks communicates."""

    def on_rows(self, sender: int, rows: Rows) -> int | None:
        """Where they are kept, and the agent may forget them, the number of the last window; else None."""

    def on_capture(self, capture: Capture) -> CaptureReply:
        """A person wants a window."""


class Endpoint:
    """One UDP socket."""

    def __init__(self, address: tuple[str, int], key: bytes, service: Service) -> None:
        """Raises OSError where the address cannot be had."""
        family, kind, protocol, _, found = socket.getaddrinfo(
            *address, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE
        )[0]
        self.socket: Final = socket.socket(family, kind, protocol)
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        stamp_arrivals(self.socket)
        try:
            self.socket.bind(found)
        except OSError:
            self.socket.close()
            raise
        self._key, self._service = key, service
        # Drawn anew at each start: what was recorded of an earlier conversation is of another epoch.
        self._epoch = secrets.randbits(63) + 1
        self._replays = Replays()
        self._rate = RateLimit(*_PER_SENDER)
        self._rate_of_strays = RateLimit(*_PER_SENDER)
        self.refused: Counter[str] = Counter()
        """Datagrams that were not looked at, by reason."""
        self.heard = 0

    @property
    def port(self) -> int:
        """The one it has, also where any was asked for."""
        return int(self.socket.getsockname()[1])

    def turn(self, most: int = 1000) -> int:
        """Answers what is there, up to so many; says how many there were."""
        for count in range(most):
            try:
                data, address, stamp = receive(self.socket, MOST_BYTES + 1)
            except (BlockingIOError, InterruptedError):
                return count
            except OSError:
                continue
            reply = self._answer(data, address, stamp)
            if reply is not None:
                try:
                    self.socket.sendto(reply, address)
                except OSError:
                    self.refused["unsent"] += 1
        return most

    def close(self) -> None:
        """Closes the socket."""
        self.socket.close()

    def _answer(self, data: bytes, source: object, stamp_ns: int) -> bytes | None:
        """Rates are of what is signed and new alone: others at an agent's address, or who repeat it, take none of its.

        To refuse costs a few µs, most of them the receiving.
        """
        try:
            asked = unsealed(self._key, data)
            if asked.kind >= Kind.BEAT_REPLY:
                raise RefusedError("kind")
            if asked.epoch != self._epoch:
                self._require(self._rate_of_strays, source)
                # No longer than the question: nobody can be flooded by way of this.
                return self._sealed(asked, Kind.EPOCH_REPLY, numbered(self._epoch))
            if not self._replays.admits(asked.sender, asked.sequence):
                raise RefusedError("replay")
            self._require(self._rate, asked.sender)
            self.heard += 1
            return self._answered(asked, stamp_ns)
        except RefusedError as error:
            self.refused[str(error)] += 1
        except BadMessageError:
            self.refused["message"] += 1
        return None

    def _require(self, rate: RateLimit, source: object) -> None:
        if not rate.admits(source, time.monotonic()):
            raise RefusedError("rate")

    def _answered(self, asked: Datagram, stamp_ns: int) -> bytes | None:
        if asked.kind == Kind.BEAT:
            interval_ms, order = self._service.on_beat(asked.sender, Beat.read(asked.body))
            # The second stamp last of all; what follows it is 10 µs.
            window = (order.generation, order.first_step, order.steps, order.ranks)
            pace = (order.overhead_ppm, order.sampled_every)
            reply = BeatReply(stamp_ns, time.time_ns(), interval_ms, *window, *pace)
            return self._sealed(asked, Kind.BEAT_REPLY, reply.packed())
        if asked.kind == Kind.ROWS:
            rows = Rows.read(asked.body)
            generation = self._service.on_rows(asked.sender, rows)
            return None if generation is None else self._sealed(asked, Kind.ROWS_REPLY, numbered(generation))
        if asked.kind == Kind.HOST:
            known = self._service.on_host(asked.sender, Host.read(asked.body))
            return self._sealed(asked, Kind.HOST_REPLY, b"") if known else None
        if asked.kind == Kind.COMMUNICATION:
            self._service.on_communication(Communication.read(asked.body))
            return self._sealed(asked, Kind.COMMUNICATION_REPLY, b"")
        reply_to_person = self._service.on_capture(Capture.read(asked.body))
        return self._sealed(asked, Kind.CAPTURE_REPLY, reply_to_person.packed())

    def _sealed(self, asked: Datagram, kind: Kind, body: bytes) -> bytes:
        return sealed(self._key, Datagram(kind, self._epoch, asked.sender, asked.sequence, body))
