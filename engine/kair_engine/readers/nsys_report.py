"""Reads the processes of a report that use a GPU, with their operations as columns.

The exported report is opened as a read-only database: no file is written, and nothing in it is executed.
"""

import sqlite3
from array import array
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from kair_engine.errors import InputError
from kair_engine.readers.formats import NotATraceError
from kair_engine.readers.fragment_writer import Codes
from kair_engine.readers.nsys_communicators import Calls, Schemas, call_of, schemas_of
from kair_engine.trace.columns import Int64s
from kair_engine.trace.format import INSIDE_UNKNOWN

_READ: Final = ("CUPTI_", "NVTX_", "TARGET_INFO", "META_DATA", "StringIds", "ThreadNames", "PROFILER_", "ENUM_CUPTI_")
_ROWS_AT_A_TIME: Final = 4096
_LONGEST_TEXT: Final = 1 << 20
_MOST_ROWS: Final = 200_000_000

Column = tuple[Any, ...]
"""One column's values, of any type, because SQLite does not enforce types."""


class Report:
    """The tables of one export."""

    def __init__(self, connection: sqlite3.Connection, tables: dict[str, frozenset[str]]) -> None:
        self._connection = connection
        self._tables = tables

    def has(self, table: str, *columns: str) -> bool:
        """Return whether the table exists with these columns."""
        return table in self._tables and self._tables[table].issuperset(columns)

    def rows(self, table: str, wanted: Sequence[str], optional: Sequence[str] = ()) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a table, `wanted` columns and then `optional` ones (None if the export lacks them).

        Nothing if the table or a wanted column is missing.
        """
        for some in self._some_rows(table, wanted, optional):
            yield from some

    def columns(self, table: str, wanted: Sequence[str], optional: Sequence[str] = ()) -> Iterator[list[Column]]:
        """Yield the rows some thousand at a time, as one tuple per column."""
        for some in self._some_rows(table, wanted, optional):
            yield list(zip(*some, strict=True))

    def _some_rows(self, table: str, wanted: Sequence[str], optional: Sequence[str]) -> Iterator[list[tuple[Any, ...]]]:
        if not self.has(table, *wanted):
            return
        chosen = [*wanted, *(name if self.has(table, name) else "NULL" for name in optional)]
        # Names come from this module's callers, never from the file.
        cursor = self._connection.execute(f'SELECT {", ".join(chosen)} FROM "{table}"')
        for _ in range(_MOST_ROWS // _ROWS_AT_A_TIME):
            some = cursor.fetchmany(_ROWS_AT_A_TIME)
            if not some:
                return
            yield some


@contextmanager
def opened(source: Path) -> Iterator[Report]:
    """Open the report in `source`, until the block ends.

    Raises NotATraceError if it is another database, InputError if it or its tables are damaged.
    """
    try:
        # Immutable: no journal is read or left behind, whatever lies next to the file.
        connection = sqlite3.connect(f"file:{quote(str(source.absolute()))}?mode=ro&immutable=1", uri=True)
    except sqlite3.Error as error:
        raise InputError(f"cannot read {source}: {error}") from error
    try:
        yield Report(connection, _tables(connection, source))
    except (sqlite3.Error, UnicodeDecodeError) as error:
        # Names of damaged tables are decoded before they can be replaced.
        text = f"{source.name} is damaged: {' '.join(str(error).split())[:200]}"
        raise InputError(text, "export it again: nsys export --type sqlite") from error
    finally:
        connection.close()


def _tables(connection: sqlite3.Connection, source: Path) -> dict[str, frozenset[str]]:
    """Return the tables with their columns. Computed tables (views) are no part of an export."""
    connection.text_factory = lambda text: text.decode("utf-8", "replace")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_TEXT * 64)
    for pragma in ("trusted_schema = OFF", "cell_size_check = ON", "mmap_size = 0", "query_only = ON"):
        connection.execute(f"PRAGMA {pragma}")
    found: dict[str, frozenset[str]] = {}
    for kind, name, made_by in connection.execute("SELECT type, name, sql FROM sqlite_master").fetchmany(10_000):
        if not isinstance(name, str) or not name.replace("_", "").isalnum():
            continue
        if kind == "view" or (kind == "table" and str(made_by).upper().startswith("CREATE VIRTUAL")):
            if name.startswith(_READ):
                text = f"in {source.name} {name} is a {kind} made by somebody else than Nsight Systems"
                raise InputError(text, "export the report again: nsys export --type sqlite")
        elif kind == "table":
            columns = connection.execute(f'PRAGMA table_xinfo("{name}")').fetchmany(1000)
            # Hidden and generated columns are computed when they are read.
            found[name] = frozenset(column[1] for column in columns if column[6] == 0)
    if not any(name.startswith(("CUPTI_ACTIVITY_KIND", "NVTX_EVENTS", "TARGET_INFO")) for name in found):
        raise NotATraceError("it is a database of something else than Nsight Systems")
    return found


NONE: Final = -(1 << 63)
"""Not a number, or not recorded."""
_THREAD_BITS: Final = 24
_RANGES: Final = (59, 60)  # pushed and popped, started and ended
_MARKS: Final = (34, 39, 75)
_COPIES: Final = {1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}
_KERNEL: Final = "kernel"
_OVERHEADS: Final = ("PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_OVERHEAD")
_OF_THE_JOB: Final = ("load", "compil", "command buffer")
_OF_PROFILER: Final = {"flush": "Buffer Flush", "request": "Activity Buffer Request", "resource": "Resource"}
_ON_DEVICE: Final = ("start", "end", "deviceId", "streamId", "correlationId")


@dataclass(frozen=True)
class _Columns:
    """Rows as columns of equal length."""

    process: Int64s
    """The process, by its id in the report (globalPid)."""
    start: Int64s
    end: Int64s
    correlation: Int64s
    """Links a call to the operations that it launched, or NONE."""
    name: Int64s
    """Index into the report's list of names."""

    def where(self, chosen: npt.NDArray[np.bool_] | Int64s) -> Self:
        """Return the chosen rows."""
        return type(self)(*(getattr(self, one.name)[chosen] for one in fields(self)))

    def by_process(self) -> dict[int, Self]:
        """Return the rows of each process, in their order."""
        order = np.argsort(self.process, kind="stable")
        bounds = np.flatnonzero(np.diff(self.process[order])) + 1
        return {int(self.process[some[0]]): self.where(some) for some in np.split(order, bounds) if len(some)}

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return all rows, part after part."""
        empty = np.empty(0, np.int64)
        return cls(*(np.concatenate([empty, *(getattr(part, one.name) for part in parts)]) for one in fields(cls)))


@dataclass(frozen=True)
class DeviceRows(_Columns):
    """Kernels and graphs, then copies."""

    device: Int64s
    stream: Int64s
    size: Int64s
    """Bytes, or NONE."""
    is_copy: Int64s


@dataclass(frozen=True)
class HostRows(_Columns):
    """Calls, ranges and the profiler's own work on threads."""

    thread: Int64s
    is_range: Int64s
    is_overhead: Int64s


