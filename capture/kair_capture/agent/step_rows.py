"""Makes rows of step times and sums of scopes from records, and stores them until the coordinator has them.

There is a row for every step of every rank, summed from the records of its threads' rings. Rows wait in a file that
outlives the agent. A row is in this file before its records leave the ring, so that an agent killed in between finds it
again; it then reads the same records once more, and `last_step` shows which of them are rows already. The file begins
with the number of its acknowledged rows, which a restarted agent does not send again.

Sums of the script's own scopes of every step are delivered now and then as a small Parquet file. They are written into
the run folder, one per line, before their records leave the ring; a killed agent loses at most those of a moment. If it
is killed between handing a file on and removing its lines, these count twice.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from kair_capture.agent.spool import Spool
from kair_capture.clocks import unix_minus_monotonic
from kair_capture.files import append_whole, write_atomically
from kair_capture.job.processor_time import WORD_BITS
from kair_capture.ring import EVERY_SHIFT, UNFIT, Kind, StepFlag
from kair_capture.wire import ROW_BYTES

_EVERY_MASK: Final = 0xF
ROW: Final = np.dtype(
    [
        ("rank", "<u4"),
        ("step", "<u4"),
        ("begin_us", "<u8"),  # Unix, by the host's clock
        ("flags", "<u4"),  # bits of StepFlag
        ("step_us", "<u4"),
        ("self_us", "<u4"),  # the step without waiting in collectives
        ("forward_us", "<u4"),
        ("backward_us", "<u4"),
        ("optimizer_us", "<u4"),
        ("input_us", "<u4"),
        ("waited_us", "<u4"),
        ("gc_us", "<u4"),
        ("cpu_us", "<u4"),  # CPU time of the training thread; 0 if not known
        ("delay_us", "<u4"),  # time it was ready without a core
        ("samples", "<u4"),  # of the rank; 0 if not known
        ("process_s", "<u4"),  # when the rank's process began, Unix; 0 if not known
        ("attempt", "<u2"),  # of the job, from 1; set by the coordinator, 0 before
        ("inserted_us", "<u4"),  # delay of the rank by `kair confirm`, as measured
        ("device_us", "<u4"),  # mean own time of the device in steps it ended since its last report; 0: none
    ]
)
"""Times of one row; all but `begin_us` saturate at 71 minutes."""
assert ROW.itemsize == ROW_BYTES
COLUMNS: Final = ROW.names or ()
Rows = npt.NDArray[Any]
"""A structured array of ROW, or of a ring's records."""

PHASES: Final = ("forward", "backward", "optimizer", "input")
_PARTS_OF_A_ROW: Final = (*(f"{phase}_us" for phase in PHASES), "cpu_us", "delay_us")
MOST_SCOPES: Final = 64
"""Scopes of the script that are kept per step and rank."""
_MOST: Final = 0xFFFF_FFFF


