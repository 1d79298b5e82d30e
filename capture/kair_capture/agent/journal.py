"""The rows that the coordinator does not have yet, in a file that outlives the agent.

A row is in this file before its records leave the ring, so that an agent that is killed in between finds it again. It
then sees the same records once more: `last_step` says which of them became rows already. The file begins with the
number of its rows that are acknowledged: an agent that starts again does not send those once more.
"""

import os
from collections import deque
from pathlib import Path
from typing import Final

import numpy as np

from kair_capture.agent.step_rows import ROW, Rows

_HEAD: Final = ROW.itemsize
MOST_ROWS: Final = 200_000
"""10 MB. Beyond that the oldest go: the coordinator has been away for long."""


class Journal:
    """Rows in order, waiting to be sent and acknowledged."""

    def __init__(self, path: Path) -> None:
        """Takes up what an agent before left. Raises OSError."""
        self.path: Final = path
        self.discarded = 0
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        content = path.read_bytes()
        rows = np.frombuffer(content[_HEAD : len(content) // ROW.itemsize * ROW.itemsize], ROW)
        os.ftruncate(self._handle, _HEAD + rows.nbytes)
        acknowledged = int.from_bytes(content[:8], "little")
        # Killed while the file was emptied: what came after is not acknowledged.
        self._acknowledged = acknowledged if acknowledged <= len(rows) else 0
        self._mark()
        waiting = range(self._acknowledged, len(rows))
        self._waiting: deque[bytes] = deque(rows[at : at + 1].tobytes() for at in waiting)
        self._written = len(rows)
        self.last_step: Final[dict[int, tuple[int, int]]] = {}
        """rank → begin (µs) and number of its last step that is written down here."""
        self._note(rows)

    def __len__(self) -> int:
        return len(self._waiting)

    def append(self, rows: Rows) -> None:
        """Writes rows down. Raises OSError when there is no room; then none of them is."""
        content = rows.tobytes()
        size = os.fstat(self._handle).st_size
        try:
            if os.pwrite(self._handle, content, size) != len(content):
                raise OSError(28, "No space left on device")
        except OSError:
            os.ftruncate(self._handle, size)
            raise
        self._waiting.extend(rows[at : at + 1].tobytes() for at in range(len(rows)))
        self._written += len(rows)
        self._note(rows)
        if len(self._waiting) > MOST_ROWS:
            self._discard(len(self._waiting) - MOST_ROWS * 9 // 10)

    def first(self, count: int, behind: int = 0) -> list[bytes]:
        """Up to `count` waiting rows, without taking them, from place `behind` on."""
        return [self._waiting[at] for at in range(behind, min(behind + count, len(self._waiting)))]

    def acknowledge(self, count: int) -> None:
        """The first `count` of them are kept elsewhere."""
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
        """Closes the file, which stays."""
        os.close(self._handle)

    def _discard(self, count: int) -> None:
        self.discarded += count
        for _ in range(count):
            self._waiting.popleft()
        self._rewrite()

    def _rewrite(self) -> None:
        """A new file in the place of the old one: whoever is killed here leaves one of both."""
        beside = self.path.with_name(f".{self.path.name}")
        beside.unlink(missing_ok=True)
        handle = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(os.dup(handle), "wb") as file:
            file.write(bytes(_HEAD))
            file.writelines(self._waiting)
        beside.replace(self.path)
        os.close(self._handle)
        self._handle, self._written, self._acknowledged = handle, len(self._waiting), 0

    def _mark(self) -> None:
        os.pwrite(self._handle, self._acknowledged.to_bytes(8, "little"), 0)

    def _note(self, rows: Rows) -> None:
        for rank, step, begin in zip(
            rows["rank"].tolist(), rows["step"].tolist(), rows["begin_us"].tolist(), strict=True
        ):
            self.last_step[rank] = (begin, step)
