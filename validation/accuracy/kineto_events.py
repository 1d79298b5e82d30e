"""The events of one rank's Kineto trace, from its rows of the operations table."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from device_operations import COLLECTIVES, ELEMENT_BYTES, KERNELS
from layouts import RANKS_PER_HOST, Group
from recording import Columns
from rows import ABSENT, MAIN_THREAD

Event = dict[str, Any]

MAIN_PROCESS: Final = MAIN_THREAD
_LABEL: Final = {KERNELS[label]: label for label in COLLECTIVES if label in KERNELS}
_OCCUPANCY: Final = {
    "queued": 0,
    "registers per thread": 64,
    "shared memory": 0,
    "blocks per SM": 4.0,
    "warps per SM": 32.0,
    "grid": [528, 1, 1],
    "block": [256, 1, 1],
    "est. achieved occupancy %": 50,
}


class EventRow(NamedTuple):
    """What an event needs of a row of the operations table; texts, not codes, and ABSENT for null numbers."""

    step: int
    lane: str
    name: str
    kind: str
    start_ns: int
    duration_ns: int
    correlation: int
    group: int
    group_seq: int
    bytes: int
    peer: int


def event_rows(columns: Columns, ranks: int) -> list[list[EventRow]]:
    """The table's rows, rank by rank."""
    order = np.argsort(columns.arrays["rank"], kind="stable")
    values: list[list[Any]] = []
    for field in EventRow._fields:
        if field in ("start_ns", "duration_ns"):
            values.append(getattr(columns, field)[order].tolist())
        elif field in ("lane", "name", "kind"):
            texts = np.array(columns.texts[field], dtype=object)
            values.append(texts[columns.arrays[field][order]].tolist())
        else:
            values.append(columns.arrays[field][order].tolist())
    rows = [EventRow(*row) for row in zip(*values, strict=True)]
    bounds = np.searchsorted(columns.arrays["rank"][order], np.arange(ranks + 1)).tolist()
    return [rows[begin:end] for begin, end in pairwise(bounds)]


def trace_events(
    rows: Sequence[EventRow], rank: int, groups: Sequence[Group], *, since_ns: int, device_marks: bool = False
) -> list[Event]:
    """All events of a rank's file, their times counted from `since_ns`; without `groups` collectives stay unnamed.

    `device_marks` adds when the device ran what was launched in each step, as the profiler writes it on every stream.
    """
    trace = _Trace(rows, rank, groups, since_ns)
    return [*_process_names(), *trace.events(), *(trace.device_marks() if device_marks else ())]


def _process_names() -> list[Event]:
    place = {"ph": "M", "pid": MAIN_PROCESS, "ts": 0}
    return [
        {**place, "name": "process_name", "tid": 0, "args": {"name": "python"}},
        {**place, "name": "process_labels", "tid": 0, "args": {"labels": "CPU"}},
        {**place, "name": "thread_name", "tid": MAIN_THREAD, "args": {"name": f"thread {MAIN_THREAD} (python)"}},
    ]


