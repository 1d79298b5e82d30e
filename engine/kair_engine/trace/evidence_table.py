"""The evidence table: telemetry, logs and schedulers' records of hosts, devices, links and processes.

A row is a reading (a gauge, a counter's value, a state) or an event. Readers translate a source's names and units to
those of MEASURES, so that conclusions do not depend on the source.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kair_engine.errors import InputError
from kair_engine.frozen import dataclass
from kair_engine.trace.evidence_time import JobTime
from kair_engine.trace.files import modes_below, whole_file
from kair_engine.trace.measures import MEASURES, SAMPLED, EvidenceSource, shown

if TYPE_CHECKING:
    import polars as pl

SCHEMA: Final = pa.schema(
    [
        pa.field("time_ns", pa.int64(), nullable=False),  # Unix, by the clock of the measuring host
        pa.field("host", pa.dictionary(pa.int32(), pa.string())),  # null if the source does not state it
        pa.field("entity", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("rank", pa.int32()),  # if the source itself states one
        pa.field("source", pa.int32(), nullable=False),  # index into the list of sources
        pa.field("name", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("value", pa.float64()),
        pa.field("text", pa.dictionary(pa.int32(), pa.string())),
        pa.field("raw", pa.dictionary(pa.int32(), pa.string())),  # `file:line`, where to look it up
    ]
)


class EvidenceRows:
    """Collects rows of one or several sources, column by column."""

    def __init__(self) -> None:
        self._columns: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}

    def __len__(self) -> int:
        return len(self._columns["time_ns"])

    def add(
        self,
        time_ns: int,
        entity: str,
        name: str,
        value: float | None = None,
        *,
        host: str | None = None,
        rank: int | None = None,
        text: str | None = None,
        raw: str | None = None,
        source: int = 0,
    ) -> None:
        """Append a row; texts are cleaned (`shown`). Raises KeyError for a name that MEASURES does not have."""
        MEASURES[name]
        row = (
            time_ns,
            None if host is None else shown(host),
            shown(entity),
            rank,
            source,
            name,
            value,
            None if text is None else shown(text),
            None if raw is None else shown(raw),
        )
        for column, entry in zip(self._columns.values(), row, strict=True):
            column.append(entry)

    def table(self) -> pa.Table:
        """Return the added rows, in order of time."""
        return pa.table(self._columns, schema=SCHEMA).sort_by("time_ns")


@dataclass(frozen=True)
class NamedDevice:
    """All names that a source gives one device: its rows use one of them, which may not be the one a rank has."""

    entity: str
    """The name in rows: `gpu:GPU-5f3e…`."""
    host: str | None = None
    address: str | None = None
    """Its PCI address, as `pci_address` spells it."""
    index: int | None = None
    """The driver's number of the device on its host."""


@dataclass(frozen=True)
class EvidenceFile:
    """The content of one file of evidence: rows (SCHEMA), and the sources that `source` indexes."""

    table: pa.Table
    sources: tuple[EvidenceSource, ...]
    parts: tuple[str, ...] = ()
    """Names of files next to it whose rows it contains: readers skip these if they find them."""
    devices: tuple[NamedDevice, ...] = ()
    """Devices with more names than their rows use."""


def frame_of(table: pa.Table) -> "pl.DataFrame":
    """Return the table, or columns of it, as a polars frame for searches."""
    import polars as pl  # takes 70 ms, which a job without evidence saves

    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame


MOST_ROWS: Final = 20_000_000
"""Rows of one file: they take 2.5 GB in memory, and a sampler's file has 20,000."""
MOST_BYTES: Final = 2 << 30
"""Of one file, uncompressed."""
_ROWS_A_GROUP: Final = 1 << 16
"""Rows that are read or skipped together."""
_LONGEST_S: Final = 1e9
"""Limit of a source's bound, interval and holding time: longer ones are damage."""
METADATA_KEY: Final = b"kair.evidence"
_PARTS_KEY: Final = b"kair.evidence.parts"
_DEVICES_KEY: Final = b"kair.evidence.devices"
_NAMES: Final = pa.array(list(MEASURES))