@dataclass
class Process:
    """One process: a rank. Times in ns."""

    number: int
    """Its id in the report (globalPid)."""
    names: Sequence[str]
    """The report's list of names."""
    device: DeviceRows
    host: HostRows
    said: set[str] = field(default_factory=set)
    """Marks without a length, and names of its threads: they may contain its rank."""
    nccl: Calls = field(default_factory=Calls)
    """Details from the payloads of NCCL's ranges, if exported."""

    @property
    def pid(self) -> int:
        """The process id on its host."""
        return self.number >> _THREAD_BITS & 0xFFFFFF


class _Texts(dict[int, str]):
    def __missing__(self, key: int) -> str:
        return ""


class _Found(dict[Hashable, int]):
    """Description of a name in rows → the name's number: each name is made only once."""

    def __init__(self, names: Codes, name_of: Callable[[Any], str]) -> None:
        super().__init__()
        self._names, self._name_of = names, name_of

    def __missing__(self, key: Hashable) -> int:
        self[key] = self._names[self._name_of(key)]
        return self[key]

    def of(self, keys: Iterable[Hashable]) -> Int64s:
        return np.array([self[key] for key in keys], np.int64)


def processes_of(report: Report) -> list[Process]:
    """Return the processes with kernels or copies, by their process ids."""
    texts = _Texts(
        (number, value)
        for number, value in report.rows("StringIds", ("id", "value"))
        if isinstance(number, int) and isinstance(value, str)
    )
    names = Codes()
    kernels = DeviceRows.joined(list(_kernels(report, texts, names)))
    device = DeviceRows.joined([kernels, *_graphs(report, names, kernels), *_copies(report, names)])
    if not len(device.start):
        return []
    numbers = in_order(device.process)
    only = numbers == [0]
    nccl: defaultdict[int, Calls] = defaultdict(Calls)
    ranges, marks = _ranges(report, texts, names, nccl, only=only)
    calls = _calls(report, texts, names, only=only)
    host = HostRows.joined([*calls, *ranges, *_overheads(report, texts, names, only=only)])
    of_device, of_host, nothing = device.by_process(), host.by_process(), HostRows.joined([])
    found = {
        number: Process(
            number, names.texts, of_device[number], of_host.get(number, nothing), nccl=nccl.get(number, Calls())
        )
        for number in numbers
    }
    for number, name in marks:
        if number in found:
            found[number].said.add(names.texts[name])
    for name, thread in report.rows("ThreadNames", ("nameId", "globalTid")):
        if isinstance(thread, int) and (process := found.get(thread >> _THREAD_BITS << _THREAD_BITS)) is not None:
            process.said.add(texts[name])
    return sorted(found.values(), key=lambda process: process.pid)


