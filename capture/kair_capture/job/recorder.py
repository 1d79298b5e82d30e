"""Writes what happens in a training process: scopes, waits and pauses, each with the step that it belongs to."""

import gc
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from kair_capture.job.thread_rings import ThreadRings
from kair_capture.ring.layout import Kind
from kair_capture.ring.names import NameWriter

clock: Final = time.monotonic_ns

_MOST_PAUSES: Final = 1024
_SHORTEST_PAUSE_NS: Final = 20_000
"""A young generation is collected in less, many times a step."""


class Recorder:
    """The records of one process. Its methods raise OSError where shared memory is full."""

    def __init__(self, rings: ThreadRings, names_file: Path) -> None:
        self.step = 0
        """The step that records belong to."""
        self._rings = rings
        self._names = NameWriter(names_file)
        self._pauses: list[tuple[int, int, int]] = []
        self._pause_began = 0

    def scope(self, name: str, begin: int, depth: int = 0) -> None:
        """A scope that is over now."""
        self._rings.emit(Kind.SCOPE, begin, clock() - begin, self.step, self._names.number(name), depth)

    def span(self, kind: Kind, name: str, begin: int, end: int) -> None:
        """A wait, or anything else that had a begin and an end."""
        self._rings.emit(kind, begin, end - begin, self.step, self._names.number(name))

    def event(self, name: str, value: int = 0) -> None:
        """A named moment."""
        self._rings.emit(Kind.USER_EVENT, clock(), value, self.step, self._names.number(name))

    def end_step(self, begin: int, end: int, flags: int, processor: int = 0) -> None:
        """A step that is over, the pauses in it, and the two clocks beside each other.

        `processor`: what the training thread had of one, as ProcessorTime packs it; 0 where that tells nothing.
        """
        pauses, self._pauses = self._pauses, []
        for started, length, generation in pauses:
            if started >= begin:
                self._rings.emit(Kind.GC, started, length, self.step, 0, 0, generation)
        self._rings.emit(Kind.STEP, begin, end - begin, self.step, 0, 0, flags, processor)
        before, unix, after = clock(), time.time_ns(), clock()
        self._rings.emit(Kind.CLOCK, (before + after) // 2, unix, self.step, 0, 0, min(after - before, 0xFFFF_FFFF))
        self._rings.commit(self.step)

    def watch_pauses(self) -> None:
        """From here on the garbage collector's pauses are recorded, at the end of each step."""
        gc.callbacks.append(self._pause)

    def close(self) -> None:
        """Ends the recording; files stay."""
        if self._pause in gc.callbacks:
            gc.callbacks.remove(self._pause)
        self._rings.close()
        self._names.close()

    def _pause(self, phase: str, info: Mapping[str, Any]) -> None:
        # A collection can begin in the middle of a record's writing: nothing is written here, only kept.
        if phase == "start":
            self._pause_began = clock()
            return
        length = clock() - self._pause_began
        if self._pause_began and length >= _SHORTEST_PAUSE_NS and len(self._pauses) < _MOST_PAUSES:
            self._pauses.append((self._pause_began, length, info["generation"]))


class ScopeStack(threading.local):
    """How deep each thread is within scopes."""

    depth = 0
