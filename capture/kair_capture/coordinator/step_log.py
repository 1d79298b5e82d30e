"""Keeps steps and scopes of every rank, sampled or not, in the job's folder as long as the job exists.

Rows of steps are in a journal before they are acknowledged; journals become Parquet parts. A part has its journal's
number, so that a kill in between leaves one of both, and rows never count twice. A delivered file of sums of scopes is
moved, so that a killed coordinator counts none twice; small ones are joined, and a joined one lists its sources: any
that still exist are removed.
"""

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from kair_capture.agent.spool import read_name
from kair_capture.agent.step_rows import COLUMNS, PHASES, ROW, SCHEMA, Rows, rows_in, write_table
from kair_capture.coordinator.step_columns import RowTable, StepColumns
from kair_capture.coordinator.step_table import MOST_RANKS, ONE_STEP_US
from kair_capture.files import append_whole, remove_beyond
from kair_capture.places import JobPlaces
from kair_capture.ring import UNFIT, StepFlag
from kair_engine.arrays import Floats, Ints
from kair_engine.errors import InputError
from kair_engine.results.views import Attempt
from kair_engine.timeline.batch_sizes import lasting_changes
from kair_engine.trace.files import append_kept, make_folder, read_kept
from kair_engine.views.scope_changes import ScopeSeries

ROWS_A_PART: Final = 1 << 17
_FEWEST_COLUMNS: Final = COLUMNS.index("samples")
"""Fewest columns of a part: the first versions had those before."""
MOST_BYTES: Final = 4 << 30
"""Most bytes of all parts; the oldest are removed."""
_JOURNAL: Final = re.compile(r"steps-(\d{8})\.journal")


class StepLog:
    """The folder `steps` of a job; only the coordinator writes it."""

    def __init__(self, folder: Path) -> None:
        """Continue the existing files. Raises OSError."""
        self.folder: Final = folder
        make_folder(folder)
        self._number = 0
        self._rows = 0
        self._handle = -1
        self._to_pack: list[Path] = []
        self._take_up()

    @property
    def is_there(self) -> bool:
        """Return whether the journal is in its folder; writing to a moved one would succeed unnoticed."""
        with suppress(OSError):
            return os.path.samestat(self._path(self._number).stat(), os.fstat(self._handle))
        return False

    def append(self, rows: Rows) -> None:
        """Store rows; without room none is stored. Raises OSError."""
        if not len(rows):
            return
        append_whole(self._handle, rows.tobytes())
        self._rows += len(rows)
        if self._rows >= ROWS_A_PART:
            full = self._path(self._number)
            # These rows are stored: if no next journal can be opened now, continue with this one.
            with suppress(OSError):
                self._open(self._number + 1)
                self._to_pack.append(full)

    def recover(self) -> Rows:
        """Return the rows of the last journals, for a restart."""
        journals = [path for path in sorted(self.folder.iterdir()) if _number(path)]
        return np.concatenate([np.zeros(0, ROW), *map(_read, journals[-2:])])

    def reopen(self) -> None:
        """Open the folder again after it was gone. Raises OSError while it still is."""
        make_folder(self.folder)
        self._take_up()

    def pack(self) -> None:
        """Convert full journals to parts, which is slow. Raises OSError; the rest is converted the next time."""
        while self._to_pack:
            journal = self._to_pack[0]
            write_part(self.folder / f"part-{_number(journal)}.parquet", _read(journal))
            journal.unlink()
            self._to_pack.pop(0)
        remove_beyond(sorted(self.folder.glob("part-????????.parquet")), MOST_BYTES)

    def close(self) -> None:
        """Close the journal, which stays."""
        if self._handle >= 0:
            os.close(self._handle)
        self._handle = -1

    def _take_up(self) -> None:
        self.close()
        journals = []
        for path in sorted(self.folder.iterdir()):
            if (number := _number(path)) is not None:
                if (self.folder / f"part-{number}.parquet").exists():
                    path.unlink()
                else:
                    journals.append(path)
        goes_on = journals.pop() if journals else None
        self._to_pack = journals
        parts = [int(path.stem[5:]) for path in self.folder.glob("part-????????.parquet") if path.stem[5:].isdecimal()]
        known = [*parts, *(int(_number(path) or 0) for path in journals)]
        self._open(int(_number(goes_on) or 0) if goes_on else max(known, default=0) + 1)

    def _open(self, number: int) -> None:
        handle = append_kept(self._path(number))
        self.close()
        size = os.fstat(handle).st_size
        self._handle, self._number, self._rows = handle, number, size // ROW.itemsize
        # A kill in the middle of a row: it was not acknowledged.
        os.ftruncate(handle, self._rows * ROW.itemsize)

    def _path(self, number: int) -> Path:
        return self.folder / f"steps-{number:08}.journal"


