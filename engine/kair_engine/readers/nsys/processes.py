"""The processes of a report that use a GPU, and what each of them did."""

from array import array
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import numpy as np

from kair_engine.readers.columns import Int64s
from kair_engine.readers.kineto.classify import NameClass
from kair_engine.readers.kineto.classify import name_class_of as class_of
from kair_engine.readers.kineto.steps.phases import host_phases
from kair_engine.readers.nsys.database import Report
from kair_engine.readers.recorded import Rows
from kair_engine.readers.step_marks import Mark
from kair_engine.trace.format import PHASES

_THREAD_BITS: Final = 24
_PUSH_POP, _START_END, _MARK = 59, 60, 34
_EARLIER_MARKS: Final = frozenset((34, 39, 75))
_COPIES: Final = {1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}
# A report has few names, and each of them many times.
name_class_of: Final = lru_cache(1 << 14)(class_of)
_PHASE_CLASSES: Final = (NameClass.BACKWARD, NameClass.OPTIMIZER, NameClass.DATA_LOADER)


@dataclass
class HostRow:
    """One call or range on a thread; times in ns."""

    thread: int
    name: str
    start: int
    end: int
    is_range: bool
    correlation: int | None = None


@dataclass
class Process:
    """One process: a rank."""

    number: int
    """Its id of the report (globalPid)."""
    kernels: list[tuple[int, int, int, int, int | None, str]] = field(default_factory=list)
    """(start, end, device, stream, correlation, name)."""
    copies: list[tuple[int, int, int, int, int | None, str, int]] = field(default_factory=list)
    """The same with bytes."""
    host: list[HostRow] = field(default_factory=list)
    said: set[str] = field(default_factory=set)
    """Marks without a length, and names of its threads: they may say its rank."""

    @property
    def pid(self) -> int:
        """The process id on its host."""
        return self.number >> _THREAD_BITS & 0xFFFFFF


class _Texts(dict[int, str]):
    def __missing__(self, key: int) -> str:
        return ""


def processes_of(report: Report) -> list[Process]:
    """The processes with kernels or copies, by their process ids."""
    texts = _Texts(
        (number, value)
        for number, value in report.rows("StringIds", ("id", "value"))
        if isinstance(number, int) and isinstance(value, str)
    )
    found: dict[int, Process] = {}
    _read_device(report, texts, found)
    if found:
        _read_calls(report, texts, found)
        _read_ranges(report, texts, found)
        for number, thread in report.rows("ThreadNames", ("nameId", "globalTid")):
            if isinstance(thread, int) and (process := found.get(_process_of(thread))) is not None:
                process.said.add(texts[number])
    return sorted(found.values(), key=lambda process: process.pid)


def _process_of(thread: int) -> int:
    return thread >> _THREAD_BITS << _THREAD_BITS


def _read_device(report: Report, texts: _Texts, found: dict[int, Process]) -> None:
    common = ("start", "end", "deviceId", "streamId", "correlationId")
    for *numbers, name, short, owner in report.rows(
        "CUPTI_ACTIVITY_KIND_KERNEL", common, ("demangledName", "shortName", "globalPid")
    ):
        row = _whole(numbers)
        if row is not None:
            process = _owner(found, owner)
            process.kernels.append((*row, texts[name] or texts[short] or "kernel"))
    for *numbers, size, kind, owner in report.rows(
        "CUPTI_ACTIVITY_KIND_MEMCPY", (*common, "bytes"), ("copyKind", "globalPid")
    ):
        row = _whole(numbers)
        if row is not None:
            name = f"Memcpy {_COPIES.get(kind, '')}".rstrip()
            _owner(found, owner).copies.append((*row, name, size if isinstance(size, int) else -1))
    for *numbers, size, owner in report.rows("CUPTI_ACTIVITY_KIND_MEMSET", (*common, "bytes"), ("globalPid",)):
        row = _whole(numbers)
        if row is not None:
            _owner(found, owner).copies.append((*row, "Memset (Device)", size if isinstance(size, int) else -1))


def _whole(numbers: list[Any]) -> tuple[int, int, int, int, int | None] | None:
    start, end, device, stream, correlation = numbers
    if not all(isinstance(value, int) for value in (start, end, device, stream)):
        return None
    return start, end, device, stream, correlation if isinstance(correlation, int) else None


def _owner(found: dict[int, Process], number: object) -> Process:
    """The process of that number; exports before 2021 name none, and are of one."""
    key = _process_of(number) if isinstance(number, int) else 0
    return found.setdefault(key, Process(key))


def _read_calls(report: Report, texts: _Texts, found: dict[int, Process]) -> None:
    only = next(iter(found.values())) if list(found) == [0] else None
    for start, end, thread, correlation, name in report.rows(
        "CUPTI_ACTIVITY_KIND_RUNTIME", ("start", "end", "globalTid", "correlationId", "nameId")
    ):
        if not all(isinstance(value, int) for value in (start, end, thread)):
            continue
        process = only or found.get(_process_of(thread))
        if process is not None:
            number = correlation if isinstance(correlation, int) else None
            # The number of the interface's version is no part of the name.
            text = texts[name].partition("_v")[0] or "cuda call"
            process.host.append(HostRow(thread, text, start, end, is_range=False, correlation=number))


