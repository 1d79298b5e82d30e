"""Defines the messages between agents and the coordinator: small datagrams, each signed with the job's key.

A datagram is a fixed header, a body (MessagePack), and 16 bytes of HMAC-SHA256 over both. Anything not signed with the
job's key, a file readable by its owner only, is refused before it is parsed. A reply repeats the sender and the
sequence of its request, so that it fits no other; requests and replies have different kinds. Each datagram of a sender
is accepted once, and each sender only at a limited rate.
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
from typing import Annotated, Any, ClassVar, Final, Self

from msgspec import Meta, MsgspecError, Struct, msgpack
from msgspec.structs import replace

from kair_capture.delays import TakesDelays
from kair_engine.results.watch import EndKnownBy
from kair_engine.trace.files import OWN, begin_file, make_folder

MAGIC: Final = b"KAIR"
VERSION: Final = 4
HEADER: Final = struct.Struct("<4sBBHQQQ")
"""magic, version, kind, bytes of the body, epoch, sender, sequence."""
TAG_BYTES: Final = 16
MOST_BYTES: Final = 1420
"""Longest datagram: within the 1,500 bytes of Ethernet, so that it is never fragmented."""
MOST_BODY: Final = MOST_BYTES - HEADER.size - TAG_BYTES


class Kind(IntEnum):
    """Kind of a datagram; a reply's number is its request's plus 100."""

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
    """The request was of another epoch: the header has the current number."""


def reply_of(kind: Kind) -> Kind:
    """Return the kind of a request's reply."""
    return Kind(kind + 100)


@dataclass(frozen=True)
class Datagram:
    """A datagram that was signed with the key."""

    kind: Kind
    epoch: int
    """Number that the coordinator drew at its start, so that earlier messages are refused."""
    sender: int
    """Random number that a client draws at its start."""
    sequence: int
    """Counts a sender's requests; a reply has its request's."""
    body: bytes


class RefusedError(Exception):
    """Raised if the datagram is not one of this job; `str` is the reason, for a counter."""


def sealed(key: bytes, datagram: Datagram) -> bytes:
    """Return the bytes to send. Raises ValueError for a body that is too long."""
    if len(datagram.body) > MOST_BODY:
        raise ValueError(f"a body has at most {MOST_BODY} bytes, this one {len(datagram.body)}")
    head = HEADER.pack(
        MAGIC, VERSION, datagram.kind, len(datagram.body), datagram.epoch, datagram.sender, datagram.sequence
    )
    text = head + datagram.body
    return text + _tag(key, text)


def unsealed(key: bytes, data: bytes) -> Datagram:
    """Return the datagram in `data`. Raises RefusedError for any other bytes."""
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
    """Raised if the key cannot be used; the text says why, and how to fix it."""


def read_key(path: Path, job: str) -> bytes:
    """Return the key for the datagrams of `job`, 32 bytes, derived from the file's content and the job's name.

    Raises KeyFileError if the file is missing, too short, or readable by others.
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
    """Write a new random key if there was no file; return whether it did. Raises OSError."""
    make_folder(path.parent)
    # Written elsewhere and linked: a concurrent reader finds a complete key or none.
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


ROW_BYTES: Final = 78
"""Bytes of one row of step times; `kair_capture.agent.step_rows` defines it."""
MOST_ROWS: Final = (MOST_BODY - 16) // ROW_BYTES
MOST_RANKS: Final = 256
"""Most ranks of a host, or of a window on one host."""
MOST_PARTNERS: Final = 64
"""Most ranks that a rank sends to or receives from, and most process groups."""
MOST_CALLS: Final = 0xFFFF
"""Most calls that are counted per process group."""
Count = Annotated[int, Meta(ge=0)]
RankNumber = Annotated[int, Meta(ge=0, lt=1 << 32)]
Ranks = Annotated[tuple[RankNumber, ...], Meta(max_length=MOST_RANKS)]
Partners = Annotated[tuple[RankNumber, ...], Meta(max_length=MOST_PARTNERS)]


class BadMessageError(Exception):
    """Raised for a signed body that does not match its kind: another version, or a defect."""


class Body(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The body of a datagram: its fields in order, as MessagePack."""

    MOST_TEXT: ClassVar[int] = 500
    """Bytes of a text; longer ones are cut."""

    def packed(self) -> bytes:
        """Return the body's bytes."""
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        cut = {name: _cut(value, self.MOST_TEXT) for name, value in values.items() if isinstance(value, str)}
        return msgpack.encode(replace(self, **cut))

    @classmethod
    def read(cls, body: bytes) -> Self:
        """Return the content of the bytes, in printable characters. Raises BadMessageError if they are invalid."""
        try:
            found = msgpack.decode(body, type=cls)
        except (MsgspecError, ValueError, RecursionError) as error:
            raise BadMessageError(str(error)) from error
        return replace(found, **{name: _shown(getattr(found, name)) for name in cls.__struct_fields__})


