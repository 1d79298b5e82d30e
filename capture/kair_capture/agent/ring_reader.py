"""Reads the rings of one training process: records become step rows, and leave the rings once those are written.

Records are read from another process, even after the producer was killed.
"""

import mmap
import os
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kair_capture.agent.step_rows import PHASES, ROW, Rows, ScopeSum, clocks_apart, fill_thinned, rows_of, scope_sums
from kair_capture.clocks import SET_BACK_NS
from kair_capture.job.windows import INTERVAL_EVENT
from kair_capture.ring import (
    HEADER_BYTES,
    MAGIC,
    RECORD_BYTES,
    VERSION,
    WORD_CAPACITY,
    WORD_COMMITTED_HEAD,
    WORD_COMMITTED_STEP,
    WORD_DROPS,
    WORD_HEAD,
    WORD_MAGIC,
    WORD_PID,
    WORD_RECORD_BYTES,
    WORD_START,
    WORD_TAIL,
    WORD_VERSION,
    Kind,
    NameReader,
    is_running,
    ring_bytes,
    start_ticks,
    unix_of_ticks,
)

_RING: Final = re.compile(r"rank-(\d{1,7})-(\d{1,10})-(\d{1,4})\.ring")
_MOST_RINGS: Final = 64
_HELD: Final = 0.5
"""Fill level above which records leave a ring before their step is over, so that new ones are not lost."""

_MOST_EARLY: Final = 1 << 20
_PARTS: Final = (Kind.SCOPE, Kind.COLLECTIVE, Kind.INPUT)
"""Kinds of records that a step consists of."""


@dataclass(frozen=True)
class Trainer:
    """A process of the job on this host."""

    rank: int
    pid: int


