"""Connects the coordinator: its socket, requests of users, and the hosts of the job.

Input is authenticated before it is parsed. For hosts it keeps which live, their agents' counters, and how well their
clocks are known.
"""

import secrets
import select
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from kair_capture.clocks import OnwardClock, receive, stamp_arrivals
from kair_capture.wire import (
    MOST_BYTES,
    BadMessageError,
    Beat,
    BeatReply,
    Body,
    Datagram,
    Host,
    Kind,
    RateLimit,
    RefusedError,
    Replays,
    reply_of,
    sealed,
    unsealed,
)

_PER_SENDER: Final = (2000.0, 4000.0)
"""Datagrams per second, and burst, per sender: an agent has 10 beats, and rows in bursts."""
_BUFFER: Final = 4 << 20


Handlers = Mapping[Kind, tuple[type[Body], Callable[[int, Any], Body | None]]]
"""Maps each kind of request to its body's type and its handler (sender, body); a handler returns None for no reply.

Handlers receive signed and new requests only.
"""


class Endpoint:
    """One UDP socket."""

    def __init__(self, address: tuple[str, int], key: bytes, handlers: Handlers) -> None:
        """Raise OSError if the address cannot be used."""
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
        self._key, self._handlers = key, handlers
        # New at each start: recordings of earlier traffic have another epoch.
        self._epoch = secrets.randbits(63) + 1
        self._replays = Replays()
        self._rate = RateLimit(*_PER_SENDER)
        self._rate_of_strays = RateLimit(*_PER_SENDER)
        self.clock: Final = OnwardClock()
        self.refused: Counter[str] = Counter()
        """Rejected datagrams, by reason."""
        self.heard = 0

    @property
    def port(self) -> int:
        """Return the actual port, also if any was requested."""
        return int(self.socket.getsockname()[1])

    def turn(self, most: int = 1000) -> int:
        """Answer waiting datagrams, up to `most`; return their number."""
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
        """Close the socket."""
        self.socket.close()

    def _answer(self, data: bytes, source: object, stamp_ns: int) -> bytes | None:
        """Answer a datagram. Only signed and new ones count towards rates, so forgers and replays use up none of an
        agent's.

        A rejection costs a few µs, most of them for receiving.
        """
        try:
            asked = unsealed(self._key, data)
            if asked.kind not in self._handlers:
                raise RefusedError("kind")
            if asked.epoch != self._epoch:
                self._require(self._rate_of_strays, source)
                # Not longer than the request, so that it cannot amplify a flood.
                return self._sealed(asked, Kind.EPOCH_REPLY, b"")
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
        kind, answer = self._handlers[asked.kind]
        reply = answer(asked.sender, kind.read(asked.body))
        if isinstance(reply, BeatReply):
            # The second stamp comes last; what follows it takes 10 µs.
            ahead_ns = self.clock.ahead_ns()
            reply = replace(reply, received_ns=stamp_ns + ahead_ns, sent_ns=time.time_ns() + ahead_ns)
        return None if reply is None else self._sealed(asked, reply_of(asked.kind), reply.packed())

    def _sealed(self, asked: Datagram, kind: Kind, body: bytes) -> bytes:
        return sealed(self._key, Datagram(kind, self._epoch, asked.sender, asked.sequence, body))


_ANSWER_S: Final = 0.7
_TIMES: Final = 5


class NoAnswerError(Exception):
    """Raised if the address does not answer."""


Reply = TypeVar("Reply", bound=Body)