class _Trace:
    def __init__(self, rows: Sequence[EventRow], rank: int, groups: Sequence[Group], since_ns: int) -> None:
        self._rows, self._rank, self._groups, self._since = rows, rank, groups, since_ns
        # Ids of operators must not be taken for ids of launches.
        self._next_id = max(row.correlation for row in rows) + 1
        self._operator_of_launch: dict[int, int] = {}
        self._communication = {row.correlation: row for row in rows if row.kind in ("collective", "send", "recv")}
        self._described: set[int] = set()
        """Launches of communication that an operator describes: of those in a graph, or not recorded, none does."""

    def events(self) -> Iterator[Event]:
        """The host's events first, as in the profiler's files, then the device's."""
        on_device = [row.lane.startswith("stream") for row in self._rows]
        host = [row for row, device in zip(self._rows, on_device, strict=True) if not device]
        for index, row in enumerate(host):
            yield from self._host_events(row, self._issued(host, index))
        for row, device in zip(self._rows, on_device, strict=True):
            if device:
                yield from self._device_events(row)

    def device_marks(self) -> Iterator[Event]:
        """`ProfilerStep#N` on each stream: from the first to the last operation whose launch is in the step."""
        spans: dict[tuple[int, str], list[EventRow]] = {}
        for row in self._rows:
            if row.lane.startswith("stream") and row.correlation in self._operator_of_launch:
                spans.setdefault((row.step, row.lane), []).append(row)
        for (step, lane), rows in spans.items():
            begin = min(row.start_ns for row in rows)
            yield {
                "ph": "X",
                "cat": "gpu_user_annotation",
                "name": f"ProfilerStep#{step}",
                "pid": self._device,
                "tid": int(lane.removeprefix("stream ")),
                "ts": microseconds(begin - self._since),
                "dur": microseconds(max(row.start_ns + row.duration_ns for row in rows) - begin),
                "args": {"External id": 1},
            }

    def _issued(self, host: Sequence[EventRow], index: int) -> EventRow | None:
        """The communication that a `record_param_comms` stands around: its launch comes next."""
        if host[index].name != "record_param_comms":
            return None
        return self._communication[host[index + 1].correlation]

    def _host_events(self, row: EventRow, issued: EventRow | None) -> Iterator[Event]:
        if row.correlation != ABSENT:
            call = {"cbid": 211, "correlation": row.correlation}
            if row.kind == "sync":
                yield self._complete(row, "cuda_runtime", call)
                return
            self._operator_of_launch[row.correlation] = self._next_id - 1
            yield self._complete(row, "cuda_runtime", {"External id": self._next_id - 1, **call})
            yield self._flow(row, "s")
            return
        category = "user_annotation" if row.kind in ("scope", "input", "gc") else "cpu_op"
        details = {}
        if issued is not None:
            details = self._collective_args(issued)
            self._described.add(issued.correlation)
        yield self._complete(row, category, {"External id": self._next_id, "Ev Idx": self._next_id, **details})
        self._next_id += 1

    def _device_events(self, row: EventRow) -> Iterator[Event]:
        stream = int(row.lane.removeprefix("stream "))
        operator = self._operator_of_launch.get(row.correlation)
        args = {
            **({} if operator is None else {"External id": operator}),
            "device": self._device,
            "context": 1,
            "stream": stream,
            "correlation": row.correlation,
        }
        if row.kind == "memory":
            yield self._complete(row, "gpu_memcpy", {**args, "bytes": row.bytes})
        else:
            details = self._collective_args(row) if row.correlation in self._described else {}
            yield self._complete(row, "kernel", {**args, **_OCCUPANCY, **details})
        if operator is not None:
            yield self._flow(row, "f")

    def _collective_args(self, row: EventRow) -> Event:
        """What PyTorch says of a collective, a send or a receive."""
        if not self._groups:
            return {}
        kind = row.kind if row.kind in COLLECTIVES else _LABEL[row.name]
        return {
            **collective_args(kind, row.bytes, self._groups[row.group]),
            **self._ends(row),
            "Seq": row.group_seq,
        }

    def _ends(self, row: EventRow) -> Event:
        if row.kind == "collective":
            return {}
        return {"Dst Rank" if row.kind == "send" else "Src Rank": row.peer}

    def _complete(self, row: EventRow, category: str, args: Event) -> Event:
        on_device = category in ("kernel", "gpu_memcpy")
        return {
            "ph": "X",
            "cat": category,
            "name": f"ProfilerStep#{row.step}" if row.name == "step" else row.name,
            "pid": self._device if on_device else MAIN_PROCESS,
            "tid": args["stream"] if on_device else MAIN_THREAD,
            "ts": microseconds(row.start_ns - self._since),
            "dur": microseconds(row.duration_ns),
            "args": args,
        }

    def _flow(self, row: EventRow, phase: str) -> Event:
        """One end of the arrow from a launch to what it launched."""
        on_device = phase == "f"
        return {
            "ph": phase,
            "id": row.correlation,
            "pid": self._device if on_device else MAIN_PROCESS,
            "tid": int(row.lane.removeprefix("stream ")) if on_device else MAIN_THREAD,
            "ts": microseconds(row.start_ns - self._since),
            "cat": "ac2g",
            "name": "ac2g",
            **({"bp": "e"} if on_device else {}),
        }

    @property
    def _device(self) -> int:
        return self._rank % RANKS_PER_HOST


def collective_args(kind: str, size: int, group: Group) -> Event:
    """Return what PyTorch says of a collective of `size` bytes in a process group."""
    name, _, dtype = COLLECTIVES[kind]
    elements = size // ELEMENT_BYTES[dtype]
    shard = elements // len(group.ranks)
    return {
        "Collective name": name,
        "In msg nelems": shard if name == "_allgather_base" else elements,
        "Out msg nelems": shard if name == "_reduce_scatter_base" else elements,
        "Group size": len(group.ranks),
        "dtype": dtype,
        "In split size": "[]",
        "Out split size": "[]",
        "Process Group Name": group.name,
        "Process Group Description": group.description,
        "Process Group Ranks": group.rank_list,
    }


def microseconds(ns: int) -> msgspec.Raw:
    """Text, because a float64 cannot tell nanoseconds apart a few months after its zero."""
    return msgspec.Raw(f"{ns // 1000}.{ns % 1000:03}".encode())
