"""The bodies of datagrams: fixed structs, and short texts behind a length."""

import struct
from dataclasses import dataclass
from typing import Final, Protocol, Self

from kair_capture.wire.datagram import MOST_BODY

MOST_HOST_BYTES: Final = 255
ROW_BYTES: Final = 60
"""Of one row of step times; `kair_capture.agent.step_rows` says what is in it."""
MOST_ROWS: Final = (MOST_BODY - 8) // ROW_BYTES
MOST_RANKS: Final = 256
"""Of a host, or of a window on one host."""
MOST_PARTNERS: Final = 64
"""That a rank sends to, receives from, or has process groups with."""
_NO_BOUND: Final = (1 << 64) - 1


class Body(Protocol):
    """What stands in a datagram."""

    def packed(self) -> bytes:
        """The body's bytes."""

    @classmethod
    def read(cls, body: bytes) -> Self:
        """What the bytes say. Raises BadMessageError for any that say nothing."""


class BadMessageError(Exception):
    """A signed body that is not what its kind says: another version, or a defect."""


_BEAT: Final = struct.Struct("<qdQIIIIIIII")
_BEAT_REPLY: Final = struct.Struct("<QQIIIIIIH")


@dataclass(frozen=True)
class Beat:
    """An agent lives. Counters count since it started."""

    offset_ns: int = 0
    """Its clock minus the coordinator's, as it was fitted; with the bound None there is no fit."""
    drift: float = 0.0
    bound_ns: int | None = None
    ranks: int = 0
    """Training processes that live on the host."""
    drops: int = 0
    """Records that found no room in the rings."""
    delivered: int = 0
    """Fragments that were put into the store."""
    spooled: int = 0
    """Fragments that wait for the store, and windows that are to become some."""
    discarded: int = 0
    """Fragments and windows that were given up: no room, or not to be read."""
    generation: int = 0
    """Of the last window that it was told of."""
    unsent_rows: int = 0
    sampled_every: int = 0
    """Steps between those that its ranks sample without being asked, of the rank that does so least; 0 for none."""

    def packed(self) -> bytes:
        """The body."""
        bound = _NO_BOUND if self.bound_ns is None else self.bound_ns
        counters = (
            self.ranks,
            self.drops,
            self.delivered,
            self.spooled,
            self.discarded,
            self.generation,
            self.unsent_rows,
            self.sampled_every,
        )
        clamped = (min(one, 0xFFFF_FFFF) for one in counters)
        return _BEAT.pack(self.offset_ns, self.drift, bound, *clamped)

    @classmethod
    def read(cls, body: bytes) -> "Beat":
        """Raises BadMessageError."""
        offset, drift, bound, *counters = _whole(_BEAT, body)
        if not -1 <= drift <= 1:
            raise BadMessageError("drift")
        return cls(offset, drift, None if bound == _NO_BOUND else bound, *counters)


@dataclass(frozen=True)
class BeatReply:
    """The coordinator's two stamps (its clock, Unix ns), and what the host is to do."""

    received_ns: int
    sent_ns: int
    interval_ms: int
    """How long to wait until the next beat."""
    generation: int = 0
    """Number of the last window that was ordered; 0 before the first."""
    first_step: int = 0
    steps: int = 0
    ranks: tuple[int, ...] = ()
    """Those on this host that are to be sampled."""
    overhead_ppm: int = 0
    """The share of the job's time that sampling took, in millionths: ranks that sample unasked keep to it."""
    sampled_every: int = 0
    """Steps between those that ranks sample unasked, of the rank of the job that does so least; 0 for none."""

    def packed(self) -> bytes:
        """The body."""
        head = _BEAT_REPLY.pack(
            self.received_ns,
            self.sent_ns,
            self.interval_ms,
            self.generation,
            self.first_step,
            self.steps,
            min(self.overhead_ppm, 0xFFFF_FFFF),
            self.sampled_every,
            len(self.ranks),
        )
        return head + struct.pack(f"<{len(self.ranks)}I", *self.ranks)

    @classmethod
    def read(cls, body: bytes) -> "BeatReply":
        """Raises BadMessageError."""
        received, sent, interval, generation, first, steps, overhead, every, count = _head(_BEAT_REPLY, body)
        if steps > 10_000:
            raise BadMessageError("steps")
        ranks = _numbers(body[_BEAT_REPLY.size :], count)
        return cls(received, sent, interval, generation, first, steps, ranks, overhead, every)


@dataclass(frozen=True)
class Host:
    """Who an agent is: said at its start, and again whenever its ranks change."""

    name: str
    world_size: int
    """0 where no rank has said it."""
    ranks: tuple[int, ...]

    def packed(self) -> bytes:
        """The body."""
        name = self.name.encode(errors="replace")[:MOST_HOST_BYTES]
        ranks = self.ranks[:MOST_RANKS]
        return (
            struct.pack("<BIH", len(name), self.world_size, len(ranks)) + name + struct.pack(f"<{len(ranks)}I", *ranks)
        )

    @classmethod
    def read(cls, body: bytes) -> "Host":
        """Raises BadMessageError."""
        length, world_size, count = _head(_HOST, body)
        raw, rest = body[_HOST.size : _HOST.size + length], body[_HOST.size + length :]
        name = raw.decode(errors="replace")
        if not name or not name.isprintable() or len(raw) < length:
            raise BadMessageError("host")
        return cls(name, world_size, _numbers(rest, count))