def write_part(path: Path, rows: Rows) -> None:
    """Write rows as Parquet, by step and rank, atomically. Raises OSError."""
    rows = once_each([rows])
    table = pa.table({name: np.ascontiguousarray(rows[name]) for name in COLUMNS})
    write_table(path, table, use_dictionary=["rank", "flags"])


class StepReader:
    """Reads the folder `steps` of a job repeatedly; parts never change and are read once."""

    def __init__(self, folder: Path, columns: Sequence[str] = COLUMNS) -> None:
        """Prepare to read these columns; nothing is read yet."""
        self._folder = folder
        self._kind = np.dtype([(name, ROW[name]) for name in columns])
        self._parts: dict[tuple[str, int, int], Rows] = {}

    def read(self, most: int | None = None) -> list[Rows]:
        """Return the rows of parts and journals, oldest file first. Raises OSError, pa.ArrowException.

        Rows may be duplicates. Once `most` rows are read, older parts are skipped.
        """
        journals, parts = self._files()
        found = [self._of_journal(path) for path in journals]
        kept = {}
        for path in parts:
            if most is not None and sum(map(len, found)) >= most:
                break
            state = path.stat()
            key = (path.name, state.st_size, state.st_mtime_ns)
            kept[key] = self._parts[key] if key in self._parts else self._of_part(path)
            found.append(kept[key])
        self._parts = kept
        return found[::-1]

    def columns(self, most: int | None = None) -> StepColumns:
        """Return the same rows column by column, in half the memory, and keep none of them."""
        journals, parts = self._files()
        names = self._kind.names or ()
        found = [
            StepColumns.of({name: of[name] for name in names}, self._kind) for of in map(self._of_journal, journals)
        ]
        for path in parts:
            if most is not None and sum(map(len, found)) >= most:
                break
            columns = {name: one.to_numpy() for name, one in zip(*self._columns_of(path), strict=True)}
            found.append(_possible(StepColumns.of(columns, self._kind)))
        return StepColumns.joined(found[::-1], self._kind)

    def _files(self) -> tuple[list[Path], list[Path]]:
        """Return the journals that have no part yet, and the parts, each newest first."""
        parts = {path.stem[5:]: path for path in self._folder.glob("part-????????.parquet")}
        journals = sorted((number, path) for path in self._folder.iterdir() if (number := _number(path)) is not None)
        rest = [path for number, path in reversed(journals) if number not in parts]
        return rest, [path for _, path in sorted(parts.items(), reverse=True)]

    def _of_journal(self, path: Path) -> Rows:
        stored = _read(path)
        if self._kind == ROW:
            return _possible(stored)
        rows = np.empty(len(stored), self._kind)
        for name in self._kind.names or ():
            rows[name] = stored[name]
        return _possible(rows)

    def _of_part(self, path: Path) -> Rows:
        names, columns = self._columns_of(path)
        rows = np.zeros(len(columns[0]), self._kind)
        for name, one in zip(names, columns, strict=True):
            rows[name] = one.to_numpy()
        return _possible(rows)

    def _columns_of(self, path: Path) -> tuple[list[str], list[pa.ChunkedArray]]:
        """Return the names and columns of a part that it has, rank, step and begin_us among them."""
        content = pa.BufferReader(read_kept(path))
        stored = [(field.name, field.type) for field in pq.read_schema(content)]
        known = [(name, pa.from_numpy_dtype(ROW[name])) for name in COLUMNS]
        # Earlier versions had fewer columns.
        names = [name for name, _ in stored if name in (self._kind.names or ())]
        is_known = len(stored) >= _FEWEST_COLUMNS and stored == known[: len(stored)]
        table = pq.read_table(content, columns=names) if is_known else None
        if table is None or any(one.null_count for one in table.columns):
            raise pa.ArrowInvalid(f"{path.name} was not written by Kair")
        return names, table.columns


def read_all(folder: Path, most: int | None = None, columns: Sequence[str] = COLUMNS) -> Rows:
    """Return the rows of a job's folder `steps`, by step and rank. Raises OSError, pa.ArrowException.

    Rows of impossible ranks are left out. Once `most` rows are read, older parts are skipped. `columns` must include
    step, rank and begin_us.
    """
    return once_each(StepReader(folder, columns).read(most))


