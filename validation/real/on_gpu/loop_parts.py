"""The processes that record loops: how each is begun, and how they speak, in lines of JSON."""

from __future__ import annotations

import json
import queue
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final

SCRIPT: Final = Path(__file__).with_name("record_loops.py")


def part(name: str, *words: str) -> list[str]:
    """The command that does one part of the work in a process of its own."""
    return [sys.executable, "-u", str(SCRIPT.resolve()), "--part", name, *words]


def heard(stream: IO[str] | None) -> queue.Queue[dict[str, Any] | None]:
    """What a process says, line by line; None where it has ended. Lines of others are left out."""
    said: queue.Queue[dict[str, Any] | None] = queue.Queue()
    assert stream is not None

    def listen() -> None:
        for line in stream:
            with suppress(json.JSONDecodeError):
                told = json.loads(line)
                if isinstance(told, dict) and "event" in told:
                    said.put(told)
        said.put(None)

    threading.Thread(target=listen, daemon=True).start()
    return said


def next_line(said: queue.Queue[dict[str, Any] | None], seconds: float) -> dict[str, Any] | None:
    """None where nothing is said for so long."""
    try:
        return said.get(timeout=seconds)
    except queue.Empty:
        return None


def seeds_of(text: str) -> range:
    """FIRST:STOP."""
    first, _, stop = text.partition(":")
    return range(int(first), int(stop))


def tell(event: str, **values: object) -> None:
    """Say it to the process that keeps."""
    print(json.dumps({"event": event, **values}), flush=True)
