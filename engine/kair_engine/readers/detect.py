"""File formats, told by content: names and suffixes are not trusted."""

import re
from contextlib import closing
from pathlib import Path
from typing import Final, Literal

from kair_engine.errors import InputError
from kair_engine.readers.blocks import PARQUET_MAGIC, BlockReader

FileFormat = Literal["kineto", "parquet"]

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_HEAD_SIZE: Final = 64 << 10
_TRACE_EVENTS: Final = re.compile(rb'"traceEvents"\s*:')


class NotATraceError(InputError):
    """The file was read, and is something else. In a folder with traces it is passed over in silence."""


def detect_format(path: Path) -> FileFormat | None:
    """The format `path` is read as, or None where its first bytes already say that it is not a trace.

    A JSON file is accepted when `traceEvents` stands near its beginning, or when it is too long to tell.
    Raises OSError where the file cannot be read.
    """
    head = _head(path)
    if head.startswith(PARQUET_MAGIC):
        return "parquet"
    text = head.removeprefix(_BYTE_ORDER_MARK).lstrip()
    if text.startswith(b"["):
        return "kineto" if text[1:].lstrip()[:1] == b"{" and b'"ph"' in text else None
    if text.startswith(b"{") and (len(head) >= _HEAD_SIZE or _TRACE_EVENTS.search(text)):
        return "kineto"
    return None


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        if file.read(4) == PARQUET_MAGIC:
            return PARQUET_MAGIC
    head = b""
    with closing(iter(BlockReader(path, block_size=_HEAD_SIZE))) as blocks:
        for block in blocks:
            head += block
            if len(head) >= _HEAD_SIZE:
                break
    return head