def read_columns(folder: Path, most: int | None = None, columns: Sequence[str] = COLUMNS) -> StepColumns:
    """Return the same column by column. Raises OSError, pa.ArrowException."""
    return _each_once(StepReader(folder, columns).columns(most))


def once_each(files: list[Rows]) -> Rows:
    """Return the files' rows by step and rank, without duplicates; empties the list.

    A row that arrived again after more steps than a coordinator remembers was written twice.
    """
    return _each_once(_joined(files))


def _each_once(rows: RowTable) -> RowTable:
    places = rows["step"].astype(np.int64) << 32 | rows["rank"]
    if (np.diff(places) > 0).all():
        return rows
    order = np.argsort(places, kind="stable")  # stable: fast on files that are nearly in order
    if (np.diff(places[order]) > 0).all():
        return rows[order]
    rows = rows[np.lexsort((rows["begin_us"], rows["rank"], rows["step"]))]
    again = (np.diff(rows["step"]) == 0) & (np.diff(rows["rank"]) == 0) & (np.diff(rows["begin_us"]) < ONE_STEP_US)
    distinct: RowTable = rows[np.concatenate((np.ones(min(len(rows), 1), np.bool_), ~again))]
    return distinct


def _joined(files: list[Rows]) -> Rows:
    """Return the files' rows in one array; each file is freed once copied, because they are large."""
    rows = np.empty(sum(map(len, files)), files[0].dtype if files else ROW)
    first = 0
    while files:
        some = files.pop(0)
        rows[first : first + len(some)] = some
        first += len(some)
    return rows


def _those(rows: RowTable, kept: npt.NDArray[np.bool_]) -> RowTable:
    """Return the chosen rows; without a copy if these are all."""
    chosen: RowTable = rows if kept.all() else rows[kept]
    return chosen


def _possible(rows: RowTable) -> RowTable:
    return _those(rows, rows["rank"] < MOST_RANKS)


def _number(path: Path) -> str | None:
    """Return the eight digits of a journal's name; None for other files."""
    match = _JOURNAL.fullmatch(path.name)
    return None if match is None else match[1]


def _read(path: Path) -> Rows:
    return rows_in(read_kept(path))


JOIN_FROM: Final = 64
_MOST_FILE_BYTES: Final = 64 << 20
_MOST_BYTES: Final = 1 << 30
"""Most bytes of all files; the oldest are removed."""
_SOURCES: Final = b"kair.sources"


