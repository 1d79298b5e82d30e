"""A datagram: a fixed header, a body, and 16 bytes of HMAC-SHA256 over both.

What is not signed with the job's key is refused before anything in it is looked at. A reply repeats the sender and
the sequence of its request, so that it fits no other; requests and replies are of different kinds.
"""

import hmac
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

MAGIC: Final = b"KAIR"
VERSION: Final = 2
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
    BEAT_REPLY = 101
    ROWS_REPLY = 102
    HOST_REPLY = 103
    CAPTURE_REPLY = 104
    COMMUNICATION_REPLY = 105
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