def write_evidence(path: Path, evidence: EvidenceFile) -> None:
    """Write a file of evidence, whole or not at all. Raises OSError."""
    described = json.dumps([asdict(one) for one in evidence.sources]).encode()
    parts = {_PARTS_KEY: json.dumps(evidence.parts).encode()} if evidence.parts else {}
    named = [asdict(one) for one in evidence.devices]
    devices = {_DEVICES_KEY: json.dumps(named).encode()} if named else {}
    table = evidence.table.replace_schema_metadata({METADATA_KEY: described, **parts, **devices})
    with whole_file(path, modes_below(path.parent)) as file:
        pq.write_table(table, file, compression="zstd", use_dictionary=True, row_group_size=_ROWS_A_GROUP)


def read_evidence(path: Path, when: JobTime | None = None) -> EvidenceFile:
    """Return the content written by `write_evidence`, with `when` only the rows that matter to a job of that time.

    The sources describe the whole file. Raises InputError for any other file.
    """
    try:
        # Given only names, Arrow would open each of thousands of files as a data set: three times as long.
        with pa.OSFile(str(path)) as file:
            stored = pq.ParquetFile(file)
            metadata = stored.schema_arrow.metadata or {}
            described = metadata.get(METADATA_KEY)
            if described is None:
                raise ValueError("it says nothing of its sources")
            sources = msgspec.json.decode(described, type=tuple[EvidenceSource, ...])
            _require_possible(sources)
            time = None if when is None else when.around(sources)
            groups = _groups(stored.metadata, time)
            _require_bounded(stored.metadata, groups)
            table = stored.read_row_groups(groups, use_threads=False)
        named = msgspec.json.decode(metadata.get(_PARTS_KEY, b"[]"), type=tuple[str, ...])
        # Only names in the same folder: parts are skipped and removed.
        parts = tuple(name for name in named if name.endswith(".parquet") and "/" not in name)
        devices = msgspec.json.decode(metadata.get(_DEVICES_KEY, b"[]"), type=tuple[NamedDevice, ...])
        table = table.select(SCHEMA.names).cast(SCHEMA)
        table.validate(full=True)
        table = _within(table, time)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, KeyError, RecursionError, pa.ArrowException) as error:
        raise InputError(f"{path} is no file of evidence: {' '.join(str(error).split())[:200]}") from error
    names = table["name"].cast(pa.string())
    of_source = pc.and_(pc.greater_equal(table["source"], 0), pc.less(table["source"], len(sources)))
    is_whole = pc.and_(pc.is_valid(table["time_ns"]), pc.is_valid(table["entity"]))
    is_number = pc.fill_null(pc.is_finite(table["value"]), True)  # an event needs no value
    fit = pc.and_(pc.and_(pc.is_in(names, value_set=_NAMES), is_number), pc.and_(of_source, is_whole))
    is_all = pc.all(fit, min_count=0).as_py()
    return EvidenceFile(table if is_all else table.filter(fit), sources, parts, devices)


def within(evidence: EvidenceFile, when: JobTime | None) -> EvidenceFile:
    """Return the evidence with only the rows that matter to a job of that time; the sources stay unchanged."""
    time = None if when is None else when.around(evidence.sources)
    return evidence if time is None else replace(evidence, table=_within(evidence.table, time))


def _within(table: pa.Table, time: JobTime | None) -> pa.Table:
    if time is None or not len(table):
        return table
    at = table["time_ns"]
    kept = pc.and_(pc.greater_equal(at, pa.scalar(time.begin_ns)), pc.less_equal(at, pa.scalar(time.end_ns)))
    return table if pc.all(kept, min_count=0).as_py() else table.filter(kept)


def _groups(described: pq.FileMetaData, time: JobTime | None) -> list[int]:
    """Return the row groups that may have rows of that time."""
    groups = range(described.num_row_groups)
    return [at for at in groups if time is None or _may_meet(described.row_group(at), time)]


def _may_meet(group: pq.RowGroupMetaData, time: JobTime) -> bool:
    """Return whether a group may have rows of that time, by its statistics."""
    for one in map(group.column, range(group.num_columns)):
        if one.path_in_schema == "time_ns" and one.is_stats_set and one.statistics.has_min_max:
            first, last = one.statistics.min, one.statistics.max
            return not (isinstance(first, int) and isinstance(last, int)) or time.meets(first, last)
    return True


