"""Runs the heartbeat of a host: a small process at normal priority that talks to the coordinator.

The agent starts it: `python -m kair_capture.agent.heartbeat FD JOB KEY_FILE HOST:PORT|- ADDRESS_FILE`. It ends when the
agent does. It loads neither numpy nor pyarrow.

The agent and its heartbeat exchange packets over a pair of sockets. They are two processes because the agent has a low
priority and may be late by milliseconds, while the stamps of the clock's exchange must be exact.
"""

import secrets
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final, Never

from msgspec import msgpack
from msgspec.structs import replace

from kair_capture.clocks import ClockFilter, Exchange, OnwardClock, receive, stamp_arrivals
from kair_capture.places import address_in, address_of
from kair_capture.wire import (
    MOST_BYTES,
    BadMessageError,
    Beat,
    BeatReply,
    Communication,
    Datagram,
    Delays,
    Done,
    KeyFileError,
    Kind,
    Number,
    RefusedError,
    Rows,
    read_key,
    reply_of,
    sealed,
    unsealed,
)

_MOST_BYTES: Final = 8192


class Packet(IntEnum):
    """The content of a packet."""

    BEAT = Kind.BEAT
    """To the heartbeat, like all bodies of datagrams: Beat, without its clock."""
    ROWS = Kind.ROWS
    HOST = Kind.HOST
    COMMUNICATION = Kind.COMMUNICATION
    STANDING = Kind.STANDING
    KEPT = 11
    """From it: Number, of a batch that the coordinator has stored."""
    REPLY = 12
    """From it: every BeatReply."""
    FIT = 13
    """From it: the clock, a ClockFit."""
    REACHED = 14
    """From it: whether the coordinator answers, one byte."""
    KEY = 15
    """From it: the job's key. Reading it may hang with the store, which the agent must not wait for."""
    DELAYS = 16
    """From it: Delays, when their number is new."""