def _cut(text: str, most: int) -> str:
    return text.encode(errors="replace")[:most].decode(errors="ignore")


def _shown(value: Any) -> Any:  # noqa: ANN401  (a field of any type)
    if isinstance(value, dict):
        return {printable(key): printable(text) for key, text in value.items()}
    return printable(value) if isinstance(value, str) else value


def printable(text: str) -> str:
    """Replace each character that cannot be printed by �."""
    return "".join(one if one.isprintable() else "�" for one in text)


class Done(Body, frozen=True):
    """An acknowledgement or request without content."""


class Number(Body, frozen=True):
    """Number of a stored batch of rows, or of the last window ordered."""

    number: Count


class Delays(Body, frozen=True):
    """The last order to delay ranks."""

    number: Count
    """0 before the first."""
    order: bytes = b""
    """JSON; empty if it is over."""


class Beat(Body, frozen=True):
    """An agent's heartbeat. Counters count since its start."""

    offset_ns: int = 0
    """Its clock minus the coordinator's, as fitted; a bound of None means no fit."""
    drift: Annotated[float, Meta(ge=-1, le=1)] = 0.0
    bound_ns: Count | None = None
    ranks: Count = 0
    """Living training processes on the host."""
    drops: Count = 0
    """Records that found no room in the rings."""
    delivered: Count = 0
    """Fragments delivered to the store."""
    spooled: Count = 0
    """Fragments that wait for the store, and windows that will become some."""
    discarded: Count = 0
    """Fragments and windows that were discarded: no room, or unreadable."""
    generation: Count = 0
    """Number of the last window that it received."""
    unsent_rows: Count = 0
    sampled_every: Count = 0
    """Largest interval, in steps, at which one of its ranks samples unasked; 0 for none."""


class BeatReply(Body, frozen=True):
    """The coordinator's two stamps (its clock, Unix ns), and orders for the host."""

    received_ns: Count = 0
    sent_ns: Count = 0
    interval_ms: Count = 0
    """Time until the next beat."""
    generation: Count = 0
    """Number of the last window ordered; 0 before the first."""
    first_step: Count = 0
    steps: Annotated[int, Meta(ge=0, le=10_000)] = 0
    ranks: Ranks = ()
    """Ranks to sample on this host."""
    overhead_ppm: Count = 0
    """Share of the job's time that sampling took, in millionths, which limits unasked sampling."""
    sampled_every: Count = 0
    """Largest interval, in steps, at which a rank of the job samples unasked; 0 for none."""
    hang: Count = 0
    """Number of the last hang, for which each rank is asked once where it stands; 0 without one."""
    options: Annotated[int, Meta(ge=0, le=255)] = 0
    """Extra data of the window, as ProfileOptions."""
    control: Count = 0
    """Changed settings of ranks, as RankControl packs them."""
    delays: Count = 0
    """Number of the last order to delay ranks, which is requested separately; 0 without one."""


class Host(Body, frozen=True):
    """Registration of an agent: sent at its start, and whenever its ranks change."""

    MOST_TEXT: ClassVar[int] = 80
    name: Annotated[str, Meta(min_length=1)]
    world_size: RankNumber
    """0 if no rank has stated it."""
    ranks: Ranks


