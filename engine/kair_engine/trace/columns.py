"""Reads columns of the operations table by Arrow: polars, at three times the import, pays for whole queries only."""

from collections.abc import Collection, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from kair_engine.arrays import NONE, Bools, Codes
from kair_engine.frozen import dataclass
from kair_engine.trace.model import Trace

TEXTS = frozenset(("lane", "name", "kind", "phase", "group", "inputs"))
"""The columns that are read as codes."""


@dataclass(frozen=True)
class Columns:
    """Rows of the table in its order, arrays of one length; NONE stands for null.

    Of a column of texts `of` has codes, which are positions in `texts`.
    """

    of: dict[str, npt.NDArray[Any]]
    texts: dict[str, list[str]]

    def __len__(self) -> int:
        return len(self.of["step"])

    def chosen(self, rows: npt.NDArray[Any]) -> "Columns":
        """Some of the rows, by a mask or by their positions."""
        return Columns({name: values[rows] for name, values in self.of.items()}, self.texts)

    def text(self, name: str) -> list[str]:
        """The text of every row, in a column without nulls."""
        texts = self.texts[name]
        return [texts[code] for code in self.of[name].tolist()]

    def is_any(self, name: str, wanted: Collection[str]) -> Bools:
        """Where the text of a column is one of `wanted`; a null's is not."""
        return np.asarray(_by_code([text in wanted for text in self.texts[name]], False)[self.of[name]])

    def recode(self, name: str, words: Sequence[str], kind: npt.DTypeLike) -> None:
        """Makes a column's codes positions in `words`, NONE for other texts."""
        place = [words.index(text) if text in words else NONE for text in self.texts[name]]
        self.of[name], self.texts[name] = _by_code(place, NONE).astype(kind)[self.of[name]], list(words)

    def present(self, name: str) -> list[int]:
        """The codes of a column that occur, without NONE; its texts are of all rows that were read."""
        counts = np.bincount(self.of[name] + 1, minlength=1)
        return np.flatnonzero(counts[1:]).tolist()


def read_columns(trace: Trace, names: Sequence[str], steps: Sequence[int] | None = None) -> Columns:
    """These columns, and `step` and `rank`, of what `Trace.scan` reads; of its chosen steps all, or only `steps`.

    Row groups that hold none of the steps and ranks are not read. Numbers of steps are the job's, not a rank's own.
    """
    wanted = np.array(sorted(trace.steps if steps is None else steps), dtype=np.int64)
    shift = trace.job.step_shift
    within = _as_recorded(trace, wanted)
    only = None if trace.only is None else np.array(sorted(trace.only), dtype=np.int64)
    found = (_row_groups(fragment, within, only, names) for fragment in trace.fragments)
    tables = [table for table in found if table is not None] or [_no_rows(trace, names)]
    table = pa.concat_tables(tables)
    del tables
    step, rank = filled(table["step"]), filled(table["rank"])
    for number, more in shift.items():
        step = np.where(rank == number, step - more, step)
    kept = np.isin(step, wanted)
    if only is not None:
        kept &= np.isin(rank, only)
    for cut, ranks in trace.job.cut_off.items():
        kept &= (step != cut) | ~np.isin(rank, ranks)
    rows = slice(None) if kept.all() else np.flatnonzero(kept)
    # A step can be large: what was read of a column goes when its array is made.
    columns = {name: table[name] for name in names}
    del table
    result = Columns({"step": step[rows], "rank": rank[rows]}, {})
    for name in names:
        if name in TEXTS:
            codes, result.texts[name] = coded(columns.pop(name))
        else:
            codes = filled(columns.pop(name))
        result.of[name] = codes[rows]
    # Arrow keeps what it frees: of two million operations 90 MB, while all else is worked out.
    pa.default_memory_pool().release_unused()
    return result


def joined(parts: Sequence[Columns]) -> Columns:
    """The rows of all, one after another; one part at least."""
    together = Columns({}, {})
    for name in parts[0].of:
        # One column after another: copies of all at once take as much memory again.
        pieces = [part.of[name] for part in parts]
        if name in parts[0].texts:
            together.texts[name] = list(dict.fromkeys(text for part in parts for text in part.texts[name]))
            place = {text: code for code, text in enumerate(together.texts[name])}
            codes = ([place[text] for text in part.texts[name]] for part in parts)
            pieces = [_by_code(of, NONE).astype(piece.dtype)[piece] for of, piece in zip(codes, pieces, strict=True)]
        together.of[name] = np.concatenate(pieces)
    return together


def _no_rows(trace: Trace, names: Sequence[str]) -> pa.Table:
    return pq.read_schema(trace.fragments[0]).empty_table().select([*{"step": 0, "rank": 0, **dict.fromkeys(names)}])


