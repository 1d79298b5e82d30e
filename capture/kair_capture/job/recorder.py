"""Writes records of a training process: scopes, waits and pauses, each with its step.

Each writing thread has a ring, because a ring has one producer.
"""

import gc
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Final

from kair_capture.ring import Emit, Kind, NameWriter, RingProducer

MOST_RINGS: Final = 8


class _OfThread(threading.local):
    """The functions that write into this thread's ring, which is created on first use."""

    def __init__(self, functions: Callable[[], tuple[Emit, Callable[[int], None]]]) -> None:
        self._functions = functions

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # of either function
        self.emit, self.commit = self._functions()
        return self.__dict__[name]


class ThreadRings:
    """The rings of one process, each created when its thread first writes; an ended thread's ring is reused."""

    def __init__(self, run_dir: Path, rank: int, records: int) -> None:
        self._stem = run_dir / f"rank-{rank}-{os.getpid()}"
        self._records = records
        # A signal handler or finalizer can run in the middle of `_ring` and emit too.
        self._lock, self._is_making = threading.RLock(), False
        self.here: Final = _OfThread(self._functions)
        """`emit` and `commit` of the calling thread. Raises OSError if its ring cannot be created."""
        self._rings: list[tuple[threading.Thread, RingProducer]] = []
        self.turned_away = 0
        """Records of threads beyond the limit."""

    def close(self) -> None:
        """End all rings; their files stay for the agent."""
        with self._lock:
            rings, self._rings = self._rings, []
        for _, ring in rings:
            ring.close()

    def _functions(self) -> tuple[Emit, Callable[[int], None]]:
        ring = self._ring()
        return (self._turn_away, _nothing) if ring is None else (ring.emit, ring.commit)

    def _turn_away(self, *_: int) -> bool:
        self.turned_away += 1
        return False

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
        """Return the next unused path: a process can be captured twice."""
        names = (self._stem.with_name(f"{self._stem.name}-{number}.ring") for number in count())
        return next(path for path in names if not path.exists())


def _nothing(_: int) -> None:
    """Do nothing: a thread without a ring has no steps to commit."""


clock: Final = time.monotonic_ns

COMPILATION: Final = "compile"
"""Scope of a framework's compilations."""
_MOST_PAUSES: Final = 1024
_CLOCKS_EVERY_NS: Final = 50_000_000
"""Time between two readings of both clocks: an agent looks ten times less often."""
_SCOPE, _GC, _STEP, _CLOCK = (int(kind) for kind in (Kind.SCOPE, Kind.GC, Kind.STEP, Kind.CLOCK))
"""Plain numbers, since looking up `Kind.SCOPE` takes four times as long."""
_SHORTEST_PAUSE_NS: Final = 20_000
"""Young generations are collected faster, many times a step."""


class Recorder:
    """The records of one process. Its methods raise OSError if shared memory is full."""

    def __init__(self, rings: ThreadRings, names_file: Path) -> None:
        self.step = 0
        """The step that records belong to."""
        self.is_on = True
        """Whether records are written; steps are counted anyway."""
        self._rings, self._here = rings, rings.here
        self._names = NameWriter(names_file)
        self._numbers, self._number = self._names.numbers, self._names.number
        self._clocks_due = 0
        self.shortest_ns = 0
        """Shortest part that the present step records; 0 if it records all (Thinning)."""
        self._waited_ns = 0
        """Time in collectives in the present step, if it is thinned."""
        self._pauses: list[tuple[int, int, int]] = []
        self._pause_began = 0

    def scope(self, name: str, begin: int, depth: int = 0) -> None:
        """Record a scope that ends now."""
        if self.is_on:
            number = self._numbers.get(name) or self._number(name)
            self._here.emit(_SCOPE, begin, clock() - begin, self.step, number, depth)

    def part(self, kind: int, name: str, begin: int) -> None:
        """Record a part of the step that ends now; thinned steps skip short ones."""
        if self.is_on and (length := clock() - begin) >= self.shortest_ns:
            number = self._numbers.get(name) or self._number(name)
            self._here.emit(kind, begin, length, self.step, number)

    def wait(self, name: str, begin: int) -> None:
        """Record a wait in a collective that ends now."""
        end = clock()
        if self.shortest_ns:
            self._waited_ns += end - begin
        else:
            self.span(Kind.COLLECTIVE, name, begin, end)

    def span(self, kind: Kind, name: str, begin: int, end: int) -> None:
        """Record a wait, or anything else with a begin and an end."""
        if self.is_on:
            number = self._numbers.get(name) or self._number(name)
            self._here.emit(kind, begin, end - begin, self.step, number)

    def event(self, name: str, value: int = 0) -> None:
        """Record a named moment."""
        if self.is_on:
            number = self._number(name)
            self._here.emit(Kind.USER_EVENT, clock(), value, self.step, number)

    def end_step(self, begin: int, end: int, flags: int, processor: int = 0, samples: int = 0) -> None:
        """Record a finished step, its pauses, and now and then a pair of readings of the two clocks.

        `processor` is the training thread's time, as packed by ProcessorTime; 0 if not known. A thinned step has its
        waiting time there. `samples` is the step's number; 0 if not known.
        """
        here, step = self._here, self.step
        if self._pauses:
            pauses, self._pauses = self._pauses, []
            for started, length, generation in pauses if self.is_on else ():
                if started >= begin:
                    here.emit(_GC, started, length, step, 0, 0, generation)
        if not self.is_on:
            return
        if self.shortest_ns:
            processor, self._waited_ns = min(self._waited_ns, end - begin), 0
        here.emit(_STEP, begin, end - begin, step, samples, 0, flags, processor)
        if end >= self._clocks_due:
            self._clocks_due = end + _CLOCKS_EVERY_NS
            before, unix, after = clock(), time.time_ns(), clock()
            here.emit(_CLOCK, (before + after) // 2, unix, step, 0, 0, min(after - before, 0xFFFF_FFFF))
        here.commit(step)

    def device(self, times_ms: Sequence[float]) -> None:
        """Record the device's time of steps that were finished there when this one ended on the host."""
        if self.is_on and times_ms:
            mean_ns = round(1e6 * sum(times_ms) / len(times_ms))
            self._here.emit(Kind.DEVICE, clock(), mean_ns, self.step, 0, 0, len(times_ms))

    def watch_pauses(self) -> None:
        """Record the garbage collector's pauses from here on, at the end of each step."""
        gc.callbacks.append(self._pause)

    def close(self) -> None:
        """End the recording; files stay."""
        if self._pause in gc.callbacks:
            gc.callbacks.remove(self._pause)
        self._rings.close()
        self._names.close()

    def _pause(self, phase: str, info: Mapping[str, Any]) -> None:
        # A collection can begin while a record is being written: only keep the pause here.
        if phase == "start":
            self._pause_began = clock()
            return
        length = clock() - self._pause_began
        if self._pause_began and length >= _SHORTEST_PAUSE_NS and len(self._pauses) < _MOST_PAUSES:
            self._pauses.append((self._pause_began, length, info["generation"]))


class ScopeStack(threading.local):
    """Nesting depth of each thread within scopes."""

    depth = 0