class TrainerRings:
    """The rings of one process, one per producing thread."""

    def __init__(self, folder: Path, trainer: Trainer, ahead_ns: int = 0) -> None:
        """`ahead_ns` is the correction for a host clock that was set back before the process began."""
        self.trainer: Final = trainer
        self._ahead_ns = ahead_ns
        self._unix_minus_monotonic: int | None = None
        self._folder = folder
        self._rings: dict[str, RingReader] = {}
        self._names = NameReader(folder / f"rank-{trainer.rank}-{trainer.pid}.names")
        self._began = start_ticks(trainer.pid)
        self._process_s = 0
        """When it began (Unix); 0 before its first ring exists."""
        self._with_steps = ""
        """The ring of the thread that produces the steps."""
        self.sampled_every = 0
        """Interval, in steps, at which the process samples unasked; 0 for never."""
        self._recorded = np.zeros(0, ROW)
        """At most one row: the last step that was not thinned."""
        self._early: list[Rows] = []
        """Records that left a full ring before their step was over."""

    def add(self, name: str) -> None:
        """Add a ring of the process. One that is incomplete is skipped and retried."""
        if name not in self._rings and len(self._rings) < _MOST_RINGS:
            with suppress(OSError, NotARingError):
                ring = self._rings[name] = RingReader(self._folder / name)
                self._process_s = self._process_s or unix_of_ticks(ring.began, self._ahead_ns)

    @property
    def is_alive(self) -> bool:
        """Return whether the process runs."""
        rings = list(self._rings.values())
        return rings[0].is_producing if rings else is_running(self.trainer.pid, self._began)

    @property
    def drops(self) -> int:
        """Return how many records were lost in its rings."""
        return sum(ring.drops + ring.lost for ring in self._rings.values())

    def peek(self, *, to_the_end: bool = False) -> "Drained | None":
        """Return the rows of finished steps, and what may leave the rings then; None without news.

        With `to_the_end`, records of a step that never ended may leave as well.
        """
        if not any(ring.waiting for ring in self._rings.values()):
            return None
        # Read the ring with steps first, so that the others have their records for those steps by then.
        in_order = sorted(self._rings, key=lambda name: (name != self._with_steps, name))
        held = {name: self._rings[name].peek() for name in in_order}
        for name, records in held.items():
            if (records["kind"] == Kind.STEP).any():
                self._with_steps = name
        whole = np.concatenate([np.zeros(0, RECORD_DTYPE), *self._early, *held.values()])
        steps = whole[whole["kind"] == Kind.STEP]
        over = int(steps["step"].max()) if len(steps) else None
        taken = {name: self._leaving(name, records, over, to_the_end) for name, records in held.items()}
        if not any(taken.values()):
            return None
        self._note_interval(whole)
        names = self._scope_names(whole)
        phases = {number: text for number, text in names.items() if text in PHASES}
        rows = rows_of(self.trainer.rank, whole, phases, self._shift_of(whole)) if over is not None else None
        if rows is not None:
            rows["process_s"] = self._process_s
            self._recorded = fill_thinned(rows, self._recorded)
        own = {number: text for number, text in names.items() if text not in PHASES}
        scopes = scope_sums(rows, whole, own) if rows is not None and own else []
        return Drained(rows, taken, self._early_of(held, taken, over), scopes)

    def _shift_of(self, records: Rows) -> int:
        """Return the shift from monotonic to Unix time, which never decreases even if the host's clock is set back."""
        shift, before = clocks_apart(records) + self._ahead_ns, self._unix_minus_monotonic
        if before is None or shift > before - SET_BACK_NS:
            self._unix_minus_monotonic = before = shift
        return before

    def place(self) -> tuple[int, str]:
        """Return the step that the process is in (−1 if not known), and its last record with its age."""
        whole = [found[0] for ring in self._rings.values() if (found := ring.committed()) is not None]
        step = max(whole, default=-2) + 1
        own = [one for ring in self._rings.values() if len(one := ring.peek())]
        records = np.concatenate([np.zeros(0, RECORD_DTYPE), *own])
        records = records[(records["step"].astype(np.int64) >= step) & np.isin(records["kind"], _PARTS)]
        if not len(records):
            return step, ""
        ends = records["time_ns"] + records["value"]
        last = records[int(ends.argmax())]
        ago_s = max(time.monotonic_ns() - int(ends.max()), 0) / 1e9
        name = "input" if last["kind"] == Kind.INPUT else self._names.text(int(last["name"]))
        return step, f"{name}, {ago_s:.0f} s ago"

    def take(self, drained: "Drained") -> None:
        """Free the records that became rows; call this once those are written."""
        for name, count in drained.taken.items():
            self._rings[name].read(count)
        self._early = drained.early

    def close(self, *, remove: bool) -> None:
        """Release the rings, and remove the files of a dead process."""
        for ring in self._rings.values():
            ring.close()
            if remove:
                ring.path.unlink(missing_ok=True)
        if remove:
            (self._folder / f"rank-{self.trainer.rank}-{self.trainer.pid}.names").unlink(missing_ok=True)

    def _leaving(self, name: str, records: Rows, over: int | None, to_the_end: bool) -> int:
        """Return how many of a ring's first records belong to finished steps."""
        crowded = len(records) > _HELD * self._rings[name].capacity
        if to_the_end or crowded:
            return len(records)
        if over is None:
            return 0
        later = np.flatnonzero(records["step"] > over)
        return int(later[0]) if len(later) else len(records)

    def _early_of(self, held: dict[str, Rows], taken: dict[str, int], over: int | None) -> list[Rows]:
        """Return the leaving records of steps that are not over."""
        after = -1 if over is None else over
        leaving = [*self._early, *(held[name][:count] for name, count in taken.items())]
        kept = [one for records in leaving if len(one := records[records["step"].astype(np.int64) > after])]
        # A loop that never ends a step must not fill the memory.
        return kept if sum(map(len, kept)) <= _MOST_EARLY else []

    def _note_interval(self, records: Rows) -> None:
        events = records[records["kind"] == Kind.USER_EVENT]
        for number, value in zip(events["name"].tolist(), events["value"].tolist(), strict=True):
            if self._names.text(number) == INTERVAL_EVENT:
                self.sampled_every = value

    def _scope_names(self, records: Rows) -> dict[int, str]:
        numbers = np.unique(records["name"][records["kind"] == Kind.SCOPE]).tolist()
        return {number: self._names.text(number) for number in numbers}


@dataclass(frozen=True)
class Drained:
    """The result of one look at the rings."""

    rows: Rows | None
    taken: dict[str, int]
    """Ring → number of its first records that may leave."""
    early: list[Rows]
    scopes: list[ScopeSum] = field(default_factory=list)
    """The script's own scopes in the steps of the rows."""

    def new_rows(self, last: tuple[int, int] | None) -> Rows | None:
        """Return the rows that are not among those up to `last`: begin (µs) and number of a step; None if none is left.

        A row is old if it neither begins later nor has a higher number: a job that went back to a checkpoint repeats
        lower numbers at later times.
        """
        if self.rows is None or last is None:
            return self.rows
        begin, step = last
        # A tolerance of 1 ms: re-reading a record converts its begin with another reading of the clocks.
        new = self.rows[(self.rows["begin_us"] > begin + 1000) | (self.rows["step"] > step)]
        return new if len(new) else None

    def scopes_of(self, rows: Rows) -> list[ScopeSum]:
        """Return the scopes in the steps of `rows`."""
        steps = set(rows["step"].tolist())
        return [one for one in self.scopes if one.step in steps]


