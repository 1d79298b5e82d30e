"""Decoded events as arrays of fixed-size records, small enough to keep or to spill to disk."""

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Final

import numpy as np
import numpy.typing as npt

RECORD: Final = np.dtype(
    [
        ("start", np.int64),
        ("duration", np.int64),
        ("correlation", np.int64),
        ("external_id", np.int64),
        ("size", np.int64),
        ("track", np.int32),
        ("name", np.int32),
        ("detail", np.int64),
    ]
)
"""One event; the last three index the tables of an EventTables, `detail` -1 for none. `size` is in bytes, but of a
host's operator indexes its inputs, -1 for unknown ones.

Machine code writes it as whole words: whoever changes it changes compiled/packing.py.
"""

Records = npt.NDArray[np.void]

_AS_BYTES: Final = np.dtype((np.void, RECORD.itemsize))
_IN_MEMORY: Final = 64 << 20


def joined(batches: Iterable[Records]) -> Records:
    """One after another; a single one as it is. Field by field, as numpy would, takes fifteen times as long."""
    filled = [batch for batch in batches if len(batch)]
    if len(filled) < 2:
        return filled[0] if filled else np.empty(0, RECORD)
    return np.concatenate([batch.view(_AS_BYTES) for batch in filled]).view(RECORD)


def chosen(batch: Records, rows: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> Records:
    """Some of a batch, by a mask or by their places."""
    return batch.view(_AS_BYTES)[rows].view(RECORD)


class RowSpill:
    """Batches of records, written to an unnamed temporary file in `folder` beyond the first few megabytes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._budget = _IN_MEMORY
        self._held: list[Records] = []
        self._file: IO[bytes] | None = None
        self._spilled: list[tuple[int, int]] = []
        self.count = 0

    def append(self, batch: Records) -> int:
        """Keeps a batch and returns its number. Raises OSError when the disk is full."""
        self.count += len(batch)
        if self._file is None and batch.nbytes <= self._budget:
            self._budget -= batch.nbytes
            self._held.append(batch)
            return len(self._held) - 1
        if self._file is None:
            self._budget = 0
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115  (lives as long as self)
        self._spilled.append((self._file.tell(), len(batch)))
        self._file.write(batch.view(np.uint8).data)
        return len(self._held) + len(self._spilled) - 1

    def size(self, number: int) -> int:
        """How many records the batch has."""
        return len(self._held[number]) if number < len(self._held) else self._spilled[number - len(self._held)][1]

    def read(self, number: int) -> Records:
        """The batch that `append` gave this number."""
        if number < len(self._held):
            return self._held[number]
        assert self._file is not None
        offset, count = self._spilled[number - len(self._held)]
        self._file.seek(offset)
        batch = np.fromfile(self._file, RECORD, count)
        self._file.seek(0, 2)
        return batch

    def __iter__(self) -> Iterator[Records]:
        for number in range(len(self._held) + len(self._spilled)):
            yield self.read(number)

    def drained(self) -> Iterator[Records]:
        """Every batch, for the last time: of one that was handed out nothing is kept in memory."""
        for number in range(len(self._held) + len(self._spilled)):
            batch = self.read(number)
            if number < len(self._held):
                self._held[number] = batch[:0].copy()
            yield batch

    def close(self) -> None:
        """Drops everything; the temporary file vanishes."""
        self._held.clear()
        if self._file is not None:
            self._file.close()
