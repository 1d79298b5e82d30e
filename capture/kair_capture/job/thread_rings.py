"""A ring for every thread that has something to say: a ring has one producer."""

import os
import threading
from itertools import count
from pathlib import Path
from typing import Final

from kair_capture.ring.producer import RingProducer

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

    def emit(  # noqa: PLR0917  # a keyword costs 30 ns more
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