def trainers_in(names: Iterable[str]) -> dict[Trainer, list[str]]:
    """Return the processes whose rings are among a folder's file names."""
    found: dict[Trainer, list[str]] = {}
    for name in names:
        if match := _RING.fullmatch(name):
            found.setdefault(Trainer(int(match[1]), int(match[2])), []).append(name)
    return found


RECORD_DTYPE: Final = np.dtype(
    [
        ("time_ns", "<u8"),
        ("value", "<u8"),
        ("step", "<u4"),
        ("name", "<u4"),
        ("kind", "<u2"),
        ("depth", "<u2"),
        ("extra", "<u4"),
        ("detail", "<u8"),
        ("sequence", "<u8"),
    ]
)
Records = npt.NDArray[Any]
"""A structured array of RECORD_DTYPE, one element per record."""


class NotARingError(Exception):
    """Raised if the file is not a ring, has another version, or is damaged."""


class RingReader:
    """The only consumer of a ring. The read position is kept in the ring, so a restarted reader continues there."""

    def __init__(self, path: Path) -> None:
        """Raise OSError if the file cannot be opened, NotARingError if it is not a complete ring."""
        self.path: Final = path
        self.lost = 0
        """Records with a wrong sequence number, incomplete or overwritten, which are skipped."""
        self._map = _opened(path)
        self._words = memoryview(self._map).cast("Q")
        try:
            self.capacity: Final = self._checked_capacity()
        except NotARingError:
            self.close()
            raise
        self.pid: Final = int(self._words[WORD_PID])
        self.began: Final = int(self._words[WORD_START])
        """When that process began, in ticks since boot."""
        self._records = np.frombuffer(self._map, RECORD_DTYPE, self.capacity, HEADER_BYTES)

    @property
    def drops(self) -> int:
        """Return how many records found no room."""
        return int(self._words[WORD_DROPS])

    @property
    def waiting(self) -> int:
        """Return how many records can be read now."""
        return self._span()[1] - self._span()[0]

    @property
    def is_producing(self) -> bool:
        """Return whether the process that made the ring still runs."""
        return is_running(self.pid, self.began)

    def committed(self) -> tuple[int, int] | None:
        """Return the last complete step and a number of records that includes all of its; None before the first."""
        step = int(self._words[WORD_COMMITTED_STEP])
        return (step - 1, int(self._words[WORD_COMMITTED_HEAD])) if step else None

    def read(self, limit: int | None = None) -> Records:
        """Return the unread records, oldest first, at most `limit`.

        Their slots are free afterwards.
        """
        records, past = self._copied(limit)
        self._words[WORD_TAIL] = past
        return records

    def peek(self) -> Records:
        """Return the same records without consuming them."""
        return self._copied(None)[0]

    def close(self) -> None:
        """Release the memory; the file stays."""
        if hasattr(self, "_records"):
            del self._records
        self._words.release()
        self._map.close()

    def _copied(self, limit: int | None) -> tuple[Records, int]:
        tail, head = self._span()
        head = head if limit is None else min(head, tail + limit)
        places = np.arange(tail, head, dtype=np.uint64)
        records = self._records[(places & np.uint64(self.capacity - 1)).astype(np.intp)]
        own = records["sequence"] == places + np.uint64(1)
        if not own.all():
            self.lost += int((~own).sum())
            records = records[own]
        return records, head

    def _span(self) -> tuple[int, int]:
        tail, head = int(self._words[WORD_TAIL]), int(self._words[WORD_HEAD])
        # Impossible words (a damaged file) must not make the reader allocate all memory.
        if not tail <= head <= tail + self.capacity:
            return head, head
        return tail, head

    def _checked_capacity(self) -> int:
        words = self._words
        if words[WORD_MAGIC] != MAGIC or words[WORD_VERSION] != VERSION or words[WORD_RECORD_BYTES] != RECORD_BYTES:
            raise NotARingError(f"{self.path} is not a ring of version {VERSION}")
        capacity = int(words[WORD_CAPACITY])
        if capacity < 1 or capacity & (capacity - 1) or ring_bytes(capacity) != len(self._map):
            raise NotARingError(f"{self.path}: {capacity} records do not fill {len(self._map)} bytes")
        return capacity


def _opened(path: Path) -> mmap.mmap:
    handle = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if os.fstat(handle).st_size < HEADER_BYTES + RECORD_BYTES:
            raise NotARingError(f"{path} is too short for a ring")
        return mmap.mmap(handle, 0)
    finally:
        os.close(handle)