class ScopeLog:
    """The folder `scopes` of a job; only the coordinator writes it."""

    def __init__(self, places: JobPlaces, key: bytes) -> None:
        self._delivered, self._folder, self._key = places.delivered, places.scopes, key
        self.refused = 0
        """Delivered files that no agent of the job made."""

    def round(self) -> None:
        """Move delivered files here. Raises OSError if the store cannot be written."""
        delivered = sorted(self._delivered.glob("host=*/scopes-*.parquet"))
        if not delivered:
            return
        make_folder(self._folder)
        for path in delivered:
            host = path.parent.name.removeprefix("host=")
            if self._is_ours(path, host):
                path.rename(self._folder / f"{host}-{path.stem.removeprefix('scopes-')}.parquet")
            else:
                self.refused += 1
                path.unlink(missing_ok=True)
        self._remove_joined()
        small = [path for path in self._files() if path.stat().st_size < _MOST_FILE_BYTES // 2]
        if len(small) >= JOIN_FROM:
            self._join(small)
        remove_beyond(self._files(), _MOST_BYTES)

    def _is_ours(self, path: Path, host: str) -> bool:
        name = read_name(path.name)
        if name is None or path.is_symlink() or not path.is_file() or path.stat().st_size > _MOST_FILE_BYTES:
            return False
        if not name.is_of(path, host, self._key):
            return False
        try:
            schema: pa.Schema = pq.read_schema(path)
        except pa.ArrowException:
            return False
        return bool(schema.equals(SCHEMA))

    def _files(self) -> list[Path]:
        """Return the files, oldest first."""
        files = (path for path in self._folder.glob("[!.]*.parquet") if path.is_file())
        return sorted(files, key=lambda path: path.stat().st_mtime_ns)

    def _join(self, small: list[Path]) -> None:
        table = pa.concat_tables([pq.read_table(path, schema=SCHEMA) for path in small])
        table = table.sort_by([("step", "ascending"), ("rank", "ascending"), ("scope", "ascending")])
        names = "\n".join(path.name for path in small).encode()
        first = small[0].name.rpartition(".")[0]
        write_table(self._folder / f"joined-{first}.parquet", table.replace_schema_metadata({_SOURCES: names}))
        self._remove_joined()

    def _remove_joined(self) -> None:
        """Remove the sources of joined files."""
        for path in filter(Path.is_file, self._folder.glob("joined-*.parquet")):
            sources = (pq.read_metadata(path).metadata or {}).get(_SOURCES, b"").decode().split("\n")
            # Files in this folder only: a list from a shared bucket could name any file of the host.
            for source in (self._folder / name for name in sources if name and "/" not in name):
                with suppress(OSError):
                    source.unlink()


Column = npt.NDArray[Any]

Waiting = Literal["none", "some", "all"]
_WAITING: Final[Mapping[str, Waiting]] = {"forward": "some", "backward": "some", "optimizer": "some", "input": "none"}
_OF_ANY_SIZE: Final = ("optimizer", "waiting")
"""Their duration does not depend on a step's samples."""
MOST_ROWS: Final = 4_000_000
"""Newest rows that are read: one per step and rank, or scope of one."""
_SPARSEST: Final = 64
"""Fewest rows per cell: ranks report nearly all steps, so one cell in 64 has a row, except in tables of `_FEW`."""
_FEW: Final = 1_000_000
_LATEST_S: Final = 253_402_300_799
"""The end of the year 9999: a damaged row may have any time."""
_SAME_US: Final = 2000
"""Tolerance for a step's begin, which may be from two readings of the clocks."""


def attempts_in(rows: Rows | StepColumns) -> tuple[Attempt, ...]:
    """Return the attempts in a job's rows; rows of earlier versions have none."""
    found = []
    for number in np.unique(rows["attempt"][rows["attempt"] > 0]).tolist():
        of = rows[rows["attempt"] == number]
        began = datetime.fromtimestamp(min(int(of["begin_us"].min()) / 1e6, _LATEST_S), UTC)
        found.append(
            Attempt(
                number=number,
                began_at=began.isoformat(timespec="milliseconds"),
                ranks=tuple(np.unique(of["rank"]).tolist()),
                first_step=int(of["step"].min()),
                last_step=int(of["step"].max()),
                step_time_us=float(np.median(of["step_us"])),
            )
        )
    return tuple(found)


def scope_series(rows: Rows, scopes: Path, attempt: int | None = None) -> tuple[list[ScopeSeries], float]:
    """Return the series of a job's rows and its folder `scopes`, and the median step in µs.

    If the job was restarted or went back to a checkpoint, the last attempt counts, or the one with this number. Raises
    OSError, pa.ArrowException, and InputError if there are too few rows for so many ranks and steps.
    """
    rows = last_attempt(rows, attempt)
    rows = rows[(rows["flags"] & UNFIT) == 0]
    if not len(rows):
        return [], 0.0
    # A thinned step has the phases of another one: one measurement that is repeated shows no chance between steps.
    recorded = rows["flags"] & StepFlag.THINNED == 0
    own = rows[recorded] if recorded.any() else rows
    found = [
        _series("self", rows["rank"], rows["step"], rows["self_us"], waiting="none"),
        _series("waiting", rows["rank"], rows["step"], rows["waited_us"], waiting="all"),
        *(_series(name, own["rank"], own["step"], own[f"{name}_us"], waiting=_WAITING[name]) for name in PHASES),
    ]
    found = [one for one in found if np.nanmax(one.time_us) > 0] + script_scopes(scopes, rows)
    return _at_present_sizes(found, rows), float(np.median(rows["step_us"]))


def _at_present_sizes(series: Sequence[ScopeSeries], rows: Rows) -> list[ScopeSeries]:
    """Return the series scaled to the present sizes.

    If ranks took other numbers of samples before, times that depend on these are converted to today's.
    """
    sizes = _series("samples", rows["rank"], rows["step"], rows["samples"], waiting="none")
    of = np.where(sizes.time_us > 0, sizes.time_us, np.nan)
    if not len(changes := lasting_changes(of.T)):
        return list(series)
    now = np.median(rows["samples"]) * np.ones(len(of))
    last = of[:, changes[-1] :]
    measured = ~np.isnan(last).all(axis=1)
    now[measured] = np.nanmedian(last[measured], axis=1)
    scale = np.nan_to_num(now[:, None] / of, nan=1.0)
    found = []
    for one in series:
        at = np.ix_(np.searchsorted(sizes.ranks, one.ranks), np.searchsorted(sizes.steps, one.steps))
        time_us = one.time_us if one.scope in _OF_ANY_SIZE else one.time_us * scale[at]
        found.append(replace(one, time_us=time_us, resized=sizes.steps[changes].tolist()))
    return found


def script_scopes(folder: Path, rows: Rows | StepColumns) -> list[ScopeSeries]:
    """Return the script's own scopes, in the steps that call them."""
    sums = _sums_in(folder)
    if not len(sums):
        return []
    places, wanted = _places(rows["rank"], rows["step"]), _places(sums["rank"].to_numpy(), sums["step"].to_numpy())
    order = np.argsort(places)
    at = order[np.minimum(np.searchsorted(places, wanted, sorter=order), len(places) - 1)]
    apart = np.abs(sums["begin_us"].to_numpy() - rows["begin_us"][at].astype(np.int64))
    sums = sums.filter(pa.array((places[at] == wanted) & (apart < _SAME_US)))
    scopes = sums["scope"].combine_chunks().dictionary_encode()
    number = scopes.indices.to_numpy()
    rank, step, time_us = (sums[name].to_numpy() for name in ("rank", "step", "time_us"))
    found = []
    for name, code in sorted(zip(scopes.dictionary.to_pylist(), range(len(scopes.dictionary)), strict=True)):
        own = number == code
        found.append(_series(name, rank[own], step[own], time_us[own], waiting="some"))
    return found


def _sums_in(folder: Path) -> pa.Table:
    """Return the rows of the newest files."""
    tables, rows = [SCHEMA.empty_table()], 0
    for path in sorted(folder.glob("[!.]*.parquet"), key=lambda path: -path.stat().st_mtime_ns):
        if rows < MOST_ROWS:
            kept = pa.BufferReader(read_kept(path))
            tables.append(pq.read_table(kept, schema=SCHEMA).replace_schema_metadata())
            rows += len(tables[-1])
    return pa.concat_tables(tables).drop_null()


def last_attempt(rows: RowTable, number: int | None = None) -> RowTable:
    """Return the rows of the last attempt, or of `number`: for each rank those since its numbers went back."""
    rows = _those(rows, rows["attempt"] == (rows["attempt"].max(initial=0) if number is None else number))
    # Numbers of 16 bits are sorted several times as fast.
    by_rank = np.argsort(rows["rank"].astype(np.min_scalar_type(rows["rank"].max(initial=0))), kind="stable")
    rank, begin = rows["rank"][by_rank], rows["begin_us"][by_rank]
    if ((rank[1:] == rank[:-1]) & (begin[1:] < begin[:-1])).any():
        by_rank = np.lexsort((rows["begin_us"], rows["rank"]))
        rank = rows["rank"][by_rank]
    step = rows["step"][by_rank]
    anew = np.concatenate([[True], (rank[1:] != rank[:-1]) | (step[1:] <= step[:-1])]) if len(rows) else rank > 0
    last = np.zeros(int(rank.max(initial=0)) + 1, np.int64)
    last[rank[anew]] = np.flatnonzero(anew)  # assignment keeps the last of several
    kept = np.empty(len(rows), np.bool_)
    kept[by_rank] = np.arange(len(rows)) >= last[rank]
    return _those(rows, kept)


def _places(rank: Column, step: Column) -> Ints:
    """Return a number for each rank and step."""
    return rank.astype(np.int64) << 32 | step.astype(np.int64)


def _series(name: str, rank: Column, step: Column, us: Column, *, waiting: Waiting) -> ScopeSeries:
    ranks, row = np.unique(rank, return_inverse=True)
    steps, column = np.unique(step, return_inverse=True)
    if len(ranks) * len(steps) > _SPARSEST * len(us) + _FEW:
        raise InputError(f"the steps of the job are damaged: {len(us)} rows of {len(ranks)} ranks, {len(steps)} steps")
    time_us: Floats = np.full((len(ranks), len(steps)), np.nan)
    time_us[row, column] = us
    numbers: tuple[Ints, Ints] = (ranks.astype(np.int64), steps.astype(np.int64))
    return ScopeSeries(name, *numbers, time_us, waiting)
