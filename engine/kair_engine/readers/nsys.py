"""Reads Nsight Systems reports, exported to SQLite: one file to one fragment, a rank for each process with a GPU.

Gives each process' operations their kinds, phases and links, and finds its marks and its rank: from the environment in
the report, or from the process' own marks.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from kair_engine.arrays import present
from kair_engine.errors import InputError
from kair_engine.readers.fragment_writer import EPOCH_NS, Coded, RankRecording, Rows, steps_from, write_recording
from kair_engine.readers.kineto.classify import UNKNOWN, NameClass, host_phases
from kair_engine.readers.kineto.classify import name_class_of as class_of
from kair_engine.readers.launch_queue import before_their_calls
from kair_engine.readers.nsys_identity import Target, identity_of, target_of
from kair_engine.readers.nsys_report import (
    NONE,
    HostRows,
    Process,
    Report,
    in_order,
    nccl_schemas,
    opened,
    processes_of,
)
from kair_engine.readers.paths import MAX_RANKS, rank_from_name
from kair_engine.readers.step_marks import Mark
from kair_engine.trace.columns import Int64s
from kair_engine.trace.format import INSIDE_UNKNOWN, KINDS, PHASES
from kair_engine.trace.model import FragmentInfo, KairWarning, short_warning


def read_nsys(source: Path, out: Path, *, rank_hint: int | None = None) -> FragmentInfo:
    """Write `source` as the fragment `out`, and return its description.

    The rank of a process is the one in its marks; a single process may also have it from its environment or the file's
    name. Several count up from `rank_hint`, or from 0 with `rank_known` false: a report of several processes is a
    host's, and a number in its name is no rank. Raises NotATraceError if it is another database, InputError if it is
    damaged or has no GPU activity, OSError if the disk is full.
    """
    with opened(source) as report:
        processes = processes_of(report)
        if not processes:
            hint = "record with nsys profile --trace=cuda,nvtx, and export that"
            raise InputError(f"{source.name} holds no operations of a GPU", hint)
        known = environment(report)
        ranks, are_known = _ranks(processes, known.rank, source, rank_hint)
        base, device = _epoch(report), _device(report)
        host, target = host_name(report), target_of(report)
        names_communicators = bool(nccl_schemas(report))
    recordings = [_recording(process, rank, base, host, target) for process, rank in zip(processes, ranks, strict=True)]
    warnings = [*_graphs(processes, source)]
    if names_communicators:
        warnings += _without_payloads(processes, source)
    return write_recording(
        source,
        out,
        recordings,
        form="nsys",
        rank_known=are_known,
        has_device=True,
        mark="an NVTX range for each, `step N`",
        device=device,
        world_size=known.world_size if known.rank is not None else None,
        warnings=warnings,
    )


def _ranks(
    processes: list[Process], of_environment: int | None, source: Path, rank_hint: int | None
) -> tuple[list[int], bool]:
    """Return the processes' ranks, and whether they are known."""
    said = [said_rank(process.said) for process in processes]
    stated = [rank for rank in said if rank is not None]
    if len(stated) == len(processes) == len(set(stated)):
        return stated, True
    if len(processes) > 1:
        first = rank_hint or 0
        return list(range(first, first + len(processes))), False
    named = (rank for rank in (of_environment, rank_hint, rank_from_name(source)) if rank is not None)
    rank = next(named, None)
    return [rank or 0], rank is not None


def _epoch(report: Report) -> int:
    """Return the zero of the report's times, in ns since 1970; 0 if it is not stated."""
    (began,) = next(report.rows("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",)), (0,))
    return began if isinstance(began, int) and EPOCH_NS < began < 1 << 62 else 0


def _device(report: Report) -> str | None:
    names = (name for (name,) in report.rows("TARGET_INFO_GPU", ("name",)))
    return next((name for name in names if isinstance(name, str) and name), None)


def _graphs(processes: list[Process], source: Path) -> Iterator[KairWarning]:
    launches = sum(
        int(np.count_nonzero(np.isin(process.device.name, _named(process, INSIDE_UNKNOWN)))) for process in processes
    )
    if launches:
        text = f"{source.name} has {launches} launches of CUDA graphs without their contents"
        yield short_warning("graphs_as_a_whole", f"{text}: record with nsys profile --cuda-graph-trace=node")


def _without_payloads(processes: list[Process], source: Path) -> Iterator[KairWarning]:
    if any(process.nccl.of_thread for process in processes):
        return
    if any((_device_kinds(process) == _COLLECTIVE).any() for process in processes):
        text = f"{source.name} was exported without what NCCL says of its communicators, peers and bytes"
        yield short_warning("no_communicators", f"{text}: nsys export --type sqlite --lazy=false --include-blobs=true")


