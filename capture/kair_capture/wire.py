"""What agents and the coordinator say to each other: small datagrams, each signed with the job's key.

A datagram: a fixed header, a body, and 16 bytes of HMAC-SHA256 over both.

What is not signed with the job's key is refused before anything in it is looked at. A reply repeats the sender and
the sequence of its request, so that it fits no other; requests and replies are of different kinds.

The job's key: a file of its owner alone, which agents and the coordinator share.

The bodies of datagrams: fixed structs, and short texts behind a length.

Who may be heard: each datagram of a sender once, and nobody more often than is reasonable.
"""

import hmac
import os
import secrets
import stat
import struct
from collections import OrderedDict
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final, Protocol, Self

from kair_engine.trace.files import OWN, begin_file, make_folder

MAGIC: Final = b"KAIR"
VERSION: Final = 3
HEADER: Final = struct.Struct("<4sBBHQQQ")
"""magic, version, kind, bytes of the body, epoch, sender, sequence."""
TAG_BYTES: Final = 16
MOST_BYTES: Final = 1400
"""Of a datagram: within the 1,500 of Ethernet, so that none is taken apart on the way."""
MOST_BODY: Final = MOST_BYTES - HEADER.size - TAG_BYTES


class Kind(IntEnum):
    """What a datagram is; a reply's number is its request's plus 100."""

    BEAT = 1
    ROWS = 2
    HOST = 3
    CAPTURE = 4
    COMMUNICATION = 5
    STANDING = 6
    CONTROL = 7
    CONFIRM = 8
    DELAYS = 9
    BEAT_REPLY = 101
    ROWS_REPLY = 102
    HOST_REPLY = 103
    CAPTURE_REPLY = 104
    COMMUNICATION_REPLY = 105
    STANDING_REPLY = 106
    CONTROL_REPLY = 107
    CONFIRM_REPLY = 108
    DELAYS_REPLY = 109
    EPOCH_REPLY = 120
    """The request was of another epoch: the body is this one's number."""


@dataclass(frozen=True)
class Datagram:
    """One that was signed with the key."""

    kind: Kind
    epoch: int
    """A number that the coordinator drew when it started, so that what was sent to it before is refused."""
    sender: int
    """A random number that a client draws when it starts."""
    sequence: int
    """Counts a sender's requests; a reply has its request's."""
    body: bytes


class RefusedError(Exception):
    """The datagram is not one of this job; `str` says what is wrong, for a counter."""


def sealed(key: bytes, datagram: Datagram) -> bytes:
    """The bytes to send. Raises ValueError for a body that is too long."""
    if len(datagram.body) > MOST_BODY:
        raise ValueError(f"a body has at most {MOST_BODY} bytes, this one {len(datagram.body)}")
    head = HEADER.pack(
        MAGIC, VERSION, datagram.kind, len(datagram.body), datagram.epoch, datagram.sender, datagram.sequence
    )
    text = head + datagram.body
    return text + _tag(key, text)


def unsealed(key: bytes, data: bytes) -> Datagram:
    """The datagram that `data` is. Raises RefusedError for any other bytes, whatever they are."""
    if not HEADER.size + TAG_BYTES <= len(data) <= MOST_BYTES:
        raise RefusedError("size")
    magic, version, kind, length, epoch, sender, sequence = HEADER.unpack_from(data)
    if magic != MAGIC or version != VERSION or length != len(data) - HEADER.size - TAG_BYTES:
        raise RefusedError("format")
    if not hmac.compare_digest(_tag(key, data[:-TAG_BYTES]), data[-TAG_BYTES:]):
        raise RefusedError("signature")
    try:
        return Datagram(Kind(kind), epoch, sender, sequence, data[HEADER.size : -TAG_BYTES])
    except ValueError as error:
        raise RefusedError("kind") from error


def _tag(key: bytes, text: bytes) -> bytes:
    return hmac.digest(key, text, "sha256")[:TAG_BYTES]