def _read_ranges(report: Report, texts: _Texts, found: dict[int, Process]) -> None:
    only = next(iter(found.values())) if list(found) == [0] else None
    for start, end, kind, thread, text, number in report.rows(
        "NVTX_EVENTS", ("start", "end", "eventType", "globalTid", "text"), ("textId",)
    ):
        name = text if isinstance(text, str) and text else texts[number] if isinstance(number, int) else ""
        if not isinstance(start, int) or not isinstance(thread, int) or not name:
            continue
        process = only or found.get(_process_of(thread))
        if process is None:
            continue
        if kind in (_PUSH_POP, _START_END) and isinstance(end, int):
            process.host.append(HostRow(thread, name, start, end, is_range=True))
        elif kind in _EARLIER_MARKS:
            process.said.add(name)


def main_thread(process: Process) -> int:
    """The thread that marks most ranges, else that calls most: the one that runs the training loop."""
    score: dict[int, tuple[int, int]] = {}
    for row in process.host:
        ranges, calls = score.get(row.thread, (0, 0))
        score[row.thread] = (ranges + row.is_range, calls + 1)
    return max(score, key=lambda thread: score[thread], default=0)


def marks_of(process: Process, thread: int) -> list[Mark]:
    """The ranges of its main thread, which may be steps."""
    return [Mark(row.name, row.start, row.end) for row in process.host if row.is_range and row.thread == thread]


def rows_of(process: Process, base: int, thread: int) -> Rows:
    """All rows of a process, `base` ns later than the report has them."""
    rows = Rows()
    phases = _host_phases(process, thread)
    launched: dict[int, tuple[int, str | None]] = {}
    for row, phase in zip(process.host, phases, strict=True):
        _add_host(rows, row, base, phase)
        if row.correlation is not None:
            launched[row.correlation] = (row.start, phase)
    several = len({one[2] for one in (*process.kernels, *process.copies)}) > 1
    for start, end, device, stream, correlation, name in process.kernels:
        moment, phase = launched.get(correlation, (start, None)) if correlation is not None else (start, None)
        lane = f"stream {device}/{stream}" if several else f"stream {stream}"
        rows.add(
            lane,
            name,
            _kernel_kind(name),
            start + base,
            end - start,
            phase=phase,
            correlation=correlation,
            moment=moment + base,
        )
    for start, end, device, stream, correlation, name, size in process.copies:
        moment, phase = launched.get(correlation, (start, None)) if correlation is not None else (start, None)
        lane = f"stream {device}/{stream}" if several else f"stream {stream}"
        rows.add(
            lane,
            name,
            "memory",
            start + base,
            end - start,
            phase=phase,
            correlation=correlation,
            size=size,
            moment=moment + base,
        )
    return rows


def _kernel_kind(name: str) -> str:
    if name_class_of(name) is not NameClass.DEVICE_COLLECTIVE:
        return "compute"
    # Which ranks a transfer is between is not recorded: it must not be matched as if all took part.
    return "send" if "sendrecv" in name.lower() else "collective"


def _add_host(rows: Rows, row: HostRow, base: int, phase: str | None) -> None:
    name_class = name_class_of(row.name)
    if row.is_range:
        kinds = {NameClass.DATA_LOADER: "input", NameClass.GARBAGE_COLLECTION: "gc"}
        kind = kinds.get(name_class, "input" if _fetches(row.name) else "scope")
    else:
        kind = "sync" if name_class is NameClass.SYNCHRONIZE else "host"
    rows.add(
        f"thread {row.thread & 0xFFFFFF}",
        row.name,
        kind,
        row.start + base,
        row.end - row.start,
        phase="input" if kind == "input" else phase,
        correlation=row.correlation,
    )


def _fetches(name: str) -> bool:
    """Whether a range is named as one that fetches input, as people write it."""
    words = name.lower().replace("_", " ").replace("-", " ")
    return words in ("input", "data", "dataload", "data load", "data loading", "load data", "load batch", "next batch")


def _host_phases(process: Process, thread: int) -> list[str | None]:
    """The phase of every host row, from the ranges around it; all None where no range tells phases."""
    classes = np.array([name_class_of(row.name) for row in process.host], np.int8)
    ranges = np.array([row.is_range for row in process.host], np.bool_)
    if not (ranges & np.isin(classes, _PHASE_CLASSES)).any():
        return [None] * len(process.host)
    start, end, threads = (
        _numbers(array("q", (getattr(row, name) for row in process.host))) for name in ("start", "end", "thread")
    )
    codes = host_phases(start=start, end=end, thread=threads, name_class=classes, is_scope=ranges, main_thread=thread)
    return [PHASES[code] for code in codes.tolist()]


def _numbers(column: "array[int]") -> Int64s:
    return np.frombuffer(column, np.int64)
