"""What agents and the coordinator say to each other: small datagrams, each signed with the job's key.

A datagram is a fixed header, a body (MessagePack), and 16 bytes of HMAC-SHA256 over both. What is not signed with the
job's key, a file of its owner alone, is refused before anything in it is looked at. A reply repeats the sender and the
sequence of its request, so that it fits no other; requests and replies are of different kinds. Each datagram of a
sender is heard once, and nobody more often than is reasonable.
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
    """The request was of another epoch: the header has this one's number."""


def reply_of(kind: Kind) -> Kind:
    """Return the kind of a question's answer."""
    return Kind(kind + 100)


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
    """Return the bytes to send. Raises ValueError for a body that is too long."""
    if len(datagram.body) > MOST_BODY:
        raise ValueError(f"a body has at most {MOST_BODY} bytes, this one {len(datagram.body)}")
    head = HEADER.pack(
        MAGIC, VERSION, datagram.kind, len(datagram.body), datagram.epoch, datagram.sender, datagram.sequence
    )
    text = head + datagram.body
    return text + _tag(key, text)


def unsealed(key: bytes, data: bytes) -> Datagram:
    """Return the datagram that `data` is. Raises RefusedError for any other bytes, whatever they are."""
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
    """Return the key for the datagrams of `job`, 32 bytes, made of the file's content and the job's name.

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
    """Write a new random key where there is none; return whether it did. Raises OSError."""
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


ROW_BYTES: Final = 78
"""Of one row of step times; `kair_capture.agent.step_rows` says what is in it."""
MOST_ROWS: Final = (MOST_BODY - 16) // ROW_BYTES
MOST_RANKS: Final = 256
"""Of a host, or of a window on one host."""
MOST_PARTNERS: Final = 64
"""That a rank sends to, receives from, or has process groups with."""
MOST_CALLS: Final = 0xFFFF
"""That are counted of one process group."""
Count = Annotated[int, Meta(ge=0)]
RankNumber = Annotated[int, Meta(ge=0, lt=1 << 32)]
Ranks = Annotated[tuple[RankNumber, ...], Meta(max_length=MOST_RANKS)]
Partners = Annotated[tuple[RankNumber, ...], Meta(max_length=MOST_PARTNERS)]


class BadMessageError(Exception):
    """A signed body that is not what its kind says: another version, or a defect."""


class Body(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What stands in a datagram: its fields in a row, as MessagePack."""

    MOST_TEXT: ClassVar[int] = 500
    """Bytes of a text; what is longer is cut."""

    def packed(self) -> bytes:
        """Return the body's bytes."""
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        cut = {name: _cut(value, self.MOST_TEXT) for name, value in values.items() if isinstance(value, str)}
        return msgpack.encode(replace(self, **cut))

    @classmethod
    def read(cls, body: bytes) -> Self:
        """Return what the bytes say, in printable characters. Raises BadMessageError for any that say nothing."""
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
    """Replace each character that cannot be printed by one that says so."""
    return "".join(one if one.isprintable() else "�" for one in text)


class Done(Body, frozen=True):
    """It was heard, or is asked for: nothing more is to be said."""


class Number(Body, frozen=True):
    """Of a batch of rows that is kept, or of the last window that was ordered."""

    number: Count


class Delays(Body, frozen=True):
    """The last order to delay ranks."""

    number: Count
    """0 before the first."""
    order: bytes = b""
    """JSON; nothing where it is over."""


class Beat(Body, frozen=True):
    """An agent lives. Counters count since it started."""

    offset_ns: int = 0
    """Its clock minus the coordinator's, as it was fitted; with the bound None there is no fit."""
    drift: Annotated[float, Meta(ge=-1, le=1)] = 0.0
    bound_ns: Count | None = None
    ranks: Count = 0
    """Training processes that live on the host."""
    drops: Count = 0
    """Records that found no room in the rings."""
    delivered: Count = 0
    """Fragments that were put into the store."""
    spooled: Count = 0
    """Fragments that wait for the store, and windows that are to become some."""
    discarded: Count = 0
    """Fragments and windows that were given up: no room, or not to be read."""
    generation: Count = 0
    """Of the last window that it was told of."""
    unsent_rows: Count = 0
    sampled_every: Count = 0
    """Steps between those that its ranks sample without being asked, of the rank that does so least; 0 for none."""