LEAST_BYTES: Final = 32
MOST_KEY_BYTES: Final = 4096


class KeyFileError(Exception):
    """The key cannot be used; the text says why, and the way out."""


def read_key(path: Path, job: str) -> bytes:
    """The key for the datagrams of `job`, 32 bytes, made of the file's content and the job's name.

    Raises KeyFileError where the file is missing, too short, or not its owner's alone.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            _require_private(os.fstat(handle), path)
            content = file.read(MOST_KEY_BYTES + 1)
    except OSError as error:
        raise KeyFileError(f"cannot read the key {path}: {error.strerror or error}") from error
    if not LEAST_BYTES <= len(content) <= MOST_KEY_BYTES:
        raise KeyFileError(f"the key {path} has {len(content)} bytes; {LEAST_BYTES} to {MOST_KEY_BYTES} are wanted")
    return hmac.digest(content, b"kair capture\0" + job.encode(), "sha256")


def make_key(path: Path) -> bool:
    """Writes a new random key where there is none; says whether it did. Raises OSError."""
    make_folder(path.parent)
    # Beside its place and linked into it: who reads at the same time finds a whole key or none.
    unfinished, handle = begin_file(path, OWN)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_hex(32).encode() + b"\n")
        os.link(unfinished, path)
    except FileExistsError:
        return False
    finally:
        unfinished.unlink()
    return True


def _require_private(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise KeyFileError(f"the key {path} is not a file")
    if status.st_uid not in (os.geteuid(), 0):
        raise KeyFileError(f"the key {path} belongs to another user")
    if status.st_mode & 0o077:
        raise KeyFileError(f"others can read the key {path} (chmod 600 {path})")


MOST_HOST_BYTES: Final = 255
ROW_BYTES: Final = 78
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
_BEAT_REPLY: Final = struct.Struct("<QQIIIIIIIBQQH")


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
    hang: int = 0
    """Number of the last hang: each rank is to be asked once where it stands; 0 where there was none."""
    options: int = 0
    """What the window records besides, as ProfileOptions."""
    control: int = 0
    """What ranks are to do otherwise than they were started with, as RankControl packs it."""
    delays: int = 0
    """Number of the last order to delay ranks, which is asked for by itself; 0 where there was none."""

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
            self.hang,
            self.options & 0xFF,
            self.control,
            self.delays,
            len(self.ranks),
        )
        return head + struct.pack(f"<{len(self.ranks)}I", *self.ranks)

    @classmethod
    def read(cls, body: bytes) -> "BeatReply":
        """Raises BadMessageError."""
        received, sent, interval, generation, first, steps, *more, count = _head(_BEAT_REPLY, body)
        if steps > 10_000:
            raise BadMessageError("steps")
        ranks = _numbers(body[_BEAT_REPLY.size :], count)
        window = (generation, first, steps, ranks)
        return cls(received, sent, interval, *window, *more)


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
    delays: int = 0
    """Whether `kair confirm` may delay the rank, as TakesDelays says it."""

    def packed(self) -> bytes:
        """The body; of what is more than a datagram holds, the first."""
        lists = (self.sends[:MOST_PARTNERS], self.receives[:MOST_PARTNERS])
        numbers = [*lists[0], *lists[1], *(one for group in self.groups[:MOST_PARTNERS] for one in group)]
        groups = min(len(self.groups), MOST_PARTNERS)
        counts = (len(lists[0]), len(lists[1]), groups)
        head = _COMMUNICATION.pack(self.rank, self.world_size, *counts, self.delays & 0xFF)
        return head + struct.pack(f"<{len(numbers)}I", *(min(one, 0xFFFF_FFFF) for one in numbers))

    @classmethod
    def read(cls, body: bytes) -> "Communication":
        """Raises BadMessageError."""
        rank, world_size, sends, receives, groups, delays = _head(_COMMUNICATION, body)
        if max(sends, receives, groups) > MOST_PARTNERS:
            raise BadMessageError("partners")
        numbers = _numbers(body[_COMMUNICATION.size :], sends + receives + 2 * groups)
        of_groups = numbers[sends + receives :]
        pairs = tuple(zip(of_groups[::2], of_groups[1::2], strict=True))
        return cls(rank, world_size, numbers[:sends], numbers[sends : sends + receives], pairs, delays)


_COMMUNICATION: Final = struct.Struct("<IIHHHB")


class EndKnownBy(IntEnum):
    """Who tells how a process ended."""

    NOBODY = 0
    KERNEL = 1
    """Its exit status, asked of the system."""
    FAULT = 2
    """A handler in the process saw the signal."""
    ITSELF = 3
    """Python ended by an exception, or in order."""
    OUT_OF_MEMORY = 4
    """The kernel killed it (by the exit status), and the count of such kills in its memory group rose."""


@dataclass(frozen=True)
class Standing:
    """Where a rank stands, or how it ended. Texts are cut to MOST_TEXT_BYTES each."""

    rank: int
    hang: int
    """The number of the hang for which it was asked; 0 where it was not, as it ended."""
    at_ns: int
    """When it was so, Unix time of its host."""
    step: int = -1
    """That it is in; −1 where that is not known."""
    lives: bool = True
    signal: int = 0
    """That ended it; 0 for none."""
    exit_status: int = -1
    """Its own, −1 where it lives, a signal ended it or that is not known."""
    known_by: EndKnownBy = EndKnownBy.NOBODY
    phase: str = ""
    """`forward`, `backward`, `optimizer`, `input`, `collective`; empty where it is in none of these."""
    where: str = ""
    """`train.py:33 loss_of`: the innermost frame that is no library's, of the thread that trains."""
    after: str = ""
    """What it recorded last, and how long ago."""
    error: str = ""
    """The exception that ended it."""

    def packed(self) -> bytes:
        """The body."""
        texts = [_cut(one) for one in (self.phase, self.where, self.after, self.error)]
        numbers = (self.rank, self.hang, self.at_ns, self.step, self.lives, self.signal, self.exit_status)
        return _STANDING.pack(*numbers, self.known_by, *map(len, texts)) + b"".join(texts)

    @classmethod
    def read(cls, body: bytes) -> "Standing":
        """Raises BadMessageError."""
        rank, hang, at, step, lives, signal, status, known_by, *lengths = _head(_STANDING, body)
        texts, rest = [], body[_STANDING.size :]
        if len(rest) != sum(lengths):
            raise BadMessageError("length")
        for length in lengths:
            texts.append(printable(rest[:length].decode(errors="replace")))
            rest = rest[length:]
        try:
            known = EndKnownBy(known_by)
        except ValueError as error:
            raise BadMessageError("known by") from error
        return cls(rank, hang, at, step, bool(lives), signal, status, known, *texts)


