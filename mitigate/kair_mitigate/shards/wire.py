"""How the shard service is asked: frames of a length, a signature and JSON, over TCP.

The service begins with a random challenge. Each request is signed over the challenge and holds its number in the
conversation, so that none is taken twice, here or in another conversation; each reply is signed over the request's
signature. What is sent can be read by others, who cannot change it.

Standard library only: this runs in the training process.
"""

import hmac
import json
import struct
from typing import Final

MOST_BYTES: Final = 1 << 20
"""A frame may be this long: positions of 8,192 workers fit."""
CHALLENGE_BYTES: Final = 32
HEAD: Final = struct.Struct(">I32s")
"""Before each body: its length, and its signature."""
GREETING: Final = b"kair shards 1\n"
"""Comes before the challenge, and tells one version of this conversation from another."""

Message = dict[str, object]


class ConversationError(Exception):
    """What came is no message of this conversation."""


def sign(key: bytes, about: bytes, body: bytes) -> bytes:
    """Return the signature of a body in its place: `about` is the challenge, or the signature of what is replied to."""
    return hmac.digest(key, struct.pack(">I", len(about)) + about + body, "sha256")


def is_signed(signature: bytes, key: bytes, about: bytes, body: bytes) -> bool:
    """Whether the signature is the one of the body in its place."""
    return hmac.compare_digest(signature, sign(key, about, body))


def to_bytes(message: Message) -> bytes:
    """Return the body of a message. Raises ValueError where it is too long."""
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
    """Return a field that is a whole number from 0 on which SQLite can hold. Raises ConversationError."""
    value = message.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise ConversationError(f"{name} is not a whole number")
    return value
