"""The columns of a what-if Parquet file: read, checked, times in whole nanoseconds."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kair_engine.errors import InputError
from kair_engine.readers.columns import Int64s
from kair_engine.readers.detect import NotATraceError
from kair_engine.readers.identity import MAX_RANKS

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
_MAX_NUMBER: Final = 1_000_000
"""Chunks and microbatches beyond are not numbered, whatever stands there."""


@dataclass
class WhatifOperations:
    """The valid rows, in columns; times in ns from each step's zero, -1 for absent."""

    dp_rank: Int64s
    stage: Int64s
    rank: Int64s
    step: Int64s
    operator: Int64s
    start: Int64s
    duration: Int64s
    seq_id: Int64s
    mc: Int64s
    gmc: Int64s
    mb_id: Int64s

    def take(self, rows: npt.NDArray[Any] | slice) -> "WhatifOperations":
        """The rows that a mask, an index or a slice selects."""
        return WhatifOperations(**{name: values[rows] for name, values in vars(self).items()})


def read_columns(source: Path) -> pa.Table:
    """The file's known columns. Raises NotATraceError where it has others, InputError where it is damaged."""
    try:
        file = pq.ParquetFile(source)
        missing = sorted(_REQUIRED - set(file.schema_arrow.names))
        if missing:
            columns = ", ".join(missing)
            text = f"{source.name} is a Parquet file without the columns of a what-if trace ({columns})"
            raise NotATraceError(text)
        return file.read([name for name in COLUMNS if name in file.schema_arrow.names])
    except pa.ArrowException as error:
        raise InputError(f"{source.name} is damaged: {str(error).splitlines()[0]}") from error
    except OSError as error:
        # Arrow reports a corrupt page as an OSError too.
        raise InputError(f"cannot read {source.name}: {str(error).splitlines()[0]}") from error


def valid_operations(table: pa.Table) -> tuple[list[str], WhatifOperations, int]:
    """Operator names, the valid rows, and how many rows had no valid time or identity."""
    try:
        columns = {name: _integer_column(table, name) for name in _INTEGERS}
        seconds = {name: _float_column(table, name) for name in ("start_ts", "duration")}
        encoded = pc.cast(table["optype"], pa.string()).combine_chunks().dictionary_encode()
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise InputError(f"a column of the what-if trace has another type: {error}") from error
    names = [name or "" for name in encoded.dictionary.to_pylist()]
    operator = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    start, duration = seconds["start_ts"], seconds["duration"]
    with np.errstate(invalid="ignore"):
        valid = (np.abs(start) < _MAX_SECONDS) & (duration >= 0) & (duration < _MAX_SECONDS) & (operator >= 0)
    for name, limit in (("dp_rank", MAX_RANKS), ("stage", MAX_RANKS), ("rank", MAX_RANKS), ("step", 1 << 31)):
        valid &= (columns[name] >= 0) & (columns[name] < limit)
    for name in ("mc", "gmc", "mb_id"):
        known = (columns[name] >= 0) & (columns[name] < _MAX_NUMBER)
        columns[name] = np.where(known, columns[name], -1)
    bad = int((~valid).sum())
    start, duration = np.where(valid, start, 0), np.where(valid, duration, 0)
    operations = WhatifOperations(
        **columns,
        operator=operator,
        start=np.round(start * 1e9).astype(np.int64),
        duration=np.round(duration * 1e9).astype(np.int64),
    )
    return names, operations.take(valid), bad


def _integer_column(table: pa.Table, name: str) -> Int64s:
    if name not in table.column_names:
        return np.full(len(table), -1)
    values: Int64s = pc.fill_null(pc.cast(table[name], pa.int64()), -1).to_numpy()
    return values


def _float_column(table: pa.Table, name: str) -> npt.NDArray[np.float64]:
    values: npt.NDArray[np.float64] = pc.fill_null(pc.cast(table[name], pa.float64()), np.nan).to_numpy()
    return values