MOST_TEXT_BYTES: Final = 255
_STANDING: Final = struct.Struct("<IIQqBBiBBBBB")


def _cut(text: str) -> bytes:
    return text.encode(errors="replace")[:MOST_TEXT_BYTES].decode(errors="ignore").encode()


def printable(text: str) -> str:
    """What is no printable character becomes one that says so."""
    return "".join(one if one.isprintable() else "�" for one in text)


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
    options: int = 0
    """What is recorded besides, as ProfileOptions."""

    def packed(self) -> bytes:
        """The body. Raises ValueError for more ranks than one datagram holds."""
        if len(self.ranks) > MOST_RANKS:
            raise ValueError(f"at most {MOST_RANKS} ranks")
        head = _CAPTURE.pack(self.steps, len(self.ranks), self.options)
        return head + struct.pack(f"<{len(self.ranks)}I", *self.ranks)

    @classmethod
    def read(cls, body: bytes) -> "Capture":
        """Raises BadMessageError."""
        steps, count, options = _head(_CAPTURE, body)
        return cls(steps, _numbers(body[_CAPTURE.size :], count), options)


_CAPTURE: Final = struct.Struct("<IHBx")
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
        return cls(first, steps, printable(text))


_TWO: Final = struct.Struct("<II")


@dataclass(frozen=True)
class Values:
    """A person sets something while the job runs, or asks what is set; the answer, in the same form.

    Pairs of texts without line breaks; keys without `=`.
    """

    values: tuple[tuple[str, str], ...] = ()
    why_not: str = ""
    """Of an answer: why nothing was changed."""

    def packed(self) -> bytes:
        """The body. Raises ValueError for more than one datagram holds."""
        text = "\n".join(f"{key}={value}" for key, value in self.values).encode()
        why = self.why_not.encode()[:500]
        if _VALUES.size + len(text) + len(why) > MOST_BODY:
            raise ValueError(f"settings take at most {MOST_BODY} bytes")
        return _VALUES.pack(len(text), len(why)) + text + why

    @classmethod
    def read(cls, body: bytes) -> "Values":
        """Raises BadMessageError."""
        length, of_why = _head(_VALUES, body)
        rest = body[_VALUES.size :]
        if len(rest) != length + of_why:
            raise BadMessageError("length")
        lines = rest[:length].decode(errors="replace").split("\n") if length else []
        pairs = [line.partition("=") for line in lines]
        if not all(equals for _, equals, _ in pairs):
            raise BadMessageError("settings")
        values = tuple((printable(key), printable(value)) for key, _, value in pairs)
        return cls(values, printable(rest[length:].decode(errors="replace")))


