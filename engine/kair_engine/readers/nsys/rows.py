"""One process' operations with their kinds, phases and links, and the marks among them."""

from dataclasses import replace
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from kair_engine.arrays import present
from kair_engine.readers.columns import Int64s
from kair_engine.readers.fragment_writer import Coded, Rows
from kair_engine.readers.kineto.classify import NameClass
from kair_engine.readers.kineto.classify import name_class_of as class_of
from kair_engine.readers.kineto.steps.phases import UNKNOWN, host_phases
from kair_engine.readers.nsys.processes import NONE, HostRows, Process, in_order
from kair_engine.readers.overheads import before_their_calls
from kair_engine.readers.step_marks import Mark
from kair_engine.trace.format import KINDS, PHASES

# A report has few names, and each of them many times.
name_class_of: Final = lru_cache(1 << 14)(class_of)
_PHASE_CLASSES: Final = (NameClass.BACKWARD, NameClass.OPTIMIZER, NameClass.DATA_LOADER)
_INPUT: Final = KINDS.index("input")


def main_thread(process: Process) -> int:
    """The thread that marks most ranges, else that calls most: the one that runs the training loop."""
    threads, of = _numbered(process.host.thread)
    ranges = np.bincount(of, weights=process.host.is_range, minlength=len(threads)).tolist()
    rows = np.bincount(of, minlength=len(threads)).tolist()
    best = max(range(len(threads)), key=lambda at: (ranges[at], rows[at]), default=None)
    return 0 if best is None else threads[best]


def _numbered(values: Int64s) -> tuple[list[int], Int64s]:
    """Each value once, in the order of first use, and the place there of every one."""
    found = in_order(values)
    keys = np.array(found, np.int64)
    by_value = np.argsort(keys)
    return found, by_value[np.searchsorted(keys, values, sorter=by_value)]


def marks_of(process: Process, base: int, thread: int) -> list[Mark]:
    """The ranges of its main thread, which may be steps, `base` ns later than the report has them."""
    host = process.host.where((process.host.is_range > 0) & (process.host.thread == thread))
    columns = (host.name.tolist(), (host.start + base).tolist(), (host.end + base).tolist())
    return [Mark(process.names[name], start, end) for name, start, end in zip(*columns, strict=True)]


def rows_of(process: Process, base: int, thread: int) -> Rows:
    """All rows of a process, `base` ns later than the report has them."""
    rows, host, device = Rows(), _held_up(process), process.device
    phase = _host_phases(replace(process, host=host), thread)
    threads, lane = _numbered(host.thread)
    kind = _host_kinds(process)
    rows.extend(
        (lane, [f"thread {number & 0xFFFFFF}" for number in threads]),
        (host.name, process.names),
        kind,
        host.start + base,
        host.end - host.start,
        phase=np.where(kind == _INPUT, PHASES.index("input"), phase),
        correlation=host.correlation,
        moment=host.start + base,
    )
    launched, phase = _launches(host, phase, device.correlation, device.start)
    rows.extend(
        _lanes(process),
        (device.name, process.names),
        _device_kinds(process),
        device.start + base,
        device.end - device.start,
        phase=phase,
        correlation=device.correlation,
        moment=launched + base,
        size=device.size,
    )
    return rows


def _held_up(process: Process) -> HostRows:
    """Its rows on threads, with calls that the profiler held up beginning when its work was done."""
    host = process.host
    if not len(overheads := np.flatnonzero(host.is_overhead)):
        return host
    waits = np.array([name_class_of(name) is NameClass.SYNCHRONIZE for name in process.names], bool)
    is_call = (host.is_range == 0) & (host.is_overhead == 0) & ~waits[host.name]
    _, start, duration = before_their_calls(
        overheads, is_call, host.thread, host.start, host.end - host.start, threads_told=True
    )
    return replace(host, start=start, end=start + duration)


def _host_kinds(process: Process) -> Int64s:
    call, of_range = np.zeros((2, len(process.names)), np.int64)
    for at in present(process.host.name).tolist():
        call[at], of_range[at] = map(KINDS.index, _kinds_on_host(process.names[at]))
    return np.where(process.host.is_range > 0, of_range[process.host.name], call[process.host.name])


def _kinds_on_host(name: str) -> tuple[str, str]:
    """The kind of a call of that name, and of a range."""
    name_class = name_class_of(name)
    kinds = {NameClass.DATA_LOADER: "input", NameClass.GARBAGE_COLLECTION: "gc"}
    of_range = kinds.get(name_class, "scope")
    return "sync" if name_class is NameClass.SYNCHRONIZE else "host", of_range


def _host_phases(process: Process, thread: int) -> Int64s:
    """The phase of every host row, from the ranges around it; all unknown where no range tells phases."""
    host = process.host
    ranges: npt.NDArray[np.bool_] = host.is_range > 0
    class_of_name = np.zeros(len(process.names), np.int8)
    for at in present(host.name[ranges]).tolist():
        class_of_name[at] = name_class_of(process.names[at])
    classes = class_of_name[host.name]
    if not (ranges & np.isin(classes, _PHASE_CLASSES)).any():
        return np.full(len(host.start), UNKNOWN, np.int64)
    codes = host_phases(
        start=host.start, end=host.end, thread=host.thread, name_class=classes, is_scope=ranges, main_thread=thread
    )
    return codes.astype(np.int64)


def _launches(host: HostRows, phase: Int64s, correlation: Int64s, start: Int64s) -> tuple[Int64s, Int64s]:
    """When each operation was launched, and in which phase: by the last call of its number, else its own begin."""
    calls = np.flatnonzero(host.correlation != NONE)
    calls = calls[np.argsort(host.correlation[calls], kind="stable")]
    if not len(calls):
        return start, np.full(len(start), UNKNOWN, np.int64)
    at = np.searchsorted(host.correlation[calls], correlation, "right") - 1
    call = calls[np.maximum(at, 0)]
    # NONE is less than every number, and so before the first.
    linked = (at >= 0) & (host.correlation[call] == correlation)
    return np.where(linked, host.start[call], start), np.where(linked, phase[call], UNKNOWN)


def _lanes(process: Process) -> Coded:
    devices, device = _numbered(process.device.device)
    streams, stream = _numbered(process.device.stream)
    pairs, lane = _numbered(device * len(streams) + stream)
    names = []
    for pair in pairs:
        of, number = divmod(pair, len(streams))
        names.append(f"stream {devices[of]}/{streams[number]}" if len(devices) > 1 else f"stream {streams[number]}")
    return lane, names


def _device_kinds(process: Process) -> Int64s:
    device = process.device
    kinds = np.zeros(len(process.names), np.int64)
    for at in present(device.name[device.is_copy == 0]).tolist():
        kinds[at] = KINDS.index(_kernel_kind(process.names[at]))
    return np.where(device.is_copy > 0, KINDS.index("memory"), kinds[device.name])


def _kernel_kind(name: str) -> str:
    if name_class_of(name) is not NameClass.DEVICE_COLLECTIVE:
        return "compute"
    # Which ranks a transfer is between is not recorded: it must not be matched as if all took part.
    return "send" if "sendrecv" in name.lower() else "collective"
