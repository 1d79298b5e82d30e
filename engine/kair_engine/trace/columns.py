"""Makes, reads and counts columns of the operations table, and checks them for damage.

Columns are read by Arrow: polars takes three times as long to import, and only pays off for whole queries. Arrays of
numbers become columns; until then -1 stands for absent.

If an analysis fails, the files of the trace are checked for damage. Checksums show damage but not the writer: a job
from somebody else can hold any table under a fitting seal. Checking everything at every opening would cost more than
most questions, so it is done only after a failure.
"""

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from kair_engine.arrays import NONE, Bools, Codes, as_one
from kair_engine.cancelling import checkpoint
from kair_engine.frozen import dataclass
from kair_engine.trace.format import KINDS, PHASES, SCHEMA, STEP_SCOPE
from kair_engine.trace.model import Trace

TEXTS = frozenset(("lane", "name", "kind", "phase", "group", "inputs"))
"""Columns that are read as codes."""
_AT_A_TIME: Final = 200_000
"""Rows that are converted together: a table as read takes as much memory again."""


@dataclass(frozen=True)
class Columns:
    """Rows of the table in its order, arrays of one length; NONE stands for null.

    In `of`, a column of texts has codes, which are indices into `texts`.
    """

    of: dict[str, npt.NDArray[Any]]
    texts: dict[str, list[str]]

    def __len__(self) -> int:
        return len(self.of["step"])

    def chosen(self, rows: npt.NDArray[Any]) -> "Columns":
        """Return some of the rows, by a mask or by index."""
        return Columns({name: values[rows] for name, values in self.of.items()}, self.texts)

    def text(self, name: str) -> list[str]:
        """Return the text of every row, in a column without nulls."""
        texts = self.texts[name]
        return [texts[code] for code in self.of[name].tolist()]

    def is_any(self, name: str, wanted: Collection[str]) -> Bools:
        """Return where the text of a column is one of `wanted`; a null's is not."""
        return np.asarray(_by_code([text in wanted for text in self.texts[name]], False)[self.of[name]])

    def recode(self, name: str, words: Sequence[str], kind: npt.DTypeLike) -> None:
        """Make a column's codes indices into `words`, NONE for other texts."""
        place = [words.index(text) if text in words else NONE for text in self.texts[name]]
        self.of[name], self.texts[name] = _by_code(place, NONE).astype(kind)[self.of[name]], list(words)

    def present(self, name: str) -> list[int]:
        """Return the codes of a column that occur, without NONE; its texts are those of all rows that were read."""
        counts = np.bincount(self.of[name] + 1, minlength=1)
        return np.flatnonzero(counts[1:]).tolist()


def read_columns(trace: Trace, names: Sequence[str], steps: Sequence[int] | None = None) -> Columns:
    """Return the columns `names`, `step` and `rank` of the rows of `Trace.scan`, for all its chosen steps or `steps`.

    Row groups without any of the steps and ranks are not read. Step numbers are the job's, not a rank's own.
    """
    checkpoint()
    wanted = np.array(sorted(trace.steps if steps is None else steps), dtype=np.int64)
    only, alike = _only(trace), not trace.job.step_shift and not trace.job.cut_off
    parts = list(_parts(trace.fragments, _as_recorded(trace, wanted), only))
    result = _Rows(["step", "rank", *names], math.ceil(sum(part.rows for part in parts)))
    tables, held = list[pa.Table](), 0
    for part in parts:
        table = _row_groups(part, names)
        if not (alike and part.holds_nothing_else):
            rows = np.flatnonzero(_kept(trace, table, wanted, only))
            if len(rows) and rows[-1] - rows[0] >= len(rows):
                result.add(table, rows)
                continue
            table = table.slice(int(rows[0]) if len(rows) else 0, len(rows))
        tables.append(table)
        held += len(table)
        if held > _AT_A_TIME:
            result.add(pa.concat_tables(tables))
            tables, held = [], 0
    result.add(pa.concat_tables(tables or [_no_rows(trace, names)]))
    del tables
    # Arrow keeps freed memory: for two million operations 90 MB, during all later work.
    pa.default_memory_pool().release_unused()
    return _numbered_alike(result.columns(), trace.job.step_shift)