def ask(address: tuple[str, int], key: bytes, kind: Kind, body: Body, reply: type[Reply]) -> Reply:
    """Return the coordinator's answer. Raises NoAnswerError, OSError for an invalid address."""
    family, of_socket, protocol, _, found = socket.getaddrinfo(*address, type=socket.SOCK_DGRAM)[0]
    sender, epoch = secrets.randbits(64), 0
    with socket.socket(family, of_socket, protocol) as sock:
        sock.connect(found)
        for sequence in range(1, _TIMES + 1):
            answer = _answer(sock, key, Datagram(kind, epoch, sender, sequence, body.packed()))
            if answer is not None and answer.kind == Kind.EPOCH_REPLY:
                epoch = answer.epoch
            elif answer is not None:
                return reply.read(answer.body)
            # Do not repeat an unanswered request in the same epoch: it may have been received.
            elif epoch:
                break
    raise NoAnswerError(f"no coordinator answers at {address[0]}:{address[1]}")


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
    """One agent; another one with the same ranks replaces it."""

    name: str
    sender: int
    ranks: tuple[int, ...] = ()
    had: frozenset[int] = frozenset()
    """Including those that have ended."""
    beat: Beat = field(default_factory=Beat)
    heard_s: float = 0.0
    is_silent: bool = False
    world_size: int = 0
    """As its ranks state it; 0 before they do."""

    def lives(self, now: float) -> bool:
        """Return whether it was heard recently, and has ranks."""
        return bool(self.beat.ranks) and now - self.heard_s <= _SILENT_S

    @property
    def clock_bound_us(self) -> float | None:
        """Return the error of its clock, in µs; None if not known."""
        return None if self.beat.bound_ns is None else self.beat.bound_ns / 1000


class Hosts:
    """Hosts by name, and by the number that an agent signs with."""

    def __init__(self) -> None:
        self._by_name: dict[str, HostState] = {}
        self._by_sender: dict[int, HostState] = {}
        self._alike: dict[str, list[HostState]] = {}
        """Name that agents give → agents with it: launchers or containers may share a host's."""

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[HostState]:
        return iter(self._by_name.values())

    def introduce(self, host: Host, sender: int, now: float) -> bool:
        """Register an agent. Return False if there are too many hosts already."""
        state = self._state_of(host, sender, now)
        if state is None:
            return False
        if state.sender != sender:
            self._by_sender.pop(state.sender, None)
            state.sender = sender
        # An ending agent reports no ranks: its former ones keep their place.
        if host.ranks:
            state.ranks, state.had = host.ranks, state.had | set(host.ranks)
            # Before its first beat, it must not count as an agent whose ranks have ended.
            state.beat = replace(state.beat, ranks=len(host.ranks))
        state.heard_s = now
        self._by_sender[sender] = state
        state.world_size = host.world_size or state.world_size
        return True

    def _state_of(self, host: Host, sender: int, now: float) -> HostState | None:
        """Return its own state, its predecessor's, or a new one; None if there are too many."""
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
        """Store a beat; return its host, None if the agent is not registered."""
        state = self._by_sender.get(sender)
        if state is not None:
            state.beat, state.heard_s = beat, now
            if beat.ranks and not state.had:
                state.had = frozenset(state.ranks)
        return state

    @property
    def world_size(self) -> int:
        """Return the job's size as stated by hosts with living ranks, after the job by any; 0 if not known."""
        living = [state for state in self if state.beat.ranks and not state.is_silent]
        return max((state.world_size for state in living or self), default=0)

    def clock_offset_us(self, sender: int) -> float:
        """Return an agent's clock minus the coordinator's; 0 while that is not known."""
        state = self._by_sender.get(sender)
        return 0.0 if state is None or state.beat.bound_ns is None else state.beat.offset_ns / 1000

    def by_rank(self) -> dict[int, str]:
        """Return rank → its host, or its last one."""
        had = {rank: state.name for state in self._by_name.values() for rank in state.had}
        return had | {rank: state.name for state in self._by_name.values() if state.had for rank in state.ranks}

    def ranks(self, *, living: bool = False) -> list[int]:
        """Return the ranks of hosts that report; with `living`, of those where any rank lives."""
        heard = (state for state in self._by_name.values() if not state.is_silent)
        return sorted({rank for state in heard if state.beat.ranks or not living for rank in state.ranks})

    def forget_departed(self) -> None:
        """Forget ranks that do not live, because a restarted job may not have them."""
        for state in self:
            state.had = frozenset(state.ranks if state.beat.ranks and not state.is_silent else ())

    def listen(self, now: float, interval_s: float) -> tuple[list[HostState], list[HostState]]:
        """Return the hosts that became silent since the last call, and those that returned."""
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
        """Return the largest interval, in steps, at which a living rank samples unasked; 0 for none."""
        living = (state.beat for state in self._by_name.values() if not state.is_silent)
        return max((beat.sampled_every for beat in living if beat.ranks), default=0)

    @property
    def delivered(self) -> int:
        """Return how many fragments the agents delivered; a change means something to commit."""
        return sum(state.beat.delivered for state in self._by_name.values())
