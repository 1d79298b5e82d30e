"""Connects a worker to the shard service: one request, one signed reply.

Standard library only: this runs in the training process.
"""

import socket
from collections.abc import Callable
from typing import Final

from kair_mitigate.shards.shard import ERRORS, ShardError
from kair_mitigate.shards.wire import (
    CHALLENGE_BYTES,
    GREETING,
    HEAD,
    MOST_BYTES,
    ConversationError,
    Message,
    is_signed,
    sign,
    to_bytes,
    to_message,
)

Address = tuple[str, int]
"""Host and port."""
_PATIENCE_S: Final = 30.0
"""A service without a reply for this long counts as gone. Preparing an epoch of a million shards takes 15 s."""


class Connection:
    """One connection, opened by the first request and reopened after a failure."""

    def __init__(self, address: Address, key: bytes) -> None:
        self.find: Callable[[], tuple[Address, bytes]] = lambda: (address, key)
        """Called before each connection, because a restarted service may have moved."""
        self._key = key
        self._socket: socket.socket | None = None
        self._challenge = b""
        self._number = 0

    def ask(self, request: Message) -> Message:
        """Return the reply.

        Raises ShardError if the request was refused, and OSError if there was no reply: it may have been received or
        not.
        """
        try:
            reply = self._exchange(request)
        except (OSError, ConversationError) as error:
            self.close()
            if isinstance(error, OSError):
                raise
            raise ConnectionError(str(error)) from error
        if "refused" in reply:
            raise ERRORS.get(str(reply["refused"]), ShardError)(str(reply.get("why")))
        if "trouble" in reply:
            raise ConnectionError(str(reply["trouble"]))
        return reply

    def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _exchange(self, request: Message) -> Message:
        connected = self._socket or self._connect()
        body = to_bytes({"number": self._number, **request})
        self._number += 1
        signature = sign(self._key, self._challenge, body)
        connected.sendall(HEAD.pack(len(body), signature) + body)
        length, reply_signature = HEAD.unpack(_receive(connected, HEAD.size))
        if length > MOST_BYTES:
            raise ConversationError("the reply is too long")
        reply = _receive(connected, length)
        if not is_signed(reply_signature, self._key, signature, reply):
            raise ConversationError("the reply is not signed with the job's key")
        return to_message(reply)

    def _connect(self) -> socket.socket:
        address, self._key = self.find()
        connected = socket.create_connection(address, timeout=_PATIENCE_S)
        self._socket = connected
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if _receive(connected, len(GREETING)) != GREETING:
            raise ConversationError("no shard service, or one of another version, listens there")
        self._challenge, self._number = _receive(connected, CHALLENGE_BYTES), 0
        return connected


def _receive(connected: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        part = connected.recv(size - len(received))
        if not part:
            raise ConnectionError("the shard service closed the connection")
        received += part
    return bytes(received)
