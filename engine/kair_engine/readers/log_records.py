"""Reads log records of Docker and log collectors: a JSON object per line that contains the job's output."""

import json
from typing import Final

_TEXT_FIELDS: Final = ("log", "message", "msg", "MESSAGE", "textPayload", "line", "body", "_raw")
_LONGEST: Final = 64 << 10


def text_in_record(line: bytes) -> bytes | None:
    """Return the job's own text in a record; None if the line is no such record."""
    if not (line.startswith(b"{") and len(line) <= _LONGEST and line.rstrip().endswith(b"}")):
        return None
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    # Exports of searches nest the record in another one that has its source.
    records = [record, *(one for one in record.values() if isinstance(one, dict))]
    texts = (one[name] for one in records for name in _TEXT_FIELDS if isinstance(one.get(name), str))
    text = next(texts, None)
    return None if text is None else text.removesuffix("\n").encode("utf-8", "replace")
