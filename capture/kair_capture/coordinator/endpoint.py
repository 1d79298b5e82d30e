"""Who speaks with the coordinator: its socket, what is known of the hosts behind it, and a window asked for by hand.

The coordinator's socket: what comes in is checked, and only then looked at.

Asks a coordinator for a window by hand.

The hosts of the job: who lives, what their agents count, how well their clocks are known.
"""

import json
import secrets
import select
import socket
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Final, Protocol

from kair_capture.clocks import receive, stamp_arrivals
from kair_capture.wire import (
    MOST_BYTES,
    BadMessageError,
    Beat,
    BeatReply,
    Capture,
    CaptureReply,
    Communication,
    Datagram,
    Host,
    Kind,
    RateLimit,
    RefusedError,
    Replays,
    Rows,
    Standing,
    Values,
    batch_of,
    numbered,
    sealed,
    unsealed,
)
from kair_engine.trace.files import read_kept

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
    hang: int = 0
    """Number of the last hang, for which ranks are asked where they stand."""
    options: int = 0
    """What the window records besides."""
    control: int = 0
    """What ranks are to do otherwise than they were started with."""
    delays: int = 0
    """Number of the last order to delay ranks."""


class Service(Protocol):
    """Who answers; everything that gets here is signed, and new."""

    def on_beat(self, sender: int, beat: Beat) -> tuple[int, Order]:
        """The ms until the next beat, and the order."""

    def on_host(self, sender: int, host: Host) -> bool:
        """Whether the host may take part."""

    def on_communication(self, communication: Communication) -> None:
        """How one of its ranks communicates."""

    def on_standing(self, standing: Standing) -> None:
        """Where a rank stands, or how it ended."""

    def on_rows(self, sender: int, rows: Rows) -> int | None:
        """Where they are kept, and the agent may forget them, the number of the last window; else None."""

    def on_capture(self, capture: Capture) -> CaptureReply:
        """A person wants a window."""

    def on_control(self, asked: Values) -> Values:
        """A person sets something, or asks what is set."""

    def on_confirm(self, asked: Values) -> Values:
        """A person wants ranks to be delayed, or asks how far that is."""

    def on_delays(self) -> bytes:
        """The last order to delay ranks: its number, as `numbered` has it, then JSON; nothing more where it is over."""


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
        for number in range(most):
            try:
                data, address, stamp = receive(self.socket, MOST_BYTES + 1)
            except (BlockingIOError, InterruptedError):
                return number
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
            pace = (order.overhead_ppm, order.sampled_every, order.hang, order.options, order.control)
            reply = BeatReply(stamp_ns, time.time_ns(), interval_ms, *window, *pace, order.delays)
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
        if asked.kind == Kind.STANDING:
            self._service.on_standing(Standing.read(asked.body))
            return self._sealed(asked, Kind.STANDING_REPLY, b"")
        # The others are a person's, but for one.
        if asked.kind == Kind.DELAYS:
            kind, answer = Kind.DELAYS_REPLY, self._service.on_delays()
        elif asked.kind == Kind.CONFIRM:
            kind, answer = Kind.CONFIRM_REPLY, self._service.on_confirm(Values.read(asked.body)).packed()
        elif asked.kind == Kind.CONTROL:
            kind, answer = Kind.CONTROL_REPLY, self._service.on_control(Values.read(asked.body)).packed()
        else:
            kind, answer = Kind.CAPTURE_REPLY, self._service.on_capture(Capture.read(asked.body)).packed()
        return self._sealed(asked, kind, answer)

    def _sealed(self, asked: Datagram, kind: Kind, body: bytes) -> bytes:
        return sealed(self._key, Datagram(kind, self._epoch, asked.sender, asked.sequence, body))


_ANSWER_S: Final = 0.7
_TIMES: Final = 5


class NoAnswerError(Exception):
    """Nobody answers at the address."""