def _named(process: Process, ending: str) -> list[int]:
    return [number for number, name in enumerate(process.names) if name.endswith(ending)]


def _recording(process: Process, rank: int, base: int, host: str | None, target: Target) -> RankRecording:
    thread = main_thread(process)
    rows = rows_of(process, base, thread)
    steps = steps_from(marks_of(process, base, thread), rows)
    identity = identity_of(process, rank, target)
    return RankRecording(rank, rows, steps, f"thread {thread & 0xFFFFFF}", host, identity)


# A report has few different names, each many times.
name_class_of: Final = lru_cache(1 << 14)(class_of)
_PHASE_CLASSES: Final = (NameClass.BACKWARD, NameClass.OPTIMIZER, NameClass.DATA_LOADER)
_INPUT, _COLLECTIVE = KINDS.index("input"), KINDS.index("collective")
_GROUP_END: Final = "ncclGroupEnd"
"""The range in which NCCL launches all calls of the group."""


def main_thread(process: Process) -> int:
    """Return the thread with most ranges, else with most calls: the one that runs the training loop."""
    threads, of = _numbered(process.host.thread)
    ranges = np.bincount(of, weights=process.host.is_range, minlength=len(threads)).tolist()
    rows = np.bincount(of, minlength=len(threads)).tolist()
    best = max(range(len(threads)), key=lambda at: (ranges[at], rows[at]), default=None)
    return 0 if best is None else threads[best]


def _numbered(values: Int64s) -> tuple[list[int], Int64s]:
    """Return each value once, in the order of first use, and for every value its index there."""
    found = in_order(values)
    keys = np.array(found, np.int64)
    by_value = np.argsort(keys)
    return found, by_value[np.searchsorted(keys, values, sorter=by_value)]


def marks_of(process: Process, base: int, thread: int) -> list[Mark]:
    """Return the ranges of its main thread, which may be steps, shifted by `base` ns."""
    host = process.host.where((process.host.is_range > 0) & (process.host.thread == thread))
    columns = (host.name.tolist(), (host.start + base).tolist(), (host.end + base).tolist())
    return [Mark(process.names[name], start, end) for name, start, end in zip(*columns, strict=True)]


def rows_of(process: Process, base: int, thread: int) -> Rows:
    """Return all rows of a process, shifted by `base` ns."""
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
    kind, group, size = _with_communicators(process, _device_kinds(process))
    rows.extend(
        _lanes(process),
        (device.name, process.names),
        kind,
        device.start + base,
        device.end - device.start,
        phase=phase,
        correlation=device.correlation,
        moment=launched + base,
        size=size,
        group=group,
    )
    return rows


def _held_up(process: Process) -> HostRows:
    """Return its host rows; calls that the profiler delayed begin when its work was done."""
    host = process.host
    if not len(overheads := np.flatnonzero(host.is_overhead)):
        return host
    waits = np.array([name_class_of(name) is NameClass.SYNCHRONIZE for name in process.names], bool)
    is_call = (host.is_range == 0) & (host.is_overhead == 0) & ~waits[host.name]
    _, start, duration = before_their_calls(
        overheads, is_call, host.thread, host.start, host.end - host.start, threads_known=True
    )
    return replace(host, start=start, end=start + duration)


def _host_kinds(process: Process) -> Int64s:
    call, of_range = np.zeros((2, len(process.names)), np.int64)
    for at in present(process.host.name).tolist():
        call[at], of_range[at] = map(KINDS.index, _kinds_on_host(process.names[at]))
    return np.where(process.host.is_range > 0, of_range[process.host.name], call[process.host.name])


def _kinds_on_host(name: str) -> tuple[str, str]:
    """Return the kind of a call with that name, and of a range."""
    name_class = name_class_of(name)
    kinds = {NameClass.DATA_LOADER: "input", NameClass.GARBAGE_COLLECTION: "gc"}
    of_range = kinds.get(name_class, "scope")
    return "sync" if name_class is NameClass.SYNCHRONIZE else "host", of_range


def _host_phases(process: Process, thread: int) -> Int64s:
    """Return the phase of every host row, from the ranges around it; all unknown if no range marks a phase."""
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
    """Return when and in which phase each operation was launched: by the last call of its number, else its begin."""
    calls = np.flatnonzero(host.correlation != NONE)
    calls = calls[np.argsort(host.correlation[calls], kind="stable")]
    if not len(calls):
        return start, np.full(len(start), UNKNOWN, np.int64)
    at = np.searchsorted(host.correlation[calls], correlation, "right") - 1
    call = calls[np.maximum(at, 0)]
    # NONE is less than every number, and so sorts before the first.
    linked = (at >= 0) & (host.correlation[call] == correlation)
    return np.where(linked, host.start[call], start), np.where(linked, phase[call], UNKNOWN)


