"""Every step of every rank, kept in the job's folder: a journal that becomes Parquet part by part.

Rows are in the journal before they are acknowledged. A journal's part has its number, so that who is killed between
both keeps either, and never counts rows twice.
"""

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np

from kair_capture.agent.step_rows import COLUMNS, ROW, Rows
from kair_capture.coordinator.step_table import MOST_RANKS, ONE_STEP_US
from kair_engine.trace.permissions import append_kept, make_folder, read_kept

ROWS_A_PART: Final = 1 << 17
MOST_BYTES: Final = 4 << 30
"""Of all parts; the oldest go."""
_JOURNAL: Final = re.compile(r"rows-(\d{8})\.journal")


class StepLog:
    """The folder `steps` of a job; only the coordinator writes it."""

    def __init__(self, folder: Path) -> None:
        """Takes up what is there. Raises OSError."""
        self.folder: Final = folder
        make_folder(folder)
        self._number = 0
        self._rows = 0
        self._handle = -1
        self._to_pack: list[Path] = []
        self._take_up()

    def append(self, rows: Rows) -> None:
        """Writes rows down. Raises OSError when there is no room; then none of them is."""
        if not len(rows):
            return
        content = rows.tobytes()
        size = os.fstat(self._handle).st_size
        if os.fstat(self._handle).st_nlink == 0:
            raise FileNotFoundError(2, "No such file or directory", str(self.folder))
        try:
            if os.write(self._handle, content) != len(content):
                raise OSError(28, "No space left on device")
        except OSError:
            os.ftruncate(self._handle, size)
            raise
        self._rows += len(rows)
        if self._rows >= ROWS_A_PART:
            full = self._path(self._number)
            # These rows are written: where no next journal can be opened now, this one goes on.
            with suppress(OSError):
                self._open(self._number + 1)
                self._to_pack.append(full)

    def recover(self) -> Rows:
        """The rows of the last journals, for who starts again."""
        journals = [path for path in sorted(self.folder.iterdir()) if _number(path)]
        return np.concatenate([np.zeros(0, ROW), *map(_read, journals[-2:])])

    def reopen(self) -> None:
        """After the folder was gone for a while. Raises OSError while it still is."""
        make_folder(self.folder)
        self._take_up()

    def pack(self) -> None:
        """Makes parts of full journals; takes long. Raises OSError; what is not packed is the next time."""
        while self._to_pack:
            journal = self._to_pack[0]
            write_part(self.folder / f"part-{_number(journal)}.parquet", _read(journal))
            journal.unlink()
            self._to_pack.pop(0)
        self._forget_oldest()

    def close(self) -> None:
        """Closes the journal, which stays."""
        if self._handle >= 0:
            os.close(self._handle)
        self._handle = -1

    def _take_up(self) -> None:
        self.close()
        numbers = []
        for path in sorted(self.folder.iterdir()):
            if (number := _number(path)) is not None:
                if (self.folder / f"part-{number}.parquet").exists():
                    path.unlink()
                else:
                    numbers.append(int(number))
        self._to_pack = [self._path(number) for number in numbers[:-1]]
        parts = [int(path.stem[5:]) for path in self.folder.glob("part-????????.parquet") if path.stem[5:].isdecimal()]
        self._open(numbers[-1] if numbers else max(parts, default=0) + 1)

    def _open(self, number: int) -> None:
        handle = append_kept(self._path(number))
        self.close()
        size = os.fstat(handle).st_size
        self._handle, self._number, self._rows = handle, number, size // ROW.itemsize
        # Killed in the middle of a row: it was not acknowledged.
        os.ftruncate(handle, self._rows * ROW.itemsize)

    def _path(self, number: int) -> Path:
        return self.folder / f"rows-{number:08}.journal"

    def _forget_oldest(self) -> None:
        parts = sorted(self.folder.glob("part-????????.parquet"))
        sizes = [path.stat().st_size for path in parts]
        over = sum(sizes) - MOST_BYTES
        for path, size in zip(parts, sizes, strict=True):
            if over <= 0:
                return
            with suppress(OSError):
                path.unlink()
            over -= size


def write_part(path: Path, rows: Rows) -> None:
    """Rows as Parquet, by step and rank; whole or not at all. Raises OSError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = _once_each(rows)
    table = pa.table({name: np.ascontiguousarray(rows[name]) for name in COLUMNS})
    temporary = path.with_name(f".{path.name}")
    try:
        pq.write_table(table, temporary, compression="zstd", use_dictionary=["rank", "flags"])
        temporary.chmod(0o600)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_all(folder: Path, most: int | None = None) -> Rows:
    """The rows of a job's folder `steps`, parts and journals, by step and rank. Raises OSError, pa.ArrowException.

    Rows of ranks that cannot be are left out.
    `most`: older parts are left out from so many rows on.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    parts = {path.stem[5:]: path for path in folder.glob("part-????????.parquet")}
    journals = ((path, _number(path)) for path in folder.iterdir())
    found = [
        np.zeros(0, ROW),
        *(_read(path) for path, number in journals if number is not None and number not in parts),
    ]
    for _, path in sorted(parts.items(), reverse=True):
        if most is not None and sum(map(len, found)) >= most:
            break
        table = pq.read_table(pa.BufferReader(read_kept(path)))
        known = [(name, pa.from_numpy_dtype(ROW[name])) for name in COLUMNS]
        if [(field.name, field.type) for field in table.schema] != known or any(
            one.null_count for one in table.columns
        ):
            raise pa.ArrowInvalid(f"{path.name} is none of Kair's")
        rows = np.zeros(len(table), ROW)
        for name in COLUMNS:
            rows[name] = table[name].to_numpy()
        found.append(rows)
    rows = np.concatenate(found)
    return _once_each(rows[rows["rank"] < MOST_RANKS])


def _once_each(rows: Rows) -> Rows:
    """By step and rank. A row that came again after more steps than a coordinator remembers was written twice."""
    rows = rows[np.lexsort((rows["begin_us"], rows["rank"], rows["step"]))]
    again = (np.diff(rows["step"]) == 0) & (np.diff(rows["rank"]) == 0) & (np.diff(rows["begin_us"]) < ONE_STEP_US)
    distinct: Rows = rows[np.concatenate((np.ones(min(len(rows), 1), np.bool_), ~again))]
    return distinct


def _number(path: Path) -> str | None:
    """The eight digits of a journal's name; None of any other file."""
    match = _JOURNAL.fullmatch(path.name)
    return None if match is None else match[1]


def _read(path: Path) -> Rows:
    content = read_kept(path)
    return np.frombuffer(content[: len(content) // ROW.itemsize * ROW.itemsize], ROW)