def _kept(
    trace: Trace, table: pa.Table, wanted: npt.NDArray[np.int64], only: npt.NDArray[np.int64] | None
) -> npt.NDArray[np.bool_]:
    """Return which rows are of the wanted steps and ranks, and not of a rank whose record of the step is cut."""
    rows = _numbered_alike(Columns({name: filled(table[name]) for name in ("step", "rank")}, {}), trace.job.step_shift)
    step, rank = rows.of["step"], rows.of["rank"]
    # Rows of a rank's step lie together: one of each is looked at.
    is_first = np.ones(len(table), dtype=bool)
    is_first[1:] = (step[1:] != step[:-1]) | (rank[1:] != rank[:-1])
    begins = np.flatnonzero(is_first)
    lengths, step, rank = np.diff(begins, append=len(table)), step[begins], rank[begins]
    kept = np.isin(step, wanted)
    if only is not None:
        kept &= np.isin(rank, only)
    for cut, ranks in trace.job.cut_off.items():
        kept &= (step != cut) | ~np.isin(rank, ranks)
    return np.repeat(kept, lengths)


def _numbered_alike(rows: Columns, shift: Mapping[int, int]) -> Columns:
    """Return rows as recorded with the job's numbers of steps."""
    for number, more in shift.items():
        rows.of["step"] = np.where(rows.of["rank"] == number, rows.of["step"] - more, rows.of["step"])
    return rows