_HOST: Final = struct.Struct("<BIH")


@dataclass(frozen=True)
class Communication:
    """How a rank communicated in some of its first steps: said once, and again by another process of the rank."""

    rank: int
    world_size: int
    sends: tuple[int, ...] = ()
    """The ranks that it sent to, other than by collectives; MOST_PARTNERS at most."""
    receives: tuple[int, ...] = ()
    """Those that it received from."""
    groups: tuple[tuple[int, int], ...] = ()
    """Of each process group that was used: its size, and how many calls there were; MOST_PARTNERS at most."""

    def packed(self) -> bytes:
        """The body; of what is more than a datagram holds, the first."""
        lists = (self.sends[:MOST_PARTNERS], self.receives[:MOST_PARTNERS])
        numbers = [*lists[0], *lists[1], *(one for group in self.groups[:MOST_PARTNERS] for one in group)]
        groups = min(len(self.groups), MOST_PARTNERS)
        head = _COMMUNICATION.pack(self.rank, self.world_size, len(lists[0]), len(lists[1]), groups)
        return head + struct.pack(f"<{len(numbers)}I", *(min(one, 0xFFFF_FFFF) for one in numbers))

    @classmethod
    def read(cls, body: bytes) -> "Communication":
        """Raises BadMessageError."""
        rank, world_size, sends, receives, groups = _head(_COMMUNICATION, body)
        if max(sends, receives, groups) > MOST_PARTNERS:
            raise BadMessageError("partners")
        numbers = _numbers(body[_COMMUNICATION.size :], sends + receives + 2 * groups)
        of_groups = numbers[sends + receives :]
        pairs = tuple(zip(of_groups[::2], of_groups[1::2], strict=True))
        return cls(rank, world_size, numbers[:sends], numbers[sends : sends + receives], pairs)


_COMMUNICATION: Final = struct.Struct("<IIHHH")


@dataclass(frozen=True)
class Rows:
    """Step times; they are kept once there is a reply."""

    batch: int
    rows: bytes
    """MOST_ROWS at most, ROW_BYTES each."""

    def packed(self) -> bytes:
        """The body."""
        return struct.pack("<Q", self.batch) + self.rows

    @classmethod
    def read(cls, body: bytes) -> "Rows":
        """Raises BadMessageError."""
        if len(body) < 8 + ROW_BYTES or (len(body) - 8) % ROW_BYTES:
            raise BadMessageError("rows")
        return cls(batch_of(body), body[8:])


@dataclass(frozen=True)
class Capture:
    """A person wants a window, soon; without ranks, on all of them."""

    steps: int
    ranks: tuple[int, ...] = ()

    def packed(self) -> bytes:
        """The body. Raises ValueError for more ranks than one datagram holds."""
        if len(self.ranks) > MOST_RANKS:
            raise ValueError(f"at most {MOST_RANKS} ranks")
        return _CAPTURE.pack(self.steps, len(self.ranks)) + struct.pack(f"<{len(self.ranks)}I", *self.ranks)

    @classmethod
    def read(cls, body: bytes) -> "Capture":
        """Raises BadMessageError."""
        steps, count = _head(_CAPTURE, body)
        return cls(steps, _numbers(body[_CAPTURE.size :], count))


_CAPTURE: Final = struct.Struct("<IH2x")
"""Eight bytes: what a stray is answered is not longer."""


@dataclass(frozen=True)
class CaptureReply:
    """What became of it: the window, or why there is none."""

    first_step: int
    steps: int
    why_not: str = ""

    def packed(self) -> bytes:
        """The body."""
        return struct.pack("<II", self.first_step, self.steps) + self.why_not.encode()[:500]

    @classmethod
    def read(cls, body: bytes) -> "CaptureReply":
        """Raises BadMessageError."""
        first, steps = _head(_TWO, body)
        text = body[_TWO.size :].decode(errors="replace")
        return cls(first, steps, "".join(one if one.isprintable() else "�" for one in text))


_TWO: Final = struct.Struct("<II")


def batch_of(body: bytes) -> int:
    """The number that begins the body of ROWS, ROWS_REPLY and EPOCH_REPLY. Raises BadMessageError."""
    if len(body) < 8:
        raise BadMessageError("number")
    return int.from_bytes(body[:8], "little")


def numbered(number: int) -> bytes:
    """The body of ROWS_REPLY (the last window's) and EPOCH_REPLY."""
    return number.to_bytes(8, "little")


def _whole(form: struct.Struct, body: bytes) -> tuple[int, ...]:
    if len(body) != form.size:
        raise BadMessageError("length")
    return form.unpack(body)


def _head(form: struct.Struct, body: bytes) -> tuple[int, ...]:
    if len(body) < form.size:
        raise BadMessageError("length")
    return form.unpack_from(body)


def _numbers(body: bytes, count: int) -> tuple[int, ...]:
    if count > MOST_RANKS or len(body) != 4 * count:
        raise BadMessageError("ranks")
    return struct.unpack(f"<{count}I", body)