def ranks_together(trace: Trace, step: int) -> list[tuple[int, int, Path]]:
    """(lowest rank, highest rank, fragment) of every row group that may hold rows of the step, the lowest first."""
    within = _as_recorded(trace, np.array([step], dtype=np.int64))
    found: list[tuple[int, int, Path]] = []
    for fragment in trace.fragments:
        spans = _spans(*_version(fragment))
        ranks = spans[2:, _held(spans, within, None)]
        found += [(low, high, fragment) for low, high in ranks.T.tolist()]
    return sorted(found)


def _as_recorded(trace: Trace, steps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The numbers that the steps may have in the fragments, in order."""
    return np.unique(np.concatenate([steps + more for more in {0, *trace.job.step_shift.values()}]))


def _version(fragment: Path) -> tuple[Path, int, int]:
    state = fragment.stat()
    return fragment, state.st_mtime_ns, state.st_size


def _held(
    spans: npt.NDArray[np.int64], steps: npt.NDArray[np.int64], ranks: npt.NDArray[np.int64] | None
) -> npt.NDArray[np.int64]:
    """The row groups that may hold some of the steps and ranks, which are in order."""
    held = np.searchsorted(steps, spans[0]) < np.searchsorted(steps, spans[1], side="right")
    if ranks is not None:
        held &= np.searchsorted(ranks, spans[2]) < np.searchsorted(ranks, spans[3], side="right")
    return np.flatnonzero(held)


def _row_groups(
    fragment: Path, steps: npt.NDArray[np.int64], ranks: npt.NDArray[np.int64] | None, names: Sequence[str]
) -> pa.Table | None:
    """Those that may hold some of the steps and ranks, which are in order; None where none does."""
    version = _version(fragment)
    held = _held(_spans(*version), steps, ranks).tolist()
    if not held:
        return None
    with pq.ParquetFile(fragment, metadata=_footer(*version)) as file:
        return file.read_row_groups(held, [*{"step": 0, "rank": 0, **dict.fromkeys(names)}], use_threads=False)


@lru_cache(maxsize=1 << 16)
def _spans(fragment: Path, changed_ns: int, size: int) -> npt.NDArray[np.int64]:  # noqa: ARG001 - of this state of the file
    """The lowest and the highest step and rank of each row group, (4 × row groups): most files hold none of them."""
    # Not by way of `_footer`, which is for files that are read: of a recording's most nothing is.
    footer = pq.read_metadata(fragment)
    groups = [footer.row_group(group) for group in range(footer.num_row_groups)]
    known = [[_column(group, name).statistics for group in groups] for name in ("step", "rank")]
    return np.array([[getattr(one, end) for one in of] for of in known for end in ("min", "max")], dtype=np.int64)


def _column(group: pq.RowGroupMetaData, name: str) -> pq.ColumnChunkMetaData:
    # Not by the footer's `schema`: that and the footer hold each other, 0.3 MB until Python's collector comes by.
    columns = (group.column(at) for at in range(group.num_columns))
    return next(column for column in columns if column.path_in_schema == name)


@lru_cache(maxsize=128)
def _footer(fragment: Path, changed_ns: int, size: int) -> pq.FileMetaData:  # noqa: ARG001 - of this state of the file
    """Kept for the steps that follow: it takes as long as reading ten thousand operations, and a kilobyte a column."""
    return pq.read_metadata(fragment)


def coded(texts: pa.ChunkedArray) -> tuple[Codes, list[str]]:
    """A column's codes, and what they stand for."""
    whole = texts.unify_dictionaries().combine_chunks()
    return _filled(whole.indices), whole.dictionary.to_pylist()


def filled(column: pa.ChunkedArray, null: float = NONE) -> npt.NDArray[Any]:
    """A column's numbers, with `null` for what is absent.

    By the buffers themselves: to make an array Arrow loads pandas wherever that is installed, 0.16 s; its own filling
    loads all of its functions, which takes 25 ms, and where it makes nulls NaN large numbers are no longer exact.
    """
    chunks = [_filled(chunk, null) for chunk in column.chunks]
    return chunks[0] if len(chunks) == 1 else np.concatenate([np.empty(0, column.type.to_pandas_dtype()), *chunks])


def _filled(numbers: pa.Array, null: float = NONE) -> npt.NDArray[Any]:
    valid, data = numbers.buffers()
    begin, end = numbers.offset, numbers.offset + len(numbers)
    values = np.frombuffer(data if end else b"", numbers.type.to_pandas_dtype())[begin:end]
    if not numbers.null_count:
        return values
    bits = np.unpackbits(np.frombuffer(valid, np.uint8), bitorder="little")[begin:end]
    return np.where(bits, values, np.array(null, values.dtype))


def _by_code(values: Sequence[Any], of_null: object) -> npt.NDArray[Any]:
    """To be indexed by codes: NONE, −1, finds the last entry."""
    return np.array([*values, of_null])