class _Rows:
    """Rows as they are read, one part after another, in arrays that are made once."""

    def __init__(self, names: Sequence[str], expected: int) -> None:
        """Make room for as many rows as are `expected`, more or less."""
        self._of: dict[str, npt.NDArray[Any]] = {}
        self._texts: dict[str, dict[str, int]] = {name: {} for name in names if name in TEXTS}
        self._names, self._room, self._count = list(dict.fromkeys(names)), expected, 0

    def add(self, table: pa.Table, rows: npt.NDArray[np.int64] | None = None) -> None:
        """Append a table's rows, or some of them by their positions."""
        end = self._count + (len(table) if rows is None else len(rows))
        if end > self._room:
            self._resize(end + end // 4)
        for name in self._names:
            kind = np.int32 if name in TEXTS else table[name].type.to_pandas_dtype()
            room = self._of.setdefault(name, np.empty(self._room, kind))[self._count : end]
            if name in TEXTS:
                codes, texts = coded(table[name])
                place = [self._texts[name].setdefault(text, len(self._texts[name])) for text in texts]
                codes = codes if rows is None else codes[rows]
                same = place == list(range(len(place)))
                room[:] = codes if same else _by_code(place, NONE).astype(np.int32)[codes]
            elif rows is None:
                _fill(room, table[name])
            else:
                room[:] = filled(table[name])[rows]
        self._count = end

    def columns(self) -> Columns:
        """Return all rows; to be asked for once."""
        self._resize(self._count)
        return Columns(self._of, {name: list(texts) for name, texts in self._texts.items()})

    def _resize(self, rows: int) -> None:
        for values in self._of.values():
            values.resize(rows, refcheck=False)
        self._room = rows


def joined(parts: Sequence[Columns]) -> Columns:
    """Return all rows, part after part; at least one part is needed, and the parts lose their columns."""
    if len(parts) == 1:
        return parts[0]
    together = Columns({}, {})
    for name in list(parts[0].of):
        # One column after another: copying all at once takes as much memory again.
        pieces = [part.of.pop(name) for part in parts]
        if name in parts[0].texts:
            together.texts[name] = list(dict.fromkeys(text for part in parts for text in part.texts[name]))
            place = {text: code for code, text in enumerate(together.texts[name])}
            codes = ([place[text] for text in part.texts[name]] for part in parts)
            pieces = [_by_code(of, NONE).astype(piece.dtype)[piece] for of, piece in zip(codes, pieces, strict=True)]
        together.of[name] = np.concatenate(pieces)
    return together


def _no_rows(trace: Trace, names: Sequence[str]) -> pa.Table:
    return pq.read_schema(trace.fragments[0]).empty_table().select([*{"step": 0, "rank": 0, **dict.fromkeys(names)}])


def ranks_together(trace: Trace, steps: Sequence[int]) -> list[tuple[int, int, Path]]:
    """Return (lowest rank, highest rank, fragment) of every row group that may hold rows of the steps, lowest first."""
    within = _as_recorded(trace, np.array(sorted(steps), dtype=np.int64))
    parts = _parts(trace.fragments, within, None)
    return sorted((low, high, part.version[0]) for part in parts for low, high in part.ranks)


def _only(trace: Trace) -> npt.NDArray[np.int64] | None:
    return None if trace.only is None else np.array(sorted(trace.only), dtype=np.int64)


def _as_recorded(trace: Trace, steps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the numbers that the steps may have in the fragments, in order."""
    return np.unique(np.concatenate([steps + more for more in {0, *trace.job.step_shift.values()}]))


Version = tuple[Path, int, int]
"""A file at some time: path, modification time in ns, size in bytes."""


def _version(fragment: Path) -> Version:
    state = fragment.stat()
    return fragment, state.st_mtime_ns, state.st_size


@dataclass(frozen=True)
class _Part:
    """Row groups of a file that may hold wanted rows, at least one, and each one's lowest and highest rank."""

    version: Version
    groups: list[int]
    ranks: list[list[int]]
    rows: float
    """How many of the steps and ranks asked for they hold, where all steps and ranks have equally many."""
    holds_nothing_else: bool
    """Whether the steps and ranks asked for are all that its row groups hold."""


def _parts(
    fragments: Sequence[Path], steps: npt.NDArray[np.int64], ranks: npt.NDArray[np.int64] | None
) -> Iterator[_Part]:
    """Yield the files that may hold some of the steps and ranks, both of which are sorted."""
    versions = [_version(fragment) for fragment in fragments]
    of_files = [_spans(*version) for version in versions]
    # All files at once: for ten thousand files, one at a time took as long as reading some of them.
    spans = np.concatenate([np.empty((5, 0), np.int64), *of_files], axis=1)
    file = np.repeat(np.arange(len(versions)), [of.shape[1] for of in of_files])
    group = np.arange(len(file)) - np.searchsorted(file, file)
    asked = np.searchsorted(steps, spans[1], side="right") - np.searchsorted(steps, spans[0])
    share = asked / np.maximum(spans[1] - spans[0] + 1, 1)
    if ranks is not None:
        members = np.searchsorted(ranks, spans[3], side="right") - np.searchsorted(ranks, spans[2])
        share *= members / np.maximum(spans[3] - spans[2] + 1, 1)
    rows = spans[4] * share
    held = rows > 0
    found: dict[int, _Part] = {}
    columns = (file, group, *spans[2:4], rows, share == 1)
    for at, number, low, high, few, nothing_else in zip(*(of[held].tolist() for of in columns), strict=True):
        before = found.get(at, _Part(versions[at], [], [], 0.0, True))
        before.groups.append(number)
        before.ranks.append([low, high])
        found[at] = replace(
            before, rows=before.rows + few, holds_nothing_else=before.holds_nothing_else and nothing_else
        )
    yield from found.values()


def _row_groups(part: _Part, names: Sequence[str]) -> pa.Table:
    columns = [*{"step": 0, "rank": 0, **dict.fromkeys(names)}]
    footer = _footer(*part.version)
    # Reading ahead serves remote stores; locally it took a fifth of the time of a thousand operations.
    with pq.ParquetFile(part.version[0], metadata=footer[0] if footer else None, pre_buffer=False) as file:
        footer[:] = [file.metadata]
        return file.read_row_groups(part.groups, columns, use_threads=False)


@lru_cache(maxsize=1 << 16)
def _spans(fragment: Path, changed_ns: int, size: int) -> npt.NDArray[np.int64]:  # noqa: ARG001 - of this state of the file
    """Return the lowest and the highest step and rank of each row group, and its number of rows, (5 × row groups): most
    files hold no match.
    """
    # Without `_footer`, which caches footers of files that are read: most files of a recording are not.
    footer = pq.read_metadata(fragment)
    groups = [footer.row_group(group) for group in range(footer.num_row_groups)]
    known = [[_column(group, name).statistics for group in groups] for name in ("step", "rank")]
    spans = [[getattr(one, end) for one in of] for of in known for end in ("min", "max")]
    return np.array([*spans, [group.num_rows for group in groups]], dtype=np.int64)


def _column(group: pq.RowGroupMetaData, name: str) -> pq.ColumnChunkMetaData:
    # Without the footer's `schema`: the two reference each other, 0.3 MB until Python's collector runs.
    columns = (group.column(at) for at in range(group.num_columns))
    return next(column for column in columns if column.path_in_schema == name)


@lru_cache(maxsize=128)
def _footer(fragment: Path, changed_ns: int, size: int) -> list[pq.FileMetaData]:  # noqa: ARG001 - of this state of the file
    """Return the list that holds the footer once the file was opened.

    It serves later steps: parsing takes as long as reading ten thousand operations, and a kilobyte a column.
    """
    return []


def coded(texts: pa.ChunkedArray) -> tuple[Codes, list[str]]:
    """Return a column's codes, and their texts."""
    whole = texts.unify_dictionaries().combine_chunks()
    return _filled(whole.indices), whole.dictionary.to_pylist()


def filled(column: pa.ChunkedArray, null: float = NONE) -> npt.NDArray[Any]:
    """Return a column's numbers, with `null` where absent.

    Uses the buffers directly: Arrow's own conversion loads pandas if that is installed, 0.16 s; its filling loads all
    compute functions, 25 ms; and where it turns nulls into NaN, large numbers are no longer exact.
    """
    chunks = [_filled(chunk, null) for chunk in column.chunks]
    return chunks[0] if len(chunks) == 1 else np.concatenate([np.empty(0, column.type.to_pandas_dtype()), *chunks])


def _fill(room: npt.NDArray[Any], column: pa.ChunkedArray) -> None:
    """Put a column's numbers into as large an array, with NONE for what is absent."""
    end = 0
    for chunk in column.chunks:
        part, end = room[end : end + len(chunk)], end + len(chunk)
        # A column of which a file has nothing is read often, and a copy of NONE takes a tenth of looking at bits.
        part[:] = NONE if chunk.null_count == len(chunk) else _filled(chunk)


def _filled(numbers: pa.Array, null: float = NONE) -> npt.NDArray[Any]:
    valid, data = numbers.buffers()
    begin, end = numbers.offset, numbers.offset + len(numbers)
    values = np.frombuffer(data if end else b"", numbers.type.to_pandas_dtype())[begin:end]
    if not numbers.null_count:
        return values
    bits = np.unpackbits(np.frombuffer(valid, np.uint8), bitorder="little")[begin:end]
    return np.where(bits, values, np.array(null, values.dtype))


def _by_code(values: Sequence[Any], of_null: object) -> npt.NDArray[Any]:
    """Return an array to be indexed by codes: NONE, −1, finds the last entry."""
    return np.array([*values, of_null])


Int64s = npt.NDArray[np.int64]
Integers = npt.NDArray[np.integer[Any]]


def occurrences(phase: Integers, name: Integers, kind: Integers, start: Integers) -> Int64s:
    """Return for each row the number of rows of the same phase, name and kind that began before it."""
    key = as_one(phase, name, kind)
    assert key is not None
    # Two sorts, by start and then by key, are several times faster for few lanes and few different keys.
    order = np.argsort(start, kind="stable")
    order = order.take(np.argsort(key.take(order), kind="stable"))
    ordered = key.take(order)
    begins = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(key)])
    result = np.empty(len(start), np.int64)
    result[order] = np.arange(len(start)) - np.repeat(begins, np.diff(begins, append=len(start)))
    return result