def _with_communicators(process: Process, kind: Int64s) -> tuple[Int64s, Coded, Int64s]:
    """Return (kinds, groups, bytes) of the device operations; NCCL's come from the payloads of its calls."""
    device, host = process.device, process.host
    group, size, groups = np.full(len(kind), -1, np.int64), device.size.copy(), dict[str, int]()
    kernels = np.flatnonzero(kind == _COLLECTIVE)
    if not process.nccl.of_thread or not len(kernels):
        return kind, (group, []), size
    kind = kind.copy()
    calls = np.flatnonzero((host.correlation != NONE) & np.isin(host.correlation, device.correlation[kernels]))
    launch_of = dict(zip(host.correlation[calls].tolist(), calls.tolist(), strict=True))
    ends: dict[int, list[tuple[int, int]]] = {}
    is_end = np.isin(host.name, [at for at, name in enumerate(process.names) if name == _GROUP_END])
    for at in np.flatnonzero(is_end & (host.is_range > 0)).tolist():
        ends.setdefault(int(host.thread[at]), []).append((int(host.start[at]), int(host.end[at])))
    rows = [launch_of.get(number, -1) for number in device.correlation[kernels].tolist()]
    launches = [(int(host.thread[row]), int(host.start[row])) if row >= 0 else (NONE, 0) for row in rows]
    for kernel, known in zip(kernels.tolist(), process.nccl.kernels(launches, ends), strict=True):
        if known is not None:
            kind[kernel] = KINDS.index(known.kind)
            size[kernel] = NONE if known.size is None else known.size
            group[kernel] = -1 if known.group is None else groups.setdefault(known.group, len(groups))
    return kind, (group, list(groups)), size


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
        communicates = name_class_of(process.names[at]) is NameClass.DEVICE_COLLECTIVE
        kinds[at] = _COLLECTIVE if communicates else KINDS.index("compute")
    return np.where(device.is_copy > 0, KINDS.index("memory"), kinds[device.name])


# (rank, world size) of launchers, the training's own first: a launcher with one task per node counts nodes.
_VARIABLES: Final = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMIX_RANK", "PMIX_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("PALS_RANKID", "PALS_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
_NAMES: Final = frozenset(name for pair in _VARIABLES for name in pair)
_ASSIGNMENT: Final = re.compile(r"(?:^|[;\s])([A-Z0-9_]{4,24})=\"?(\d{1,7})\"?(?=[;\s]|$)")
_SAID: Final = re.compile(r"^(?:MPI )?(?:global )?rank[ _:=#-]*(\d{1,7})$", re.IGNORECASE)


@dataclass(frozen=True)
class Environment:
    """Figures from the environment of the profiled process."""

    rank: int | None = None
    world_size: int | None = None


def environment(report: Report) -> Environment:
    """Return rank and world size of the launched process; None where a world size of one means nothing."""
    values: dict[str, int] = {}
    texts = [
        value
        for name, value in report.rows("META_DATA_CAPTURE", ("name", "value"))
        if isinstance(value, str) and isinstance(name, str) and name.endswith("ENVIRONMENT_VARIABLE")
    ]
    texts += [
        value
        for name, value in report.rows("TARGET_INFO_SYSTEM_ENV", ("name", "value"))
        if name == "DeviceEnvironment" and isinstance(value, str)
    ]
    for text in texts:
        for name, number in _ASSIGNMENT.findall(text):
            if name in _NAMES:
                values.setdefault(name, int(number))
    for rank_name, size_name in _VARIABLES:
        rank, size = values.get(rank_name), values.get(size_name)
        if rank is not None and rank < MAX_RANKS and (size is None or rank < size) and (size or 0) != 1:
            return Environment(rank, size if size is not None and size <= MAX_RANKS else None)
    return Environment()


def said_rank(texts: Iterable[str]) -> int | None:
    """Return the rank in marks or names of a process (`MPI Rank 3`), if all of them agree."""
    found = {int(match[1]) for text in texts if (match := _SAID.match(text.strip()))}
    return found.pop() if len(found) == 1 else None


def host_name(report: Report) -> str | None:
    """Return the name of the profiled host."""
    named = (value for name, value in report.rows("TARGET_INFO_SYSTEM_ENV", ("name", "value")) if name == "Hostname")
    return next((value for value in named if isinstance(value, str) and value), None)
