"""Asks a coordinator for a window by hand."""

import json
import secrets
import select
import socket
import time
from pathlib import Path
from typing import Final

from kair_capture.wire.datagram import MOST_BYTES, Datagram, Kind, RefusedError, sealed, unsealed
from kair_capture.wire.messages import BadMessageError, Capture, CaptureReply, batch_of
from kair_engine.trace.permissions import read_kept

_ANSWER_S: Final = 0.7
_TIMES: Final = 5


class NoAnswerError(Exception):
    """Nobody answers at the address."""


def ask(address: tuple[str, int], key: bytes, capture: Capture) -> CaptureReply:
    """The coordinator's answer. Raises NoAnswerError, OSError for an address that cannot be."""
    family, kind, protocol, _, found = socket.getaddrinfo(*address, type=socket.SOCK_DGRAM)[0]
    sender, epoch = secrets.randbits(64), 0
    with socket.socket(family, kind, protocol) as sock:
        sock.connect(found)
        for sequence in range(1, _TIMES + 1):
            reply = _answer(sock, key, Datagram(Kind.CAPTURE, epoch, sender, sequence, capture.packed()))
            if reply is not None and reply.kind == Kind.EPOCH_REPLY:
                epoch = batch_of(reply.body)
            elif reply is not None:
                return CaptureReply.read(reply.body)
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
