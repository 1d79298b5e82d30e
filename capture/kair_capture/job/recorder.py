"""Writes what happens in a training process: scopes, waits and pauses, each with the step that it belongs to.

A ring for every thread that has something to say: a ring has one producer.
"""

import gc
import os
import threading
import time
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Final

from kair_capture.ring import Kind, NameWriter, RingProducer

MOST_RINGS: Final = 8


class ThreadRings:
    """The rings of one process, each made when its thread writes first; an ended thread's is another one's then."""

    def __init__(self, run_dir: Path, rank: int, records: int) -> None:
        self._stem = run_dir / f"rank-{rank}-{os.getpid()}"
        self._records = records
        # A signal's handler, or a finalizer, can run in the middle of `_ring` and emit itself.
        self._lock, self._is_making = threading.RLock(), False
        self._local = threading.local()
        self._rings: list[tuple[threading.Thread, RingProducer]] = []
        self.turned_away = 0
        """Records of threads past the most."""

    def emit(  # noqa: PLR0917  # a keyword or a tuple of them costs 30 ns more
        self,
        kind: int,
        time_ns: int,
        value: int,
        step: int,
        name: int = 0,
        depth: int = 0,
        extra: int = 0,
        detail: int = 0,
    ) -> None:
        """Appends a record to this thread's ring. Raises OSError where that cannot be made."""
        try:
            ring = self._local.ring
        except AttributeError:
            ring = self._local.ring = self._ring()
        if ring is None:
            self.turned_away += 1
        else:
            ring.emit(kind, time_ns, value, step, name, depth, extra, detail)

    def commit(self, step: int) -> None:
        """Says that a step is whole; from the thread that makes the steps."""
        ring = getattr(self._local, "ring", None)
        if ring is not None:
            ring.commit(step)

    def close(self) -> None:
        """Ends all rings; their files stay for the agent."""
        with self._lock:
            rings, self._rings = self._rings, []
        for _, ring in rings:
            ring.close()

    def _ring(self) -> RingProducer | None:
        with self._lock:
            if self._is_making:
                return None
            self._is_making = True
            try:
                return self._made_ring()
            finally:
                self._is_making = False

    def _made_ring(self) -> RingProducer | None:
        thread = threading.current_thread()
        for place, (owner, ring) in enumerate(self._rings):
            if not owner.is_alive():
                self._rings[place] = (thread, ring)
                return ring
        if len(self._rings) < MOST_RINGS:
            ring = RingProducer(self._free_path(), self._records)
            self._rings.append((thread, ring))
            return ring
        return None

    def _free_path(self) -> Path:
        """The next that is not there: a process can be captured twice."""
        names = (self._stem.with_name(f"{self._stem.name}-{number}.ring") for number in count())
        return next(path for path in names if not path.exists())


clock: Final = time.monotonic_ns

COMPILATION: Final = "compile"
"""The scope of what a framework compiles."""
_MOST_PAUSES: Final = 1024
_SHORTEST_PAUSE_NS: Final = 20_000
"""A young generation is collected in less, many times a step."""


class Recorder:
    """The records of one process. Its methods raise OSError where shared memory is full."""

    def __init__(self, rings: ThreadRings, names_file: Path) -> None:
        self.step = 0
        """The step that records belong to."""
        self.is_on = True
        """Steps are counted in any case."""
        self._rings = rings
        self._names = NameWriter(names_file)
        self._pauses: list[tuple[int, int, int]] = []
        self._pause_began = 0

    def scope(self, name: str, begin: int, depth: int = 0) -> None:
        """A scope that is over now."""
        if self.is_on:
            self._rings.emit(Kind.SCOPE, begin, clock() - begin, self.step, self._names.number(name), depth)

    def span(self, kind: Kind, name: str, begin: int, end: int) -> None:
        """A wait, or anything else that had a begin and an end."""
        if self.is_on:
            self._rings.emit(kind, begin, end - begin, self.step, self._names.number(name))

    def event(self, name: str, value: int = 0) -> None:
        """A named moment."""
        if self.is_on:
            self._rings.emit(Kind.USER_EVENT, clock(), value, self.step, self._names.number(name))

    def end_step(self, begin: int, end: int, flags: int, processor: int = 0, samples: int = 0) -> None:
        """A step that is over, the pauses in it, and the two clocks beside each other.

        `processor`: what the training thread had of one, as ProcessorTime packs it; 0 where that tells nothing.
        `samples`: how many the step took; 0 where that is not known.
        """
        pauses, self._pauses = self._pauses, []
        if not self.is_on:
            return
        for started, length, generation in pauses:
            if started >= begin:
                self._rings.emit(Kind.GC, started, length, self.step, 0, 0, generation)
        self._rings.emit(Kind.STEP, begin, end - begin, self.step, samples, 0, flags, processor)
        before, unix, after = clock(), time.time_ns(), clock()
        self._rings.emit(Kind.CLOCK, (before + after) // 2, unix, self.step, 0, 0, min(after - before, 0xFFFF_FFFF))
        self._rings.commit(self.step)

    def device(self, times_ms: Sequence[float]) -> None:
        """What steps took on the device that were over there when this one ended on the host."""
        if self.is_on and times_ms:
            mean_ns = round(1e6 * sum(times_ms) / len(times_ms))
            self._rings.emit(Kind.DEVICE, clock(), mean_ns, self.step, 0, 0, len(times_ms))

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