def _require_bounded(described: pq.FileMetaData, groups: Iterable[int]) -> None:
    """Raise ValueError for row groups that are larger uncompressed than evidence can be."""
    read = [described.row_group(at) for at in groups]
    rows, size = sum(one.num_rows for one in read), sum(one.total_byte_size for one in read)
    if rows > MOST_ROWS or size > MOST_BYTES:
        raise ValueError(f"it has {rows:,} rows, and {MOST_ROWS:,} at most are read of a file")


def _require_possible(sources: Iterable[EvidenceSource]) -> None:
    """Raise ValueError for times that no source can have."""
    for one in sources:
        times = [time for time in (one.bound_s, one.interval_s, one.holds_s) if time is not None]
        if not all(0 <= time <= _LONGEST_S for time in times):
            raise ValueError("the times of a source cannot be")


def together(files: Iterable[EvidenceFile]) -> EvidenceFile:
    """Return all files as one: sources are renumbered, and the many files of one sampler become one source."""
    tables: list[pa.Table] = []
    sources: list[EvidenceSource] = []
    devices: dict[NamedDevice, None] = {}
    place: dict[tuple[object, ...], int] = {}
    at = SCHEMA.get_field_index("source")
    for one in files:
        number = np.zeros(max(len(one.sources), 1), np.int32)
        for own, source in enumerate(one.sources):
            key = (source.kind, source.name, source.clock, source.hosts)
            if source.kind == SAMPLED and key in place:
                number[own] = place[key]
                sources[place[key]] = _joined(sources[place[key]], source)
            else:
                number[own] = place[key] = len(sources)
                sources.append(source)
        devices |= dict.fromkeys(one.devices)
        numbers = pa.array(number[one.table["source"].to_numpy()], pa.int32())
        tables.append(one.table.set_column(at, SCHEMA.field("source"), numbers))
    table = pa.concat_tables([SCHEMA.empty_table(), *tables]).unify_dictionaries()
    return EvidenceFile(table.sort_by("time_ns"), tuple(sources), devices=tuple(devices))


def _joined(one: EvidenceSource, other: EvidenceSource) -> EvidenceSource:
    """Return the source of two files that a sampler wrote one after another, possibly with a longer interval."""
    first = [time for time in (one.first_ns, other.first_ns) if time is not None]
    last = [time for time in (one.last_ns, other.last_ns) if time is not None]
    intervals = [time for time in (one.interval_s, other.interval_s) if time is not None]
    held = [time for time in (one.holds_s, other.holds_s) if time is not None]
    bounds = [time for time in (one.bound_s, other.bound_s) if time is not None]
    return replace(
        one,
        first_ns=min(first, default=None),
        last_ns=max(last, default=None),
        interval_s=max(intervals, default=None),
        holds_s=max(held, default=None),
        bound_s=max(bounds, default=None),
        gaps=one.gaps + other.gaps,
        longest_gap_s=max(one.longest_gap_s, other.longest_gap_s),
        rows=one.rows + other.rows,
        passed_over=one.passed_over + other.passed_over,
        notes=tuple(dict.fromkeys((*one.notes, *other.notes))),
    )


def described(rows: EvidenceRows | pa.Table, source: EvidenceSource) -> EvidenceFile:
    """Return the rows of one source (a table must be in order of time), with its times, interval and gaps filled in."""
    table = rows.table() if isinstance(rows, EvidenceRows) else rows
    if not len(table):
        return EvidenceFile(table, (source,))
    times = table["time_ns"].to_numpy()
    looked = np.unique(times)
    apart = np.diff(looked) / 1e9
    interval = source.interval_s
    kinds = {MEASURES[name].kind for name in pc.unique(table["name"].cast(pa.string())).to_pylist()}
    if interval is None and len(apart) and kinds & {"gauge", "counter", "state"}:
        interval = float(np.median(apart))
    gaps = apart[apart > 3 * interval] if interval else apart[:0]
    completed = replace(
        source,
        interval_s=interval,
        first_ns=int(times[0]),
        last_ns=int(times[-1]),
        gaps=len(gaps),
        longest_gap_s=float(gaps.max()) if len(gaps) else 0.0,
        rows=len(table),
    )
    return EvidenceFile(table, (completed,))