def ask(address: tuple[str, int], key: bytes, capture: Capture) -> CaptureReply:
    """The coordinator's answer. Raises NoAnswerError, OSError for an address that cannot be."""
    return CaptureReply.read(_asked(address, key, Kind.CAPTURE, capture.packed()))


def ask_control(address: tuple[str, int], key: bytes, values: Values) -> Values:
    """The coordinator's answer. Raises NoAnswerError, OSError for an address that cannot be."""
    return Values.read(_asked(address, key, Kind.CONTROL, values.packed()))


def ask_confirm(address: tuple[str, int], key: bytes, values: Values) -> Values:
    """The coordinator's answer. Raises NoAnswerError, OSError for an address that cannot be."""
    return Values.read(_asked(address, key, Kind.CONFIRM, values.packed()))


def _asked(address: tuple[str, int], key: bytes, kind: Kind, body: bytes) -> bytes:
    """The body of the coordinator's answer."""
    family, of_socket, protocol, _, found = socket.getaddrinfo(*address, type=socket.SOCK_DGRAM)[0]
    sender, epoch = secrets.randbits(64), 0
    with socket.socket(family, of_socket, protocol) as sock:
        sock.connect(found)
        for sequence in range(1, _TIMES + 1):
            reply = _answer(sock, key, Datagram(kind, epoch, sender, sequence, body))
            if reply is not None and reply.kind == Kind.EPOCH_REPLY:
                epoch = batch_of(reply.body)
            elif reply is not None:
                return reply.body
            # Without an answer the same is not asked again under the same epoch: it may have been heard.
            elif epoch:
                break
    raise NoAnswerError(f"no coordinator answers at {address[0]}:{address[1]}")