class Link:
    """One end of the connection. Sending never blocks: it fails if the other end is too slow."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket: Final = sock
        sock.setblocking(False)

    def send(self, kind: Packet, content: bytes) -> bool:
        """Send a packet; return False if there is no room. Raises ConnectionError if the other end is gone."""
        try:
            self.socket.send(bytes((kind,)) + content)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            raise ConnectionError(str(error)) from error
        return True

    def received(self) -> list[tuple[Packet, bytes]]:
        """Return the packets that have arrived. Raises ConnectionError if the other end is gone."""
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
        """Close this end; the other one notices."""
        self.socket.close()


_INTERVAL_S: Final = 1.0
_LEAST_S, _MOST_S = 0.05, 60.0
_AGAIN_S: Final = 1.0
"""An unanswered request is repeated after this long."""
_LOST_S: Final = 5.0
"""Without an answer for this long the coordinator counts as away: rows wait, beats continue."""
_MOST_BATCHES: Final = 64
"""Batches of one kind in flight."""
_MOST_OUTSTANDING: Final = 512


@dataclass
class _Asked:
    kind: Kind
    at: float
    """Monotonic, s."""
    stamp_ns: int
    key: int
    """The number for ROWS and STANDING, the rank for COMMUNICATION, else 0."""


class Heartbeat:
    """The connection of one host with the coordinator; `turn` is called whenever something may have arrived."""

    def __init__(self, link: Link, coordinator: "Coordinator", host_clock: OnwardClock | None = None) -> None:
        self._link, self._coordinator = link, coordinator
        self._key: bytes | None = None
        self._sender = secrets.randbits(64)
        self._sequence = self._epoch = 0
        self._asked: dict[int, _Asked] = {}
        self._told: dict[tuple[Kind, int], bytes] = {}
        """What a restarted coordinator must be sent again: the host, how ranks communicate, where they stand."""
        self._untold: dict[tuple[Kind, int], bytes] = {}
        """Requests without an answer, rows included."""
        self._standings = 0
        self._delays = 0
        """Number of the last order to delay ranks that was passed on."""
        self._counted = Beat()
        self._clock, self._host_clock = ClockFilter(), host_clock or OnwardClock()
        self._interval = _INTERVAL_S
        self._next_beat = 0.0
        self._answered = float("-inf")
        self._reached = False
        self._generation = 0

    @property
    def is_reached(self) -> bool:
        """Return whether the coordinator answers."""
        return self._reached

    @property
    def wakes_at(self) -> float:
        """Return when there is something to do besides listening (monotonic)."""
        return self._next_beat

    def use(self, key: bytes) -> None:
        """Use the job's key; without one nothing is sent. Raises ConnectionError if the agent is gone."""
        self._key = key
        self._link.send(Packet.KEY, key)

    def turn(self, now: float) -> None:
        """Send what is due. Raises ConnectionError if the agent is gone."""
        if not self._reached:
            self._coordinator.look(now)
        self._hear_agent()
        if now >= self._next_beat:
            # Random, so that hosts do not beat at the same moment.
            self._next_beat = now + self._interval * (0.9 + 0.2 * (secrets.randbelow(1000) / 1000))
            self._again(now)
            self._beat(now)
        reached = now - self._answered < _LOST_S
        if reached != self._reached and self._link.send(Packet.REACHED, bytes((reached,))):
            self._reached = reached

    def take_leave(self) -> None:
        """Send a last beat with the agent's final counters.

        A coordinator that still expects rows would wait for a minute.
        """
        with suppress(ConnectionError):
            self._hear_agent()
        self._beat(time.monotonic())

    def hear(self, data: bytes, stamp_ns: int, now: float) -> None:
        """Handle a datagram; any that does not answer an open request is ignored."""
        assert self._key is not None
        try:
            reply = unsealed(self._key, data)
            asked = self._asked.pop(reply.sequence, None) if reply.sender == self._sender else None
            if asked is None or reply.kind not in (reply_of(asked.kind), Kind.EPOCH_REPLY):
                return
            self._answered = now
            self._heard(reply, asked, stamp_ns)
        except (RefusedError, BadMessageError):
            return

    def refused(self) -> None:
        """Note that the address refuses datagrams: the coordinator may have moved."""
        self._answered = float("-inf")

    def _heard(self, reply: Datagram, asked: _Asked, stamp_ns: int) -> None:
        if reply.kind == Kind.EPOCH_REPLY:
            self._begin_epoch(reply.epoch)
        elif reply.kind == Kind.DELAYS_REPLY:
            number = Delays.read(reply.body).number
            if self._link.send(Packet.DELAYS, reply.body):
                self._delays = number
        elif reply.kind == Kind.BEAT_REPLY:
            self._heard_of_beat(reply, asked, stamp_ns)
        else:
            key = (asked.kind, asked.key)
            # Rows whose receipt does not reach the agent are sent again: the coordinator drops duplicates.
            if asked.kind != Kind.ROWS or (
                key in self._untold and self._link.send(Packet.KEPT, Number(asked.key).packed())
            ):
                self._untold.pop(key, None)
            if asked.kind == Kind.ROWS and Number.read(reply.body).number > self._generation:
                self._next_beat = 0.0  # a window was ordered: its first step may be near

    def _heard_of_beat(self, reply: Datagram, asked: _Asked, stamp_ns: int) -> None:
        answer = BeatReply.read(reply.body)
        self._interval = min(max(answer.interval_ms / 1000, _LEAST_S), _MOST_S)
        answered_ns = stamp_ns + self._host_clock.ahead_ns()
        self._clock.add(Exchange(asked.stamp_ns, answer.received_ns, answer.sent_ns, answered_ns))
        if self._clock.fit is not None:
            self._link.send(Packet.FIT, msgpack.encode(self._clock.fit))
        if self._link.send(Packet.REPLY, reply.body):
            self._generation = answer.generation
        if answer.delays != self._delays:
            self._ask(Kind.DELAYS, Done().packed())

    def _begin_epoch(self, epoch: int) -> None:
        """Start over with a new or restarted coordinator, which does not know this host."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._generation = 0  # it may have lost an earlier count
            self._untold = {**self._told, **self._untold}
            self._asked.clear()
            self._next_beat = 0.0

    def _hear_agent(self) -> None:
        for packet, content in self._link.received():
            kind, key = Kind(packet), 0
            if kind == Kind.BEAT:
                self._counted = Beat.read(content)
                continue
            if kind == Kind.ROWS:
                key = Rows.read(content).batch
            elif kind == Kind.COMMUNICATION:
                key = Communication.read(content).rank
            elif kind == Kind.STANDING:
                key = self._standings = self._standings + 1
                for of in (self._told, self._untold):
                    of.pop((kind, key - _MOST_OUTSTANDING), None)
            self._untold[kind, key] = content
            if kind != Kind.ROWS:
                self._told[kind, key] = content
            self._ask(kind, content, key)

    def _again(self, now: float) -> None:
        """Repeat unanswered requests; rows not too often, and only if the coordinator answers."""
        rows = {asked.key for asked in self._asked.values() if asked.kind == Kind.ROWS and asked.at > now - _AGAIN_S}
        for kind in (Kind.HOST, Kind.COMMUNICATION, Kind.STANDING, Kind.ROWS):
            if kind == Kind.ROWS and now - self._answered >= _LOST_S:
                break
            keys = [key for of, key in self._untold if of == kind and not (kind == Kind.ROWS and key in rows)]
            for key in keys[:_MOST_BATCHES]:
                self._ask(kind, self._untold[kind, key], key)
        for sequence in [one for one, asked in self._asked.items() if asked.at < now - _MOST_S]:
            del self._asked[sequence]

    def _beat(self, now: float) -> None:
        beat = self._counted
        if (fit := self._clock.fit) is not None:
            at_ns = self._host_clock.now_ns()
            offset, bound = round(fit.offset_at(at_ns)), round(fit.bound_at(at_ns))
            beat = replace(beat, offset_ns=offset, drift=max(min(fit.drift, 1.0), -1.0), bound_ns=max(bound, 0))
        self._ask(Kind.BEAT, beat.packed(), now=now)

    def _ask(self, kind: Kind, body: bytes, key: int = 0, *, now: float = 0.0) -> None:
        sock = self._coordinator.socket()
        if sock is None or self._key is None:
            return
        self._sequence += 1
        data = sealed(self._key, Datagram(kind, self._epoch, self._sender, self._sequence, body))
        if len(self._asked) >= _MOST_OUTSTANDING:
            del self._asked[next(iter(self._asked))]
        asked = self._asked[self._sequence] = _Asked(kind, now or time.monotonic(), 0, key)
        ahead_ns = self._host_clock.ahead_ns()
        try:
            asked.stamp_ns = time.time_ns() + ahead_ns  # nothing between the stamp and the sending
            sock.send(data)
        except OSError:
            return  # refused, no route, or a full queue: the next beat tries again


class Coordinator:
    """The coordinator's address: the given one, else that in the store, read again while it does not answer."""

    def __init__(self, named: tuple[str, int] | None, file: Path) -> None:
        self._named, self._file = named, file
        self._socket: socket.socket | None = None
        self._address: tuple[str, int] | None = None
        self._looked = float("-inf")

    def socket(self) -> socket.socket | None:
        """Return a socket connected to it, which ignores other senders; None if the address is not known."""
        if self._socket is None:
            self.look(time.monotonic())
        return self._socket

    def look(self, now: float) -> None:
        """Read the address again, at most once a second."""
        if now - self._looked < 1:
            return
        self._looked = now
        address = self._named or address_in(self._file)
        if address is None or (address == self._address and self._socket is not None):
            return
        with suppress(OSError):
            family, kind, protocol, _, found = socket.getaddrinfo(*address, type=socket.SOCK_DGRAM)[0]
            sock = socket.socket(family, kind, protocol)
            sock.setblocking(False)
            stamp_arrivals(sock)
            sock.connect(found)
            self.close()
            self._socket, self._address = sock, address

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None