def in_order(values: Int64s) -> list[int]:
    """Return each value once, in the order of first use."""
    return list(dict.fromkeys(values[np.flatnonzero(np.diff(values, prepend=~values[:1]))].tolist()))


def _kernels(report: Report, texts: _Texts, names: Codes) -> Iterable[DeviceRows]:
    found = _Found(names, lambda pair: texts[pair[0]] or texts[pair[1]] or _KERNEL)
    optional = ("demangledName", "shortName", "globalPid")
    for *numbers, name, short, owner in report.columns("CUPTI_ACTIVITY_KIND_KERNEL", _ON_DEVICE, optional):
        yield _device_rows(numbers, found.of(zip(name, short, strict=True)), owner, None)


def _graphs(report: Report, names: Codes, kernels: DeviceRows) -> Iterable[DeviceRows]:
    """Yield CUDA graphs recorded as a whole (`nsys profile --cuda-graph-trace=graph`), one row per launch.

    Launches whose kernels are recorded, too, are left out.
    """
    found = _Found(names, lambda number: f"CUDA graph {number} {INSIDE_UNKNOWN}".replace(" None ", " "))
    inside = {
        number: rows.correlation for number, rows in kernels.where(kernels.correlation != NONE).by_process().items()
    }
    optional = ("graphId", "globalPid")
    for *numbers, graph, owner in report.columns("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", _ON_DEVICE, optional):
        name = found.of(number if isinstance(number, int) else None for number in graph)
        # CUPTI writes 0 for times that it could not collect.
        rows = _device_rows(numbers, name, owner, None)
        rows = rows.where((rows.start > 0) & (rows.end > rows.start))
        for number, known in inside.items():
            rows = rows.where((rows.process != number) | ~np.isin(rows.correlation, known))
        yield rows


def _copies(report: Report, names: Codes) -> Iterable[DeviceRows]:
    found = _Found(names, lambda kind: f"Memcpy {_COPIES.get(kind, '')}".rstrip())
    wanted = (*_ON_DEVICE, "bytes")
    for *numbers, size, kind, owner in report.columns("CUPTI_ACTIVITY_KIND_MEMCPY", wanted, ("copyKind", "globalPid")):
        yield _device_rows(numbers, found.of(kind), owner, size)
    for *numbers, size, owner in report.columns("CUPTI_ACTIVITY_KIND_MEMSET", wanted, ("globalPid",)):
        name = np.full(len(size), names["Memset (Device)"])
        yield _device_rows(numbers, name, owner, size)


def _device_rows(numbers: Sequence[Column], name: Int64s, owner: Column, size: Column | None) -> DeviceRows:
    start, end, device, stream, correlation = map(_whole, numbers)
    rows = DeviceRows(
        process=_process_of(_whole(owner)),
        start=start,
        end=end,
        correlation=correlation,
        name=name,
        device=device,
        stream=stream,
        size=np.full(len(name), NONE) if size is None else _whole(size),
        is_copy=np.full(len(name), size is not None, np.int64),
    )
    return rows.where((start != NONE) & (end != NONE) & (device != NONE) & (stream != NONE))


def _whole(values: Column) -> Int64s:
    """Return the numbers of a column; NONE for other values."""
    try:
        return np.frombuffer(array("q", values), np.int64)
    except TypeError:
        return np.array([value if isinstance(value, int) else NONE for value in values], np.int64)


def _process_of(thread: Int64s) -> Int64s:
    """Return the process of thread or process numbers; exports before 2021 have none, and a single process."""
    return np.where(thread == NONE, 0, thread >> _THREAD_BITS << _THREAD_BITS)


