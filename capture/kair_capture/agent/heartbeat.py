"""The heartbeat of a host: a small process at normal priority that speaks with the coordinator.

The agent runs it: `python -m kair_capture.agent.heartbeat FD JOB KEY_FILE HOST:PORT|- ADDRESS_FILE`. It ends when the
agent does. It loads neither numpy nor pyarrow.

Between the agent and its heartbeat, which are two processes: packets over a pair of sockets.

The agent works at a low priority and may be late by milliseconds. The stamps of the clock's exchange must not be,
so they are taken in a process of their own.
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
    """What a packet holds."""

    BEAT = Kind.BEAT
    """To the heartbeat, as all that are bodies of datagrams: Beat, but for its clock."""
    ROWS = Kind.ROWS
    HOST = Kind.HOST
    COMMUNICATION = Kind.COMMUNICATION
    STANDING = Kind.STANDING
    KEPT = 11
    """From it: Number, of a batch that the coordinator keeps."""
    REPLY = 12
    """From it: BeatReply, each one that comes."""
    FIT = 13
    """From it: the clock, a ClockFit."""
    REACHED = 14
    """From it: whether the coordinator answers, one byte."""
    KEY = 15
    """From it: the job's key. The store may hang where it is read, and the agent must not wait for that."""
    DELAYS = 16
    """From it: Delays, when their number is new."""


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
        """Return the packets that are there. Raises ConnectionError where the other end is gone."""
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
        """Close this end; the other one hears of it."""
        self.socket.close()


_INTERVAL_S: Final = 1.0
_LEAST_S, _MOST_S = 0.05, 60.0
_AGAIN_S: Final = 1.0
"""A question without an answer is asked again after so long."""
_LOST_S: Final = 5.0
"""Without an answer for so long the coordinator counts as away: rows wait, and beats go on."""
_MOST_BATCHES: Final = 64
"""Of one kind, that may be on their way at once."""
_MOST_OUTSTANDING: Final = 512


@dataclass
class _Asked:
    kind: Kind
    at: float
    """Monotonic, s."""
    stamp_ns: int
    key: int
    """Of ROWS and STANDING its number, of COMMUNICATION the rank; else 0."""


class Heartbeat:
    """The conversation of one host; `turn` is called as often as something may have come."""

    def __init__(self, link: Link, coordinator: "Coordinator", host_clock: OnwardClock | None = None) -> None:
        self._link, self._coordinator = link, coordinator
        self._key: bytes | None = None
        self._sender = secrets.randbits(64)
        self._sequence = self._epoch = 0
        self._asked: dict[int, _Asked] = {}
        self._told: dict[tuple[Kind, int], bytes] = {}
        """What a coordinator that starts again has to hear of: the host, how ranks communicate, where they stand."""
        self._untold: dict[tuple[Kind, int], bytes] = {}
        """What was not answered yet, rows too."""
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
        """Whether the coordinator answers."""
        return self._reached

    @property
    def wakes_at(self) -> float:
        """When there is something to do besides listening, monotonic."""
        return self._next_beat

    def use(self, key: bytes) -> None:
        """Use the job's key; without one nothing is sent. Raises ConnectionError when the agent is gone."""
        self._key = key
        self._link.send(Packet.KEY, key)

    def turn(self, now: float) -> None:
        """Says what is due. Raises ConnectionError when the agent is gone."""
        if not self._reached:
            self._coordinator.look(now)
        self._hear_agent()
        if now >= self._next_beat:
            # Not at the same moment as all other hosts.
            self._next_beat = now + self._interval * (0.9 + 0.2 * (secrets.randbelow(1000) / 1000))
            self._again(now)
            self._beat(now)
        reached = now - self._answered < _LOST_S
        if reached != self._reached and self._link.send(Packet.REACHED, bytes((reached,))):
            self._reached = reached

    def take_leave(self) -> None:
        """One more beat with what the agent said last.

        A coordinator that believes that rows are still to come would wait for a minute.
        """
        with suppress(ConnectionError):
            self._hear_agent()
        self._beat(time.monotonic())

    def hear(self, data: bytes, stamp_ns: int, now: float) -> None:
        """Take a datagram that came. What is no answer to a question that is open is passed over."""
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
        """Nobody is there: it may be somewhere else by now."""
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
            # Rows whose receipt does not reach the agent are sent again: the coordinator drops those it has.
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
        """Another coordinator, or the same one started anew: it does not know this host."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._generation = 0  # it may have forgotten what an earlier one counted
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
        """Asks once more what was not answered; rows not too often, and not where nobody answers."""
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
    """Where the coordinator is: as it was told, else as the store says, read again while nobody answers."""

    def __init__(self, named: tuple[str, int] | None, file: Path) -> None:
        self._named, self._file = named, file
        self._socket: socket.socket | None = None
        self._address: tuple[str, int] | None = None
        self._looked = float("-inf")

    def socket(self) -> socket.socket | None:
        """Return a socket connected with it: nobody else is heard. None where nothing is known of it."""
        if self._socket is None:
            self.look(time.monotonic())
        return self._socket

    def look(self, now: float) -> None:
        """Look where it is now, at most once a second."""
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
    """Until the agent is gone; its last counters are passed on."""
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
            # The coordinator makes the key when it starts, which may be later; or another one, in a new folder.
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
    """Everything that came in."""
    if sock is None:
        return
    for _ in range(_MOST_OUTSTANDING):
        try:
            data, _, stamp = receive(sock, MOST_BYTES + 1)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:  # nobody listens there: the kernel tells of the datagram before
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
