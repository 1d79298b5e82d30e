"""The rows of what counts, as `kair_mitigate.audit` reads them: a file that is as long as the store says.

A row is written before the transaction that it belongs to is committed, and the store keeps the file's length. What was
written beyond that, by a transaction that a kill or an error ended, is cut off; a restore cuts back to its checkpoint.

Standard library only: a parameter server may have the store in its own process.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from kair_mitigate.restarts import own

Row = dict[str, int | str]
"""{"gen", "worker", "shard", "epoch", "begin", "end"}, and "file" where the shard is one."""


def row_of(worker: str, generation: int, shard: tuple[int, int, str | None], begin: int, end: int) -> Row:
    """Return what a worker did of a shard, (number, epoch, file), as the audit reads it."""
    number, epoch, file = shard
    row: Row = {"gen": generation, "worker": worker, "shard": number, "epoch": epoch, "begin": begin, "end": end}
    return row if file is None else {**row, "file": file}


class CountedRows:
    """The file of one store, which alone writes there."""

    def __init__(self, path: Path) -> None:
        """Raise OSError."""
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        self._handle = own(str(path), os.O_RDWR | os.O_CREAT)

    def write(self, length: int, rows: Sequence[Row]) -> int:
        """Put rows behind the first `length` bytes, in place of what is there; the new length. Raises OSError."""
        self.cut(length)
        text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows).encode("ascii")
        while text:
            written = os.pwrite(self._handle, text, length)
            length, text = length + written, text[written:]
        return length

    def cut(self, length: int) -> None:
        """Leaves the first `length` bytes. Raises OSError."""
        os.ftruncate(self._handle, length)

    def to_disk(self) -> None:
        """Wait until all is on the disk. Raises OSError."""
        os.fsync(self._handle)

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)