def _calls(report: Report, texts: _Texts, names: Codes, *, only: bool) -> Iterable[HostRows]:
    # The version of the interface is no part of the name.
    found = _Found(names, lambda number: texts[number].partition("_v")[0] or "cuda call")
    wanted = ("start", "end", "globalTid", "correlationId", "nameId")
    for *numbers, name in report.columns("CUPTI_ACTIVITY_KIND_RUNTIME", wanted):
        start, end, thread, correlation = map(_whole, numbers)
        rows = _host_rows(start, end, thread, correlation, found.of(name), only=only)
        yield rows.where((start != NONE) & (end != NONE) & (thread != NONE))


def _overheads(report: Report, texts: _Texts, names: Codes, *, only: bool) -> Iterable[HostRows]:
    """Yield work of the profiler and the driver on the program's threads, under CUPTI's names."""
    sorts = {
        number: label
        for number, label in report.rows("ENUM_CUPTI_OVERHEAD_TYPE", ("id", "label"))
        if isinstance(number, int) and isinstance(label, str)
    }
    found = _Found(names, lambda said: _overhead_name(texts[said[0]], sorts.get(said[1], "")))
    wanted = ("start", "end", "globalTid", "nameId")
    for table in _OVERHEADS:
        for *numbers, name, sort in report.columns(table, wanted, ("overheadType",)):
            start, end, thread = map(_whole, numbers)
            of = found.of(zip(name, sort, strict=True))
            rows = _host_rows(start, end, thread, np.full(len(start), NONE), of, only=only, is_overhead=True)
            yield rows.where((start != NONE) & (end != NONE) & (thread != NONE))


def _overhead_name(name: str, sort: str) -> str:
    """Return CUPTI's name of an overhead from its name and its sort in the report.

    Loading and compiling code also happens without a profiler, and keeps its name.
    """
    both = f"{name} {sort}".lower()
    if any(word in both for word in _OF_THE_JOB):
        return sort or name
    return next((name for word, name in _OF_PROFILER.items() if word in both), "Instrumentation")


def nccl_schemas(report: Report) -> Schemas:
    """Return the schemas of the payloads that name NCCL's communicators."""
    wanted = ("domainId", "schemaId", "type", "name", "offset")
    return schemas_of(report.rows("NVTX_PAYLOAD_SCHEMA_ENTRIES", wanted))


def _ranges(
    report: Report, texts: _Texts, names: Codes, nccl: defaultdict[int, Calls], *, only: bool
) -> tuple[list[HostRows], set[tuple[int, int]]]:
    """Return the ranges, and the marks without a length as (process, name); `nccl` gets the calls of each process."""

    def name_of(said: tuple[object, object]) -> str:
        text, number = said
        return text if isinstance(text, str) and text else texts[number] if isinstance(number, int) else ""

    found, nameless = _Found(names, name_of), names[""]
    parts: list[HostRows] = []
    marks: set[tuple[int, int]] = set()
    schemas = nccl_schemas(report)
    wanted = ("start", "end", "eventType", "globalTid", "text")
    for columns in report.columns("NVTX_EVENTS", wanted, ("textId", "binaryData") if schemas else ("textId",)):
        start, end, kind, thread = map(_whole, columns[:4])
        name = found.of(zip(*columns[4:6], strict=True))
        for at, blob in enumerate(columns[6] if schemas else ()):
            if isinstance(blob, bytes) and end[at] != NONE and thread[at] != NONE:
                call = call_of(blob, schemas, int(start[at]), int(end[at]), names.texts[name[at]])
                if call is not None:
                    nccl[0 if only else int(_process_of(thread[at]))].add(int(thread[at]), call)
        rows = _host_rows(start, end, thread, np.full(len(start), NONE), name, only=only, is_range=True)
        good = (start != NONE) & (thread != NONE) & (name != nameless)
        parts.append(rows.where(good & (end != NONE) & np.isin(kind, _RANGES)))
        said = good & np.isin(kind, _MARKS)
        marks.update(zip(rows.process[said].tolist(), name[said].tolist(), strict=True))
    return parts, marks


def _host_rows(
    start: Int64s,
    end: Int64s,
    thread: Int64s,
    correlation: Int64s,
    name: Int64s,
    *,
    only: bool,
    is_range: bool = False,
    is_overhead: bool = False,
) -> HostRows:
    process = np.zeros(len(start), np.int64) if only else _process_of(thread)
    sorts = (np.full(len(start), of, np.int64) for of in (is_range, is_overhead))
    return HostRows(process, start, end, correlation, name, thread, *sorts)
