"""TensorFlow's operators on the host's processors, where nothing is compiled by XLA and no device has a plane.

An operator that waits (a collective, the next element of a data set) is begun on one thread and done on another: two
instants tell it, which carry the same number.
"""

import re
from typing import Final

from kair_engine.readers.xplane.hlo import Instruction
from kair_engine.readers.xplane.operation import Operation, leaves
from kair_engine.readers.xplane.space import Event, Plane

_BEGUN: Final = "ExecutorState::ProcessAsync::Start"
_DONE: Final = "ExecutorState::ProcessAsync::Done"
_EAGER: Final = "EagerLocalExecute: "
_OF_DATA: Final = "tf_data_"
"""Threads that prepare data beside the step."""
_CALLS: Final = frozenset(
    {"StatefulPartitionedCall", "PartitionedCall", "While", "StatelessWhile", "If", "StatelessIf"}
)
_OPCODES: Final = {
    "CollectiveReduce": "all-reduce",
    "CollectiveGather": "all-gather",
    "CollectiveReduceScatter": "reduce-scatter",
    "CollectiveAllToAll": "all-to-all",
    "CollectiveBcastSend": "collective-broadcast",
    "CollectiveBcastRecv": "collective-broadcast",
    "NcclAllReduce": "all-reduce",
    "IteratorGetNext": "infeed",
}
"""TensorFlow's name → XLA's; `V2`, `V3`, … are left out."""
_VERSION: Final = re.compile(r"V\d+$")


def operators_on(plane: Plane) -> list[Operation]:
    """The operators of a host's plane. Raises WireError where an event is damaged."""
    found = _asynchronous(plane)
    waits = {one.name for one in found}
    for number, line in enumerate(plane.lines):
        if line.name.startswith(_OF_DATA):
            continue
        rows = []
        for event in plane.events(line):
            start = line.timestamp_ns + event.offset_ps // 1000
            if (operator := _operator(event)) is not None:
                rows.append(_operation(f"stream {number}", *operator, start, event.duration_ps // 1000))
        # What is told by two instants also has an event of its own, which is over once it is begun.
        found += leaves([one for one in rows if one.name not in waits])
    return found or _eager(plane)


def _operator(event: Event) -> tuple[str, str] | None:
    """Name and type of an operator: `model/dense/MatMul:MatMul`, which is shown as `MatMul`."""
    kind = event.kind.display_name
    name, colon, end = event.kind.name.rpartition(":")
    return (name, kind) if kind and colon and end == kind and kind not in _CALLS else None


def _eager(plane: Plane) -> list[Operation]:
    """Of a loop of which nothing is compiled: operators run where Python calls them, and are named by their type."""
    return leaves(
        [
            _operation(
                f"stream {number}",
                kind,
                kind,
                line.timestamp_ns + event.offset_ps // 1000,
                event.duration_ps // 1000,
            )
            for number, line in enumerate(plane.lines)
            for event in plane.events(line)
            if event.kind.name.startswith(_EAGER) and (kind := event.kind.name.removeprefix(_EAGER))
        ]
    )


def _asynchronous(plane: Plane) -> list[Operation]:
    begun: dict[int, tuple[int, int]] = {}
    done: list[tuple[int, int, str, str]] = []
    for number, line in enumerate(plane.lines):
        for event in plane.events(line):
            start = line.timestamp_ns + event.offset_ps // 1000
            if event.kind.name == _BEGUN and isinstance(link := event.stats.get("_p"), int):
                begun[link] = number, start
            elif event.kind.name == _DONE and isinstance(link := event.stats.get("_c"), int):
                name, kind = (str(event.stats.get(stat, "")) for stat in ("name", "kernel_type"))
                done.append((link, start + event.duration_ps // 1000, name, kind))
    return [
        _operation(f"stream {begun[link][0]} (asynchronous)", name, kind, begun[link][1], end - begun[link][1])
        for link, end, name, kind in done
        if link in begun and end >= begun[link][1] and kind not in _CALLS
    ]


def _operation(lane: str, name: str, kind: str, start: int, duration: int) -> Operation:
    plain = _VERSION.sub("", kind)
    name = name.removeprefix("StatefulPartitionedCall/")
    return Operation(lane, name, start, duration, Instruction(_OPCODES.get(plain, kind)), name, "")