class BeatReply(Body, frozen=True):
    """The coordinator's two stamps (its clock, Unix ns), and what the host is to do."""

    received_ns: Count = 0
    sent_ns: Count = 0
    interval_ms: Count = 0
    """How long to wait until the next beat."""
    generation: Count = 0
    """Number of the last window that was ordered; 0 before the first."""
    first_step: Count = 0
    steps: Annotated[int, Meta(ge=0, le=10_000)] = 0
    ranks: Ranks = ()
    """Those on this host that are to be sampled."""
    overhead_ppm: Count = 0
    """The share of the job's time that sampling took, in millionths: ranks that sample unasked keep to it."""
    sampled_every: Count = 0
    """Steps between those that ranks sample unasked, of the rank of the job that does so least; 0 for none."""
    hang: Count = 0
    """Number of the last hang: each rank is to be asked once where it stands; 0 where there was none."""
    options: Annotated[int, Meta(ge=0, le=255)] = 0
    """What the window records besides, as ProfileOptions."""
    control: Count = 0
    """What ranks are to do otherwise than they were started with, as RankControl packs it."""
    delays: Count = 0
    """Number of the last order to delay ranks, which is asked for by itself; 0 where there was none."""


class Host(Body, frozen=True):
    """Who an agent is: said at its start, and again whenever its ranks change."""

    MOST_TEXT: ClassVar[int] = 80
    name: Annotated[str, Meta(min_length=1)]
    world_size: RankNumber
    """0 where no rank has said it."""
    ranks: Ranks


class Communication(Body, frozen=True):
    """How a rank communicated in some of its first steps: said once, and again by another process of the rank."""

    rank: RankNumber
    world_size: RankNumber
    sends: Partners = ()
    """The ranks that it sent to, other than by collectives."""
    receives: Partners = ()
    """Those that it received from."""
    groups: Annotated[tuple[tuple[RankNumber, Count], ...], Meta(max_length=MOST_PARTNERS)] = ()
    """Of each process group that was used: its size, and how many calls there were, MOST_CALLS at most."""
    delays: TakesDelays = TakesDelays.NO
    """Whether `kair confirm` may delay the rank."""


class Standing(Body, frozen=True):
    """Where a rank stands, or how it ended."""

    MOST_TEXT: ClassVar[int] = 255
    rank: RankNumber
    hang: Count
    """The number of the hang for which it was asked; 0 where it was not, as it ended."""
    at_ns: Count
    """When it was so, Unix time of its host."""
    step: int = -1
    """That it is in; −1 where that is not known."""
    lives: bool = True
    signal: Count = 0
    """That ended it, or holds it where it lives (SIGSTOP); 0 for none."""
    exit_status: int = -1
    """Its own, −1 where it lives, a signal ended it or that is not known."""
    known_by: EndKnownBy = ""
    phase: str = ""
    """`forward`, `backward`, `optimizer`, `input`, `collective`; empty where it is in none of these."""
    where: str = ""
    """`train.py:33 loss_of`: the innermost frame that is no library's, of the thread that trains."""
    after: str = ""
    """What it recorded last, and how long ago."""
    error: str = ""
    """The exception that ended it."""


class Rows(Body, frozen=True):
    """Step times; they are kept once there is a reply."""

    batch: Count
    rows: Annotated[bytes, Meta(min_length=ROW_BYTES)]
    """MOST_ROWS at most, ROW_BYTES each."""

    def __post_init__(self) -> None:
        if len(self.rows) % ROW_BYTES:
            raise ValueError("rows")


class Capture(Body, frozen=True):
    """A person wants a window, soon; without ranks, on all of them."""

    steps: Count
    ranks: Ranks = ()
    options: Annotated[int, Meta(ge=0, le=255)] = 0
    """What is recorded besides, as ProfileOptions."""


class CaptureReply(Body, frozen=True):
    """What became of it: the window, or why there is none."""

    first_step: Count
    steps: Count
    why_not: str = ""


class Values(Body, frozen=True):
    """A person sets something while the job runs, or asks what is set; the answer, in the same form."""

    values: dict[str, str] = {}
    why_not: str = ""
    """Of an answer: why nothing was changed."""


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
