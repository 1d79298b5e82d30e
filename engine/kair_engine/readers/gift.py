"""Reads output of `kair donate`: fragments of the operations table under pseudonyms, one per file of an archive."""

import io
from dataclasses import replace
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kair_engine.errors import InputError
from kair_engine.readers.blocks import open_file
from kair_engine.readers.paths import MAX_RANKS
from kair_engine.trace.format import KINDS, PHASES, SCHEMA, read_metadata, write_fragment
from kair_engine.trace.model import GIFT, FragmentInfo


def read_gift(source: Path, out: Path, *, rank_hint: int | None = None) -> FragmentInfo:
    """Write one file of a gift as the fragment `out`, and return its description. Its ranks are known, whatever the
    hint.
    """
    del rank_hint
    with open_file(source) as opened:
        content = opened.read()[len(GIFT) :]
    try:
        info, tables = _parts(content)
    except (pa.ArrowException, OSError, ValueError, RecursionError) as error:
        raise InputError(f"{source.name} is damaged: {' '.join(str(error).split())[:200]}") from error
    info = replace(info, source=str(source))
    write_fragment(out, tables, info)
    return info


def _parts(content: bytes) -> tuple[FragmentInfo, list[pa.Table]]:
    """Return the fragment's description and its row groups.

    Raises ValueError, or Arrow's errors, for damaged ones.
    """
    file = pq.ParquetFile(io.BytesIO(content))
    if not file.schema_arrow.equals(SCHEMA):
        raise ValueError("its columns are not those of an operations table")
    info = msgspec.convert(read_metadata(io.BytesIO(content)), FragmentInfo, str_keys=True)
    return info, [_sound(file.read_row_group(number), info) for number in range(file.num_row_groups)]


def _sound(table: pa.Table, info: FragmentInfo) -> pa.Table:
    """Return the table. Raises ValueError for rows that no reader writes: a gift is untrusted."""
    table.validate(full=True)
    if any(table[of.name].null_count for of in SCHEMA if not of.nullable):
        raise ValueError("a value is missing")
    for column, known in (("kind", KINDS), ("phase", PHASES)):
        if not {*pc.unique(table[column].cast(pa.string())).to_pylist()} <= {None, *known}:
            raise ValueError(f"a {column} is not known")
    ranks = {*pc.unique(table["rank"]).to_pylist()}
    if not ranks <= {*info.ranks} or any(not 0 <= rank < MAX_RANKS for rank in info.ranks):
        raise ValueError("a rank is not one of its own")
    if len(table) and (pc.min(table["duration_ns"]).as_py() < 0 or pc.min(table["step"]).as_py() < 0):
        raise ValueError("a number is below 0")
    return table