def dictionary(codes: Integers, values: Sequence[str], rows: Integers | None = None) -> pa.DictionaryArray:
    """Return a dictionary array over the values that occur: a row group must not carry the whole file's names.

    Its rows are those of `rows`, indices into `codes` in which all codes occur; None: all.
    """
    # The last entry, found by -1, stands for null.
    used = np.zeros(len(values) + 1, np.bool_)
    used[codes] = True
    number = (np.cumsum(used) - 1).astype(np.int32).take(codes, mode="wrap")
    absent = codes < 0 if used[-1] else None
    if rows is not None:
        number, absent = number[rows], None if absent is None else absent[rows]
    kept = tuple([values[at] for at in np.flatnonzero(used[:-1]).tolist()])
    return pa.DictionaryArray.from_arrays(numbers(number, absent), _texts(kept), safe=False)


def nullable(values: Integers, kind: pa.DataType) -> pa.Array:
    """Return `values` as an Arrow array of `kind`, with negative ones null."""
    return numbers(values.astype(kind.to_pandas_dtype()), values < 0)


def numbers(values: Integers, absent: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Return `values` as an Arrow array of their own type, null where absent.

    Uses their memory: `pa.array` loads pandas if that is installed, 0.16 s, and takes eight times as long with nulls.
    """
    valid = None if absent is None else pa.py_buffer(np.packbits(~absent, bitorder="little"))
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [valid, data])


@lru_cache(maxsize=8)
def _texts(values: tuple[str, ...]) -> pa.StringArray:
    """Return texts as an Arrow array; cached, because most columns keep their texts in the next step."""
    encoded = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)))


_REQUIRED: Final = tuple(field.name for field in SCHEMA if not field.nullable)
_KNOWN: Final = {"kind": frozenset(KINDS), "phase": frozenset(PHASES)}
_INPUTS: Final = re.compile(r"\d+(?:[,;]\d+)*", re.ASCII)
_LONGEST_NS: Final = 10**18
_LATEST_NS: Final = 4 * 10**18


def unsound_file(trace: Trace) -> tuple[Path, str] | None:
    """Return the first file that is gone, or is not as readers write it, and why; None if all are sound."""
    import polars as pl

    times = trace.job.step_times
    cells = {(rank, step): count for rank, step, count in zip(times.rank, times.step, times.operations, strict=True)}
    shift = trace.job.step_shift
    cells = {(rank, step + shift.get(rank, 0)): count for (rank, step), count in cells.items()}
    for path in trace.fragments:
        try:
            pl.read_parquet_schema(path)  # it refuses texts in the file's description that Arrow takes
            why = next(_faults(path, cells), None)
        except FileNotFoundError:
            return path, "it was removed while it was read"
        except (OSError, pa.ArrowException, pl.exceptions.PolarsError, ValueError) as error:
            why = str(error).splitlines()[0] if str(error) else type(error).__name__
        if why is not None:
            return path, why
    return None


def _faults(path: Path, cells: dict[tuple[int, int], int]) -> Iterator[str]:
    with pq.ParquetFile(path) as file:
        if not file.schema_arrow.equals(SCHEMA):
            yield "its columns are others"
            return
        for group in range(file.num_row_groups):
            yield from _faults_of_rows(file.read_row_group(group, use_threads=False), cells)


def _faults_of_rows(rows: pa.Table, cells: dict[tuple[int, int], int]) -> Iterator[str]:
    if not len(rows):
        yield "a part of it has no rows"
        return
    rows.validate(full=True)  # texts that are none, which Arrow hands on, too
    lacking = [name for name in _REQUIRED if rows[name].null_count]
    if lacking:
        yield f"it has rows without {lacking[0]}"
        return
    for name, known in _KNOWN.items():
        if set(_texts_of(rows, name)) - known - {None}:
            yield f"it has a {name} that there is not"
    if not all(_INPUTS.fullmatch(text) for text in set(_texts_of(rows, "inputs")) if text):
        yield "it has dimensions of inputs that are no numbers"
    start, duration = (filled(rows[name]) for name in ("start_ns", "duration_ns"))
    if duration.min() < 0 or duration.max() > _LONGEST_NS or np.abs(start.astype(float)).max() > _LATEST_NS:
        yield "it has times that no recording has"
    step, rank = (filled(rows[name]) for name in ("step", "rank"))
    scopes = np.array([name == STEP_SCOPE for name in _texts_of(rows, "name")], dtype=bool)
    scopes &= np.array([kind == "scope" for kind in _texts_of(rows, "kind")], dtype=bool)
    found, counts = np.unique(np.stack((rank, step)), axis=1, return_counts=True)
    marked, marks = np.unique(np.stack((rank[scopes], step[scopes])), axis=1, return_counts=True)
    if found.shape != marked.shape or (found != marked).any() or (marks != 1).any():
        yield "not every step in it has one scope"
    of = zip(found[0].tolist(), found[1].tolist(), counts.tolist(), strict=True)
    if any(cells.get((of_rank, of_step), -1) != count - 1 for of_rank, of_step, count in of):
        yield "it has other operations than are stated of it"


def _texts_of(rows: pa.Table, name: str) -> list[str | None]:
    texts: list[str | None] = rows[name].to_pylist()
    return texts