class Communication(Body, frozen=True):
    """A rank's communication in some of its first steps: sent once, and again by another process of the rank."""

    rank: RankNumber
    world_size: RankNumber
    sends: Partners = ()
    """The ranks that it sent to, except by collectives."""
    receives: Partners = ()
    """Those that it received from."""
    groups: Annotated[tuple[tuple[RankNumber, Count], ...], Meta(max_length=MOST_PARTNERS)] = ()
    """Size and number of calls (MOST_CALLS at most) of each process group that was used."""
    delays: TakesDelays = TakesDelays.NO
    """Whether `kair confirm` may delay the rank."""


class Standing(Body, frozen=True):
    """Where a rank stands, or how it ended."""

    MOST_TEXT: ClassVar[int] = 255
    rank: RankNumber
    hang: Count
    """Number of the hang for which it was asked; 0 if it ended."""
    at_ns: Count
    """When that was, Unix time of its host."""
    step: int = -1
    """Its present step; −1 if not known."""
    lives: bool = True
    signal: Count = 0
    """Signal that ended it, or stops it while it lives (SIGSTOP); 0 for none."""
    exit_status: int = -1
    """Exit status; −1 if it lives, was ended by a signal, or it is not known."""
    known_by: EndKnownBy = ""
    phase: str = ""
    """`forward`, `backward`, `optimizer`, `input`, `collective`; empty for anything else."""
    where: str = ""
    """`train.py:33 loss_of`: the training thread's innermost frame outside of libraries."""
    after: str = ""
    """Its last record, and how long ago that was."""
    error: str = ""
    """The exception that ended it."""


class Rows(Body, frozen=True):
    """Step times; a reply means that they are stored."""

    batch: Count
    rows: Annotated[bytes, Meta(min_length=ROW_BYTES)]
    """MOST_ROWS at most, ROW_BYTES each."""

    def __post_init__(self) -> None:
        if len(self.rows) % ROW_BYTES:
            raise ValueError("rows")


class Capture(Body, frozen=True):
    """A user's request for a window, soon; without ranks, on all of them."""

    steps: Count
    ranks: Ranks = ()
    options: Annotated[int, Meta(ge=0, le=255)] = 0
    """Extra data, as ProfileOptions."""


class CaptureReply(Body, frozen=True):
    """The window, or why it was refused."""

    first_step: Count
    steps: Count
    why_not: str = ""


class Values(Body, frozen=True):
    """A user's change of settings, or question; the reply has the same form."""

    values: dict[str, str] = {}
    why_not: str = ""
    """In a reply: why nothing was changed."""


_WINDOW: Final = 1024
"""How far datagrams of one sender may overtake each other."""


class ReplayWindow:
    """The seen sequence numbers of one sender: the highest, and which of the 1,024 below it."""

    def __init__(self) -> None:
        self._highest = 0
        self._seen = 0
        """Bit i: `highest − i` was seen."""

    def admits(self, sequence: int) -> bool:
        """Return whether this number is new, and mark it as seen. Numbers below the window count as seen."""
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
    """The windows of all senders. None is forgotten during the epoch; beyond `most`, new ones are refused."""

    def __init__(self, most: int = 1 << 16) -> None:
        self._most = most
        self._windows: dict[int, ReplayWindow] = {}

    def admits(self, sender: int, sequence: int) -> bool:
        """Return whether the sender's datagram with this number is new, and mark it as seen."""
        window = self._windows.get(sender)
        if window is None:
            if len(self._windows) >= self._most:
                return False
            window = self._windows[sender] = ReplayWindow()
        return window.admits(sequence)


class RateLimit:
    """A bucket per source that fills with `per_second` and holds `burst`; beyond `most` the oldest are dropped."""

    def __init__(self, per_second: float, burst: float, most: int = 1 << 16) -> None:
        self._rate, self._burst, self._most = per_second, burst, most
        self._buckets: OrderedDict[object, tuple[float, float]] = OrderedDict()

    def admits(self, source: object, now: float) -> bool:
        """Return whether one more from `source` is within the limit at `now` (seconds, monotonic)."""
        held, then = self._buckets.get(source, (self._burst, now))
        held = min(self._burst, held + (now - then) * self._rate)
        admitted = held >= 1
        self._buckets[source] = (held - 1 if admitted else held, now)
        self._buckets.move_to_end(source)
        if len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        return admitted
