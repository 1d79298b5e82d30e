"""Sums the script's own scopes of every step, and delivers them now and then as a small Parquet file.

They are written down in the run folder, a line each, before their records leave the ring; an agent that is killed loses
those of a moment at most, and counts none twice.
"""

import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from kair_capture.agent.spool import Spool
from kair_capture.agent.step_rows import ScopeSum

DELIVERED_EVERY_S: Final = 300.0
_MOST_BYTES: Final = 4 << 20
"""Written down before they are delivered at once."""
_JOURNAL: Final = "scopes.journal"


SCHEMA: Final = pa.schema(
    list(zip(ScopeSum._fields, (pa.int32(), pa.int32(), pa.int64(), pa.string(), pa.int64(), pa.int32()), strict=True))
)


class ScopeSums:
    """One thread adds, another one delivers."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / _JOURNAL
        self._lock = threading.Lock()
        self._since = time.monotonic()
        self.discarded = 0
        """Sums that found no room."""

    def add(self, sums: Sequence[ScopeSum]) -> None:
        """Writes them down; without room they are counted, and training is not held up."""
        if not sums:
            return
        content = b"".join(msgspec.json.encode(one) + b"\n" for one in sums)
        try:
            with self._lock:
                _append(self._path, content)
        except OSError:
            self.discarded += len(sums)

    @property
    def waiting(self) -> bool:
        """Whether some are not delivered."""
        return any(True for _ in self._path.parent.glob(f"{_JOURNAL}*"))

    def deliver(self, spool: Spool, work: Path, key: bytes, *, at_once: bool = False) -> None:
        """Puts what was written down into the spool, if it is time. Raises OSError when the disk is full."""
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


def _append(path: Path, content: bytes) -> None:
    """All of it or nothing. Raises OSError."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        size = os.fstat(handle).st_size
        if os.write(handle, content) != len(content):
            os.ftruncate(handle, size)
            raise OSError(28, "No space left on device", str(path))
    finally:
        os.close(handle)


def _read(path: Path) -> list[ScopeSum]:
    """What is whole: a line may be cut where an agent was killed, or damaged."""
    found = []
    for line in path.read_bytes().splitlines():
        with suppress(msgspec.MsgspecError, ValueError, RecursionError):
            one = msgspec.json.decode(line, type=ScopeSum)
            if max(one.rank, one.step, one.calls) < 1 << 31 and min(one.rank, one.step, one.calls) >= 0:
                found.append(one)
    return found


def _write(path: Path, sums: Sequence[ScopeSum]) -> None:
    ordered = sorted(sums, key=lambda one: (one.step, one.rank, one.scope))
    columns = dict(zip(ScopeSum._fields, map(list, zip(*ordered, strict=True)), strict=True))
    pq.write_table(pa.table(columns, schema=SCHEMA), path, compression="zstd")
    path.chmod(0o600)
