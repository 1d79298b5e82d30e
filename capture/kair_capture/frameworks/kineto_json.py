"""Writes events as the Kineto JSON that every reader of PyTorch profiles knows."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class KinetoEvent:
    """One operation, its times in ns since 1970."""

    category: str
    """`kernel`, `gpu_memcpy`, `gpu_memset`, `cuda_runtime` or `user_annotation`."""
    name: str
    begin: int
    end: int
    process: int
    """The device's number for what ran there, else the process'."""
    thread: int
    """The stream's number, else the thread's."""
    args: Mapping[str, Any] = field(default_factory=dict)


def write_kineto(path: Path, events: Iterable[KinetoEvent], header: Mapping[str, Any]) -> None:
    """Writes a recording. Raises OSError."""
    ordered = sorted(events, key=lambda event: event.begin)
    base = ordered[0].begin // 10**9 * 10**9 if ordered else 0
    document = {
        "schemaVersion": 1,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": base,
        **header,
        "traceEvents": [_written(event, base) for event in ordered],
    }
    with path.open("w") as file:
        json.dump(document, file)


def _written(event: KinetoEvent, base: int) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": event.category,
        "name": event.name,
        "pid": event.process,
        "tid": event.thread,
        # µs with three decimals, of integers: a float64 holds an hour to the nanosecond.
        "ts": (event.begin - base) / 1000,
        "dur": max(event.end - event.begin, 0) / 1000,
        "args": dict(event.args),
    }
