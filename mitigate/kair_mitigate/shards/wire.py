"""Defines the protocol of the shard service: frames of a length, a signature and JSON, over TCP.

The service begins with a random challenge. Each request is signed over the challenge and holds its number in the
connection, so none can be replayed, here or in another connection; each reply is signed over the request's signature.
Messages are readable by others, but cannot be changed.

Standard library only: this runs in the training process.
"""

import hmac
import json
import struct
from typing import Final

MOST_BYTES: Final = 1 << 20
"""Longest frame: positions of 8,192 workers fit."""
CHALLENGE_BYTES: Final = 32
HEAD: Final = struct.Struct(">I32s")
"""Precedes each body: its length and its signature."""
GREETING: Final = b"kair shards 1\n"
"""Precedes the challenge, and identifies the protocol's version."""

Message = dict[str, object]


class ConversationError(Exception):
    """Raised for anything that is not a message of this protocol."""


def sign(key: bytes, about: bytes, body: bytes) -> bytes:
    """Return the signature of a body; `about` is the challenge, or the signature of the request replied to."""
    return hmac.digest(key, struct.pack(">I", len(about)) + about + body, "sha256")


def is_signed(signature: bytes, key: bytes, about: bytes, body: bytes) -> bool:
    """Return whether the signature is that of the body in its place."""
    return hmac.compare_digest(signature, sign(key, about, body))


def to_bytes(message: Message) -> bytes:
    """Return the body of a message. Raises ValueError if it is too long."""
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > MOST_BYTES:
        raise ValueError(f"a message of {len(body)} bytes is too long for the shard service")
    return body


def to_message(body: bytes) -> Message:
    """Return the message of a body. Raises ConversationError."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ConversationError("the message is no JSON") from error
    if not isinstance(message, dict):
        raise ConversationError("the message is no object")
    return message


def text_of(message: Message, name: str) -> str:
    """Return a field that is a text of at most 1,000 characters. Raises ConversationError."""
    value = message.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= 1000:
        raise ConversationError(f"{name} is not a text")
    return value


def whole_of(message: Message, name: str) -> int:
    """Return a field that is a whole number, at least 0 and within SQLite's range. Raises ConversationError."""
    value = message.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise ConversationError(f"{name} is not a whole number")
    return value
