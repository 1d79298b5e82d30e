"""Defines the operations table: its columns, and the Parquet fragment that holds it.

Needs only pyarrow: capture writes fragments inside training jobs, without polars.
"""

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from kair_engine.trace.files import create_file, unwritten_name
from kair_engine.trace.json_text import encode_json

KINDS: Final = (
    "compute",
    "collective",
    "send",
    "recv",
    "memory",
    "input",
    "host",
    "sync",
    "gc",
    "scope",
)
PHASES: Final = ("forward", "backward", "optimizer", "input")

# Every (rank, step) has one row of kind `scope` with this name: the step's own begin and duration on that rank.
STEP_SCOPE: Final = "step"
QUEUE_FULL: Final = "launch queue full"
"""The wait of a launch while too many before it are unfinished: readers separate it from the call."""
INSIDE_UNKNOWN: Final = "(inside not recorded)"
"""Ends the name of a CUDA graph with only begin and end recorded: its operations may have waited."""

# A lane is a device's queue or a host's thread, as its prefix shows.
STREAM_PREFIX: Final = "stream "
THREAD_PREFIX: Final = "thread "

MAX_NAME_LENGTH: Final = 1000

_DICTIONARY = pa.dictionary(pa.int32(), pa.string())

SCHEMA: Final = pa.schema(
    [
        pa.field("step", pa.int32(), nullable=False),
        pa.field("rank", pa.int32(), nullable=False),
        pa.field("lane", _DICTIONARY, nullable=False),
        pa.field("name", _DICTIONARY, nullable=False),
        pa.field("kind", _DICTIONARY, nullable=False),
        pa.field("phase", _DICTIONARY),
        pa.field("occurrence", pa.int32(), nullable=False),
        pa.field("start_ns", pa.int64(), nullable=False),
        pa.field("duration_ns", pa.int64(), nullable=False),
        pa.field("group", _DICTIONARY),
        pa.field("group_seq", pa.int64()),
        pa.field("bytes", pa.int64()),
        # The dimensions of an operator's inputs on a thread: `2048,1408;8` for two tensors.
        pa.field("inputs", _DICTIONARY),
        pa.field("peer", pa.int32()),
        pa.field("microbatch", pa.int32()),
        pa.field("chunk", pa.int32()),
        pa.field("correlation", pa.int64()),
    ]
)

_ENCODINGS: Final = {
    **dict.fromkeys(("start_ns", "correlation", "group_seq"), "DELTA_BINARY_PACKED"),
    # Small, uncorrelated integers: byte-stream split groups the zero high bytes.
    **dict.fromkeys(("duration_ns", "occurrence"), "BYTE_STREAM_SPLIT"),
}
_COMPRESSED: Final = frozenset(
    ("step", "rank", "name", "kind", "occurrence", "start_ns", "duration_ns", "bytes", "correlation")
)
"""The others are small when encoded; compressing each column of a row group takes as long as encoding it.

With LZ4, writing takes five sixths of the time, and files are a sixth larger, than with Zstandard."""
_DICTIONARY_COLUMNS: Final = ("lane", "name", "kind", "phase", "group", "inputs")
ROWS_AT_A_TIME: Final = 1 << 14
"""Rows of a row group: with a few hundred, each row takes several times as long to write and to read."""
_METADATA_KEY: Final = b"kair"


class FragmentWriter:
    """Writes one Parquet fragment; the file appears whole on `commit`, or never.

    Used as a context manager: leaving it without `commit` (an error, a full disk, an interrupt) removes what
    was written. Rows are expected in the table's order, (step, rank, lane, start), within each call of `write`. Its
    tables are row groups, small ones several together. All methods raise OSError when the disk is full.
    """

    def __init__(self, path: Path, *, compressed: bool = True) -> None:
        self.path = path
        self._temporary = unwritten_name(path)
        self._writer: pq.ParquetWriter | None = None
        self._held: list[pa.Table] = []
        os.close(create_file(self._temporary))
        try:
            self._writer = pq.ParquetWriter(
                self._temporary,
                SCHEMA,
                compression={name: "lz4" if compressed and name in _COMPRESSED else "none" for name in SCHEMA.names},
                write_batch_size=ROWS_AT_A_TIME,
                use_dictionary=list(_DICTIONARY_COLUMNS),
                column_encoding=_ENCODINGS,
                write_statistics=["step", "rank"],
            )
        except OSError:
            # On a full disk the file exists before its first bytes are refused.
            self.__exit__()
            raise

    def write(self, table: pa.Table) -> None:
        """Append `table` (columns of SCHEMA), whose rows stay in one row group."""
        # A cast loads all of Arrow's functions, which takes 25 ms.
        table = table if table.schema.equals(SCHEMA) else table.cast(SCHEMA)
        if sum(map(len, self._held)) + len(table) > ROWS_AT_A_TIME:
            self._write_held()
        self._held.append(table)

    def commit(self, metadata: object) -> None:
        """Close the file, add `metadata` as JSON, and move it to its place."""
        self._write_held()
        assert self._writer is not None
        self._writer.add_key_value_metadata({_METADATA_KEY: encode_json(metadata)})
        self._writer.close()
        self._writer = None
        self._temporary.replace(self.path)

    def _write_held(self) -> None:
        assert self._writer is not None
        tables, self._held = self._held, []
        if tables:
            whole = tables[0] if len(tables) == 1 else pa.concat_tables(tables).unify_dictionaries().combine_chunks()
            self._writer.write_table(whole, row_group_size=max(len(whole), 1))

    def __enter__(self) -> "FragmentWriter":
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            # Closing writes the footer, which fails again on a full disk; the file is removed either way.
            with suppress(OSError, pa.ArrowException):
                self._writer.close()
            self._writer = None
        with suppress(FileNotFoundError):
            self._temporary.unlink()


def write_fragment(path: Path, tables: Iterable[pa.Table], metadata: object) -> None:
    """Write one fragment of `tables`, whole or not at all."""
    with FragmentWriter(path) as writer:
        for table in tables:
            writer.write(table)
        writer.commit(metadata)


def read_metadata(path: Path | IO[bytes]) -> dict[str, Any] | None:
    """Return the metadata from `commit`, or None if `path` is a Parquet file but no fragment."""
    raw = (pq.read_metadata(path).metadata or {}).get(_METADATA_KEY)
    if raw is None:
        return None
    value = json.loads(raw)
    return value if isinstance(value, dict) else None
