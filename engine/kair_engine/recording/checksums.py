"""Checksums of what is kept, so that damage is found before it becomes an answer."""

import hashlib
import os
import stat
from pathlib import Path

import msgspec

from kair_engine.trace.permissions import open_kept

_DIGEST = 16


class FileChecksum(msgspec.Struct, frozen=True):
    """What a file was when it was kept."""

    bytes: int
    checksum: str
    """BLAKE2b, 128 bits."""
    changed_ns: int
    """When anything of it last changed, which no program can set: while that stays, so does the content."""


class _Envelope(msgspec.Struct):
    checksum: str
    body: msgspec.Raw


def checksum_of(path: Path) -> FileChecksum:
    """The checksum of a file as it is now. Raises OSError."""
    with os.fdopen(open_kept(path), "rb") as file:
        checksum = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=_DIGEST)).hexdigest()
    status = path.stat()
    return FileChecksum(status.st_size, checksum, status.st_ctime_ns)


def is_intact(path: Path, seal: FileChecksum) -> bool:
    """Whether a file is what it was; it is read only where it was changed or copied since. Raises OSError."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) or status.st_size != seal.bytes:
        return False
    return status.st_ctime_ns == seal.changed_ns or checksum_of(path).checksum == seal.checksum


def with_checksum(body: bytes, **head: str | int) -> bytes:
    """A JSON value in an envelope with its checksum, behind the fields of `head`."""
    return msgspec.json.encode({**head, "checksum": _checksum(body), "body": msgspec.Raw(body)})


def checked_body(document: bytes) -> bytes:
    """The value of such an envelope. Raises ValueError where it is damaged."""
    found = msgspec.json.decode(document, type=_Envelope)
    if _checksum(bytes(found.body)) != found.checksum:
        raise ValueError("its content is not what was written")
    return bytes(found.body)


def _checksum(body: bytes) -> str:
    return hashlib.blake2b(body, digest_size=_DIGEST).hexdigest()