_VALUES: Final = struct.Struct("<HH4x")
"""Eight bytes: what a stray is answered is not longer."""


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


_WINDOW: Final = 1024
"""How far datagrams of one sender may overtake each other."""


class ReplayWindow:
    """The sequence numbers of one sender that were seen: the highest, and which of the 1,024 below it."""

    def __init__(self) -> None:
        self._highest = 0
        self._seen = 0
        """Bit i: `highest − i` was seen."""

    def admits(self, sequence: int) -> bool:
        """Whether this number is new; from now on it is not. What fell out of the window counts as seen."""
        if sequence > self._highest:
            ahead = sequence - self._highest
            kept = self._seen << ahead if ahead < _WINDOW else 0
            self._seen = (kept | 1) & ((1 << _WINDOW) - 1)
            self._highest = sequence
            return True
        behind = self._highest - sequence
        if behind >= _WINDOW or self._seen >> behind & 1:
            return False
        self._seen |= 1 << behind
        return True


class Replays:
    """The windows of all senders. None is forgotten while the epoch lasts; past `most`, new ones are refused."""

    def __init__(self, most: int = 1 << 16) -> None:
        self._most = most
        self._windows: dict[int, ReplayWindow] = {}

    def admits(self, sender: int, sequence: int) -> bool:
        """Whether the sender's datagram of this number is heard for the first time."""
        window = self._windows.get(sender)
        if window is None:
            if len(self._windows) >= self._most:
                return False
            window = self._windows[sender] = ReplayWindow()
        return window.admits(sequence)


class RateLimit:
    """A bucket per source that fills with `per_second` and holds `burst`; sources past `most` push out the oldest."""

    def __init__(self, per_second: float, burst: float, most: int = 1 << 16) -> None:
        self._rate, self._burst, self._most = per_second, burst, most
        self._buckets: OrderedDict[object, tuple[float, float]] = OrderedDict()

    def admits(self, source: object, now: float) -> bool:
        """Whether one more from `source` is within the limit at `now` (seconds, monotonic)."""
        held, then = self._buckets.get(source, (self._burst, now))
        held = min(self._burst, held + (now - then) * self._rate)
        admitted = held >= 1
        self._buckets[source] = (held - 1 if admitted else held, now)
        self._buckets.move_to_end(source)
        if len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        return admitted
