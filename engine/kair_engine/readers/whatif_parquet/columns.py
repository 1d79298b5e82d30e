"""The columns of a what-if Parquet file: read, checked, times in whole nanoseconds."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from kair_engine.errors import InputError
from kair_engine.readers.columns import Int64s
from kair_engine.readers.detect import NotATraceError
from kair_engine.readers.identity import MAX_RANKS
from kair_engine.trace.columns import filled

COLUMNS: Final = (
    "dp_rank",
    "stage",
    "rank",
    "step",
    "optype",
    "start_ts",
    "duration",
    "seq_id",
    "mc",
    "gmc",
    "mb_id",
)
_REQUIRED: Final = frozenset(COLUMNS) - {"mc", "gmc", "mb_id"}
_INTEGERS: Final = ("dp_rank", "stage", "rank", "step", "seq_id", "mc", "gmc", "mb_id")
_MAX_SECONDS: Final = 1e9
Int32s = npt.NDArray[np.int32]
_MAX_NUMBER: Final = 1_000_000
"""Chunks and microbatches beyond are not numbered, whatever stands there."""


@dataclass
class WhatifOperations:
    """The valid rows, in columns; times in ns from each step's zero, -1 for absent."""

    dp_rank: Int32s
    stage: Int32s
    rank: Int32s
    step: Int32s
    operator: Int32s
    start: Int64s
    duration: Int64s
    seq_id: Int32s
    mc: Int32s
    gmc: Int32s
    mb_id: Int32s

    def __len__(self) -> int:
        return len(self.rank)

    def take(self, rows: npt.NDArray[Any] | slice) -> "WhatifOperations":
        """The rows that a mask, an index or a slice selects."""
        return WhatifOperations(**{name: values[rows] for name, values in vars(self).items()})


def read_operations(source: Path) -> tuple[list[str], WhatifOperations, int]:
    """Operator names, the valid rows, and how many rows had no valid time or identity.

    Raises NotATraceError where the file has other columns, InputError where it is damaged.
    """
    try:
        # Column by column: the whole table and what becomes of it would be in memory together.
        file = pq.ParquetFile(source)
        schema = file.schema_arrow
        missing = ", ".join(sorted(_REQUIRED - set(schema.names)))
        if missing:
            text = f"{source.name} is a Parquet file without the columns of a what-if trace ({missing})"
            raise NotATraceError(text)
        # Arrow numbers the texts of a plain column while it reads them.
        file = pq.ParquetFile(source, read_dictionary=["optype"])
        operators, operator = _operator_column(file)
        columns = {name: _integer_column(file, schema, name) for name in _INTEGERS}
        start, start_valid = _time_column(file, "start_ts")
        duration, valid = _time_column(file, "duration")
    except OSError as error:
        # Arrow reports a corrupt page as an OSError too.
        raise InputError(f"cannot read {source.name}: {str(error).splitlines()[0]}") from error
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise InputError(f"{source.name} is damaged: {str(error).splitlines()[0]}") from error
    if {len(start), len(duration), *map(len, columns.values())} != {len(operator)}:
        # A damaged footer counts more rows, or fewer, than a column has.
        raise InputError(f"{source.name} is damaged: its columns are of different lengths")
    valid &= start_valid & (duration >= 0) & (columns["step"] >= 0) & (operator >= 0) & (operator < len(operators))
    for name in ("dp_rank", "stage", "rank"):
        valid &= (columns[name] >= 0) & (columns[name] < MAX_RANKS)
    for name in ("mc", "gmc", "mb_id"):
        columns[name][(columns[name] < 0) | (columns[name] >= _MAX_NUMBER)] = -1
    bad = len(valid) - int(np.count_nonzero(valid))
    operations = WhatifOperations(**columns, operator=operator, start=start, duration=duration)
    return operators, operations.take(valid) if bad else operations, bad


def _column(file: pq.ParquetFile, name: str, kind: pa.DataType) -> pa.ChunkedArray:
    """A column, as it is or cast to `kind`. Raises InputError where it has another type."""
    column = file.read([name], use_threads=False)[name]
    try:
        # A cast, even to the same type, loads all of Arrow's functions, which takes 25 ms.
        return column if column.type == kind else column.cast(kind)
    except pa.ArrowException as error:
        raise InputError(f"a column of the what-if trace has another type: {error}") from error


def _operator_column(file: pq.ParquetFile) -> tuple[list[str], Int32s]:
    kind = file.schema_arrow.field("optype").type
    of_texts = pa.types.is_dictionary(kind) and kind.value_type in {pa.string(), pa.large_string()}
    column = _column(file, "optype", kind if of_texts else pa.string())
    column = (column if of_texts else column.dictionary_encode()).unify_dictionaries().combine_chunks()
    names = [name or "" for name in column.dictionary.to_pylist()]
    return names, filled(pa.chunked_array([column.indices])).astype(np.int32)


def _integer_column(file: pq.ParquetFile, schema: pa.Schema, name: str) -> Int32s:
    """Values that no int32 holds are absent, like those below 0."""
    if name not in schema.names:
        return np.full(file.metadata.num_rows, -1, np.int32)
    kind = schema.field(name).type
    column = _column(file, name, kind if pa.types.is_signed_integer(kind) else pa.int64())
    values = filled(column)
    if values.dtype.itemsize >= 4 and values.dtype != np.int32:
        values = np.where((values >= 0) & (values < 1 << 31), values, -1)
    return values.astype(np.int32)


def _time_column(file: pq.ParquetFile, name: str) -> tuple[Int64s, npt.NDArray[np.bool_]]:
    """Whole nanoseconds, and which of them are real."""
    kind = file.schema_arrow.field(name).type
    column = _column(file, name, kind if pa.types.is_floating(kind) else pa.float64())
    values = filled(column, np.nan).astype(np.float64)
    with np.errstate(invalid="ignore"):
        valid = np.abs(values) < _MAX_SECONDS
    return np.round(np.where(valid, values, 0) * 1e9).astype(np.int64), valid