def converse(link: Link, job: str, key_file: Path, coordinator: Coordinator, host_clock: OnwardClock) -> None:
    """Run until the agent is gone, then pass on its last counters."""
    heartbeat = Heartbeat(link, coordinator, host_clock)
    with suppress(ConnectionError):
        _go_on(heartbeat, link, job, key_file, coordinator)
    heartbeat.take_leave()


def _go_on(heartbeat: Heartbeat, link: Link, job: str, key_file: Path, coordinator: Coordinator) -> Never:
    key: bytes | None = None
    looked = float("-inf")
    while True:
        now = time.monotonic()
        if key is None or (not heartbeat.is_reached and now - looked >= 1):
            looked = now
            # The coordinator makes the key when it starts, maybe later, or another one in a new folder.
            with suppress(KeyFileError):
                key = read_key(key_file, job)
                heartbeat.use(key)
        heartbeat.turn(now)
        sock = coordinator.socket() if key is not None else None
        watched = [link.socket, *([sock] if sock else [])]
        ready, _, _ = select.select(watched, [], [], min(max(heartbeat.wakes_at - time.monotonic(), 0.0), 1.0))
        if sock in ready:
            hear_all(sock, heartbeat, time.monotonic())


def hear_all(sock: socket.socket | None, heartbeat: Heartbeat, now: float) -> None:
    """Handle all datagrams that have arrived."""
    if sock is None:
        return
    for _ in range(_MOST_OUTSTANDING):
        try:
            data, _, stamp = receive(sock, MOST_BYTES + 1)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:  # the previous datagram was refused
            heartbeat.refused()
            continue
        heartbeat.hear(data, stamp, now)


def main(arguments: list[str]) -> None:
    """Run the process that the agent starts."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    handle, job, key_file, named, address_file, clock_file = arguments
    link = Link(socket.socket(fileno=int(handle)))
    coordinator = Coordinator(None if named == "-" else address_of(named), Path(address_file))
    converse(link, job, Path(key_file), coordinator, OnwardClock(Path(clock_file)))


if __name__ == "__main__":
    main(sys.argv[1:])