def rows_in(content: bytes) -> Rows:
    """Return the stored rows; an incomplete one is left out."""
    return np.frombuffer(content[: len(content) // ROW.itemsize * ROW.itemsize], ROW)


_Int32 = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class ScopeSum(NamedTuple):
    """One scope in one step of one rank."""

    rank: _Int32
    step: _Int32
    begin_us: _Int64
    """Begin of the step, Unix, by the host's clock."""
    scope: str
    time_us: _Int64
    """Part of the step that it covers; nested and concurrent calls count once."""
    calls: _Int32


def rows_of(rank: int, records: Rows, phase_of: dict[int, str], unix_minus_monotonic_ns: int | None = None) -> Rows:
    """Return a row for each STEP record in `records`, which are of all rings of one rank.

    `phase_of` maps a name's number to its phase. Records of steps without a STEP record are left out. Overlapping
    waits, and nested scopes of one name, count once.
    """
    steps = records[records["kind"] == Kind.STEP]
    rows = np.zeros(len(steps), ROW)
    shift = clocks_apart(records) if unix_minus_monotonic_ns is None else unix_minus_monotonic_ns
    for row, step in zip(rows, steps, strict=True):
        begin, length = int(step["time_ns"]), int(step["value"])
        own = records[records["step"] == step["step"]]
        waited = _covered(own[own["kind"] == Kind.COLLECTIVE], begin, begin + length)
        row["rank"], row["step"], row["flags"] = rank, step["step"], step["extra"]
        row["samples"] = step["name"]
        row["begin_us"] = max(begin + shift, 0) // 1000
        if row["flags"] & StepFlag.THINNED:
            waited = min(waited + int(step["detail"]), length)
        else:
            row["cpu_us"], row["delay_us"] = int(step["detail"]) & _MOST, int(step["detail"]) >> WORD_BITS
        row["step_us"], row["waited_us"] = _us(length), _us(waited)
        row["self_us"] = _us(length - waited)
        row["inserted_us"] = _us(_covered(own[own["kind"] == Kind.DELAY], begin, begin + length))
        row["device_us"] = _us(int(own[own["kind"] == Kind.DEVICE]["value"].sum()))
        row["gc_us"] = _us(_covered(own[own["kind"] == Kind.GC], begin, begin + length))
        scopes = own[own["kind"] == Kind.SCOPE]
        for phase in PHASES:
            numbers = [number for number, text in phase_of.items() if text == phase]
            of_phase = scopes[np.isin(scopes["name"], numbers)]
            if phase == "input":
                of_phase = np.concatenate([of_phase, own[own["kind"] == Kind.INPUT]])
            row[f"{phase}_us"] = _us(_covered(of_phase, begin, begin + length))
    return rows


def parts_every(flags: npt.NDArray[np.uint32]) -> int | None:
    """Return of how many steps one records its parts, by steps' flags: the most of any; None without a step."""
    return 1 << int((flags >> EVERY_SHIFT & _EVERY_MASK).max()) if len(flags) else None


def fill_thinned(rows: Rows, before: Rows) -> Rows:
    """Fill parts that thinned steps did not record from the last step that did; return that step's row.

    `before` is the one of earlier rows, none or one. For a shorter step the parts shrink in proportion.
    """
    thinned = rows["flags"] & StepFlag.THINNED > 0
    is_source = ~thinned & (rows["flags"] & UNFIT == 0)
    sources = np.concatenate([before, rows[is_source]])
    if thinned.any() and len(sources):
        # Steps before the first recorded one use its parts.
        of = sources[np.maximum(len(before) + np.cumsum(is_source)[thinned] - 1, 0)]
        share = np.minimum(rows["step_us"][thinned] / np.maximum(of["step_us"], 1), 1.0)
        for name in _PARTS_OF_A_ROW:
            rows[name][thinned] = np.maximum(rows[name][thinned], (of[name] * share).astype(np.uint32))
    return np.asarray(sources[-1:])


def scope_sums(rows: Rows, records: Rows, name_of: dict[int, str]) -> list[ScopeSum]:
    """Return, for each of `rows`, what the scopes in `name_of` (number → name) cover: the MOST_SCOPES longest."""
    wanted = records[(records["kind"] == Kind.SCOPE) & np.isin(records["name"], list(name_of))]
    steps = records[records["kind"] == Kind.STEP]
    found: list[ScopeSum] = []
    for row, step in zip(rows, steps, strict=True):
        begin, end = int(step["time_ns"]), int(step["time_ns"]) + int(step["value"])
        # After a restart two steps may have this number.
        is_within = (wanted["time_ns"] <= end) & (wanted["time_ns"] + wanted["value"] >= begin)
        own = wanted[(wanted["step"] == step["step"]) & is_within]
        place = (int(row["rank"]), int(row["step"]), int(row["begin_us"]))
        of_step = []
        for number in np.unique(own["name"]).tolist():
            calls = own[own["name"] == number]
            of_step.append(ScopeSum(*place, name_of[number], _us(_covered(calls, begin, end)), len(calls)))
        found += sorted(of_step, key=lambda one: -one.time_us)[:MOST_SCOPES]
    return found


def _covered(records: Rows, begin: int, end: int) -> int:
    """Return how much of a step the intervals cover together, in ns; those of another step of this number, nothing."""
    covered, until = 0, begin
    for start, length in sorted(zip(records["time_ns"].tolist(), records["value"].tolist(), strict=True)):
        stop = min(start + length, end)
        covered += max(stop - max(start, until), 0)
        until = max(until, stop)
    return covered


def clocks_apart(records: Rows) -> int:
    """Return Unix minus monotonic, in ns: by the latest pair in the records, else measured here (same host)."""
    pairs = records[records["kind"] == Kind.CLOCK]
    if len(pairs):
        return int(pairs["value"][-1]) - int(pairs["time_ns"][-1])
    return unix_minus_monotonic()


def _us(nanoseconds: int) -> int:
    return min(max(nanoseconds, 0) // 1000, _MOST)


_HEAD: Final = ROW.itemsize
MOST_ROWS: Final = 200_000
"""10 MB; beyond that the oldest are discarded, because the coordinator has long been away."""


class Journal:
    """Rows in order that wait to be sent and acknowledged."""

    def __init__(self, path: Path) -> None:
        """Continue the file of an earlier agent. Raises OSError."""
        self.path: Final = path
        self.discarded = 0
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        content = path.read_bytes()
        rows = rows_in(content[_HEAD:])
        acknowledged = int.from_bytes(content[:8], "little")
        # A kill while the file was emptied: later rows are not acknowledged.
        self._acknowledged = acknowledged if acknowledged <= len(rows) else 0
        waiting = range(self._acknowledged, len(rows))
        self._waiting: deque[bytes] = deque(rows[at : at + 1].tobytes() for at in waiting)
        self._written = len(rows)
        os.ftruncate(self._handle, _HEAD + rows.nbytes)
        self._mark()
        self.last_step: Final[dict[int, tuple[int, int]]] = {}
        """rank → begin (µs) and number of its last stored step."""
        self._note(rows)

    def __len__(self) -> int:
        return len(self._waiting)

    def append(self, rows: Rows) -> None:
        """Store rows; without room none is stored. Raises OSError."""
        append_whole(self._handle, rows.tobytes())
        self._waiting.extend(rows[at : at + 1].tobytes() for at in range(len(rows)))
        self._written += len(rows)
        self._note(rows)
        if len(self._waiting) > MOST_ROWS:
            self._discard(len(self._waiting) - MOST_ROWS * 9 // 10)

    def first(self, count: int, behind: int = 0) -> list[bytes]:
        """Return up to `count` waiting rows after the first `behind`, without removing them."""
        return [self._waiting[at] for at in range(behind, min(behind + count, len(self._waiting)))]

    def acknowledge(self, count: int) -> None:
        """Drop the first `count` rows, which are stored elsewhere."""
        for _ in range(min(count, len(self._waiting))):
            self._waiting.popleft()
        self._acknowledged = self._written - len(self._waiting)
        if not self._waiting and self._written:
            os.ftruncate(self._handle, _HEAD)
            self._written = self._acknowledged = 0
        if self._written > 4 * len(self._waiting) + 10_000:
            self._rewrite()
        else:
            self._mark()

    def close(self) -> None:
        """Close the file, which stays."""
        os.close(self._handle)

    def _discard(self, count: int) -> None:
        self.discarded += count
        for _ in range(count):
            self._waiting.popleft()
        self._rewrite()

    def _rewrite(self) -> None:
        """Replace the file by a new one: a kill leaves either of both."""
        write_atomically(self.path, _head(0) + b"".join(self._waiting))
        os.close(self._handle)
        self._handle = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        self._written, self._acknowledged = len(self._waiting), 0

    def _mark(self) -> None:
        os.pwrite(self._handle, _head(self._acknowledged), 0)

    def _note(self, rows: Rows) -> None:
        for rank, step, begin in zip(
            rows["rank"].tolist(), rows["step"].tolist(), rows["begin_us"].tolist(), strict=True
        ):
            self.last_step[rank] = (begin, step)


def _head(acknowledged: int) -> bytes:
    return acknowledged.to_bytes(8, "little") + _HEAD.to_bytes(_HEAD - 8, "little")


DELIVERED_EVERY_S: Final = 300.0
_MOST_BYTES: Final = 4 << 20
"""Bytes that are delivered without waiting longer."""
_JOURNAL: Final = "scopes.journal"


SCHEMA: Final = pa.schema(
    list(zip(ScopeSum._fields, (pa.int32(), pa.int32(), pa.int64(), pa.string(), pa.int64(), pa.int32()), strict=True))
)


class ScopeSums:
    """Sums of scopes; one thread adds, another one delivers."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / _JOURNAL
        self._lock = threading.Lock()
        self._since = time.monotonic()
        self.discarded = 0
        """Sums that found no room."""

    def add(self, sums: Sequence[ScopeSum]) -> None:
        """Store sums; without room they are counted, and training is not delayed."""
        if not sums:
            return
        content = b"".join(msgspec.json.encode(one) + b"\n" for one in sums)
        try:
            with self._lock, open(self._path, "ab", opener=_private) as journal:
                append_whole(journal.fileno(), content)
        except OSError:
            self.discarded += len(sums)

    @property
    def waiting(self) -> bool:
        """Return whether some are not delivered."""
        return any(True for _ in self._path.parent.glob(f"{_JOURNAL}*"))

    def deliver(self, spool: Spool, work: Path, key: bytes, *, at_once: bool = False) -> None:
        """Put the stored sums into the spool, if it is time. Raises OSError if the disk is full."""
        if at_once or self._is_due():
            self._since = time.monotonic()
            with self._lock, suppress(FileNotFoundError):
                self._path.rename(self._path.with_name(f"{_JOURNAL}.{time.time_ns()}"))
        for path in sorted(self._path.parent.glob(f"{_JOURNAL}.*")):
            sums = _read(path)
            if sums:
                out = work / "scopes.parquet"
                _write(out, sums)
                spool.put(out, min(one.step for one in sums), max(one.step for one in sums), key, kind="scopes")
            path.unlink()

    def _is_due(self) -> bool:
        with suppress(FileNotFoundError):
            return time.monotonic() - self._since > DELIVERED_EVERY_S or self._path.stat().st_size > _MOST_BYTES
        return False


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _read(path: Path) -> list[ScopeSum]:
    """Return the complete lines: one may be damaged, or cut by a kill of the agent."""
    found = []
    for line in path.read_bytes().splitlines():
        with suppress(msgspec.MsgspecError, ValueError, RecursionError):
            found.append(msgspec.json.decode(line, type=ScopeSum))
    return found


def _write(path: Path, sums: Sequence[ScopeSum]) -> None:
    ordered = sorted(sums, key=lambda one: (one.step, one.rank, one.scope))
    columns = dict(zip(ScopeSum._fields, map(list, zip(*ordered, strict=True)), strict=True))
    write_table(path, pa.table(columns, schema=SCHEMA))


def write_table(path: Path, table: pa.Table, **options: Any) -> None:  # noqa: ANN401  (pyarrow's)
    """Write a Parquet file readable by its owner only, atomically. Raises OSError."""
    temporary = path.with_name(f".{path.name}")
    try:
        pq.write_table(table, temporary, compression="zstd", **options)
        temporary.chmod(0o600)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
