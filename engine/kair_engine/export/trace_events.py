"""Writes trace events in the JSON that Perfetto and chrome://tracing read, one after another."""

import gzip
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import IO, Any, cast

from kair_engine.trace.json_text import encode_ascii_lines

Event = dict[str, Any]

_LEVEL = 3
"""Of gzip: higher ones take several times as long for a tenth less."""
_TOGETHER = 1000
"""Events that are written at once: to write each by itself takes longer than to compress it."""


def write_events(file: IO[bytes], events: Iterable[Event], *, packed: bool) -> None:
    """Write them as they come, few at a time in memory, compressed where they are to be. Raises OSError."""
    with compressing(file, packed=packed) as out:
        out.write(b'{"displayTimeUnit":"ms","traceEvents":[')
        between = b"\n"
        rest = iter(events)
        while some := list(islice(rest, _TOGETHER)):
            # No line ends within an event: JSON writes those of a text as two letters.
            out.write(between + encode_ascii_lines(some).replace(b"\n", b",\n"))
            between = b",\n"
        out.write(b"\n]}\n")


def compressing(file: IO[bytes], *, packed: bool) -> AbstractContextManager[IO[bytes]]:
    """Return the file itself, or what compresses into it.

    It has no time, so that the same events give the same bytes.
    """
    if not packed:
        return nullcontext(file)
    return cast(
        "AbstractContextManager[IO[bytes]]", gzip.GzipFile("", "wb", compresslevel=_LEVEL, fileobj=file, mtime=0)
    )


def process(pid: int, name: str) -> list[Event]:
    """Names a process, and puts it in the order of the numbers."""
    return [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}},
        {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}},
    ]


def lane(pid: int, tid: int, name: str) -> list[Event]:
    """Names a row of a process, and puts it in the order of the numbers."""
    return [
        {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}},
        {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}},
    ]