def address_in(file: Path) -> tuple[str, int] | None:
    """Where the store says that the coordinator is."""
    try:
        found = json.loads(read_kept(file))
        return str(found["host"]), int(found["port"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None


def _answer(sock: socket.socket, key: bytes, datagram: Datagram) -> Datagram | None:
    until = time.monotonic() + _ANSWER_S
    try:
        sock.send(sealed(key, datagram))
        while (left := until - time.monotonic()) > 0:
            if not select.select([sock], [], [], left)[0]:
                return None
            try:
                reply = unsealed(key, sock.recv(MOST_BYTES + 1))
            except (RefusedError, BadMessageError):
                continue
            if (reply.sender, reply.sequence) == (datagram.sender, datagram.sequence):
                return reply
    except ConnectionError:
        time.sleep(max(until - time.monotonic(), 0))
    return None


_SILENT_S = 5.0
_SILENT_BEATS = 6
MOST_HOSTS = 1 << 15


@dataclass
class HostState:
    """One agent; another one of the same ranks takes its place."""

    name: str
    sender: int
    ranks: tuple[int, ...] = ()
    had: frozenset[int] = frozenset()
    """Those that have ended as well."""
    beat: Beat = field(default_factory=Beat)
    heard_s: float = 0.0
    is_silent: bool = False
    world_size: int = 0
    """As its ranks say it; 0 before they do."""

    def lives(self, now: float) -> bool:
        """Whether it was heard of late, and has ranks."""
        return bool(self.beat.ranks) and now - self.heard_s <= _SILENT_S

    @property
    def clock_bound_us(self) -> float | None:
        """How well its clock is known."""
        return None if self.beat.bound_ns is None else self.beat.bound_ns / 1000


class Hosts:
    """By name, and by the number that an agent signs with."""

    def __init__(self) -> None:
        self._by_name: dict[str, HostState] = {}
        self._by_sender: dict[int, HostState] = {}
        self._alike: dict[str, list[HostState]] = {}
        """The name that agents say → those that say it: launchers, or containers, may share a host's."""

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[HostState]:
        return iter(self._by_name.values())

    def introduce(self, host: Host, sender: int, now: float) -> bool:
        """An agent says who it is. False where there are too many hosts already."""
        state = self._state_of(host, sender, now)
        if state is None:
            return False
        if state.sender != sender:
            self._by_sender.pop(state.sender, None)
            state.sender = sender
        # An agent that ends says that it has no ranks: those that it had keep their place.
        if host.ranks:
            state.ranks, state.had = host.ranks, state.had | set(host.ranks)
            # Its beat has not come yet; until then it is not taken for one whose ranks have ended.
            state.beat = replace(state.beat, ranks=len(host.ranks))
        state.heard_s = now
        self._by_sender[sender] = state
        state.world_size = host.world_size or state.world_size
        return True

    def _state_of(self, host: Host, sender: int, now: float) -> HostState | None:
        """Its own, that of the agent before it, or a new one: None where there are too many."""
        alike, own = self._alike.setdefault(host.name, []), self._by_sender.get(sender)
        before = next((one for one in alike if one is not own and not set(one.ranks).isdisjoint(host.ranks)), None)
        if before is not None:
            if own is not None and not own.ranks:
                alike.remove(own)
                del self._by_name[own.name]
            return before
        state = own or next((one for one in alike if not one.lives(now)), None)
        if state is None and len(self._by_name) < MOST_HOSTS:
            names = (host.name if number == 1 else f"{host.name}#{number}" for number in count(1))
            state = HostState(next(name for name in names if name not in self._by_name), sender)
            self._by_name[state.name] = state
            alike.append(state)
        return state

    def hear(self, sender: int, beat: Beat, now: float) -> HostState | None:
        """A beat of an agent; None where that has not said who it is."""
        state = self._by_sender.get(sender)
        if state is not None:
            state.beat, state.heard_s = beat, now
            if beat.ranks and not state.had:
                state.had = frozenset(state.ranks)
        return state

    @property
    def world_size(self) -> int:
        """The job's, as hosts say it on which ranks live; of a job that is over, as any says it. 0 where none does."""
        living = [state for state in self if state.beat.ranks and not state.is_silent]
        return max((state.world_size for state in living or self), default=0)

    def clock_offset_us(self, sender: int) -> float:
        """An agent's clock minus the coordinator's; 0 while that is not known."""
        state = self._by_sender.get(sender)
        return 0.0 if state is None or state.beat.bound_ns is None else state.beat.offset_ns / 1000

    def by_rank(self) -> dict[int, str]:
        """rank → its host, or where it was last."""
        had = {rank: state.name for state in self._by_name.values() for rank in state.had}
        return had | {rank: state.name for state in self._by_name.values() if state.had for rank in state.ranks}

    def ranks(self, *, living: bool = False) -> list[int]:
        """All ranks, of hosts that are heard; `living`: of those where any lives."""
        heard = (state for state in self._by_name.values() if not state.is_silent)
        return sorted({rank for state in heard if state.beat.ranks or not living for rank in state.ranks})

    def forget_departed(self) -> None:
        """The job was started again: ranks that do not live may have no place in it any more."""
        for state in self:
            state.had = frozenset(state.ranks if state.beat.ranks and not state.is_silent else ())

    def listen(self, now: float, interval_s: float) -> tuple[list[HostState], list[HostState]]:
        """Hosts that fell silent since the last call, and those that are heard again."""
        lost: list[HostState] = []
        found: list[HostState] = []
        patience = max(_SILENT_S, _SILENT_BEATS * interval_s)
        for state in self._by_name.values():
            is_silent = now - state.heard_s > patience
            if is_silent != state.is_silent:
                state.is_silent = is_silent
                (lost if is_silent else found).append(state)
        return lost, found

    @property
    def sampled_every(self) -> int:
        """Steps between those that ranks sample unasked, of the living rank that does so least; 0 for none."""
        living = (state.beat for state in self._by_name.values() if not state.is_silent)
        return max((beat.sampled_every for beat in living if beat.ranks), default=0)

    @property
    def delivered(self) -> int:
        """Fragments that the agents delivered: when it changes, there is something to commit."""
        return sum(state.beat.delivered for state in self._by_name.values())
