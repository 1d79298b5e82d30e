"""Writes the rows that count, as `kair_mitigate.audit` reads them, into a file whose length the store knows.

A row is written before its transaction is committed, and the store keeps the file's length. Anything beyond that, from
a transaction that a kill or an error ended, is cut off; a restore cuts back to its checkpoint.

Standard library only: a parameter server may have the store in its own process.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from kair_mitigate.restarts import own

Row = dict[str, int | str]
"""{"gen", "worker", "shard", "epoch", "begin", "end"}, and "file" if the shard is one."""


def row_of(worker: str, generation: int, shard: tuple[int, int, str | None], begin: int, end: int) -> Row:
    """Return a worker's row about a shard, (number, epoch, file), in the audit's format."""
    number, epoch, file = shard
    row: Row = {"gen": generation, "worker": worker, "shard": number, "epoch": epoch, "begin": begin, "end": end}
    return row if file is None else {**row, "file": file}


class CountedRows:
    """The file of one store, its only writer."""

    def __init__(self, path: Path) -> None:
        """Open or create the file. Raises OSError."""
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        self._handle = own(str(path), os.O_RDWR | os.O_CREAT)

    def write(self, length: int, rows: Sequence[Row]) -> int:
        """Write rows after the first `length` bytes, replacing the rest; return the new length. Raises OSError."""
        self.cut(length)
        text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows).encode("ascii")
        while text:
            written = os.pwrite(self._handle, text, length)
            length, text = length + written, text[written:]
        return length

    def cut(self, length: int) -> None:
        """Cut the file to its first `length` bytes. Raises OSError."""
        os.ftruncate(self._handle, length)

    def to_disk(self) -> None:
        """Wait until all is on disk. Raises OSError."""
        os.fsync(self._handle)

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)
