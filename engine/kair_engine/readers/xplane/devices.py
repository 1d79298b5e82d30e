"""Reads the devices of a profile with their operations: separate planes, or threads of the host for CPU devices.

Also reads TensorFlow's operators on the host's processors, if nothing is compiled by XLA and no device has a plane.

An operator that waits (a collective, the next element of a data set) begins on one thread and ends on another: two
instants with the same number mark it.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kair_engine.readers.rank_identity import one_line, positive, without_unknown
from kair_engine.readers.xplane.hlo import (
    Instruction,
    Module,
    Operation,
    collective_part,
    device_kind,
    leaves,
)
from kair_engine.readers.xplane.space import Event, Line, Plane, Space
from kair_engine.trace.identity import DeviceIdentity

_DEVICE: Final = re.compile(r"^/device:(?P<kind>[A-Za-z_]+):(?P<number>\d{1,6})$")
_OPERATIONS: Final = "XLA Ops"
_ASYNCHRONOUS: Final = "Async XLA Ops"
_MODULES: Final = "XLA Modules"
_STEPS: Final = "Steps"
_STREAM: Final = re.compile(r"^Stream #(\d+)")
_NUMBER: Final = re.compile(r"^\D*(\d{1,9})\D*$")
_UNKNOWN: Final = Instruction("")
_PROGRAM: Final = re.compile(r"\(\d+\)$")
"""The number of a program after its module's name: `jit_train_step(1219076091)`."""


class _Execution(NamedTuple):
    """One run of a module on a device."""

    start: int
    end: int
    number: int
    module: str


@dataclass
class Device:
    """One device, which is one rank."""

    number: int
    words: str
    """Its type, as far as the profile states it."""
    operations: list[Operation] = field(default_factory=list)
    steps: list[tuple[int, int, int]] = field(default_factory=list)
    """(number, begin, end), if the device's own plane has them."""
    identity: DeviceIdentity = field(default_factory=DeviceIdentity)
    """Empty for the host's processors."""
    settings: dict[str, str] = field(default_factory=dict)


LEAST_BUSY: Final = 0.01
"""Share of the busiest device's time. A device that is a rank computes in each step, or waits in its collectives, which
takes time, too; moving a batch or an initial value to a device takes less."""


def that_ran_steps(devices: Sequence[Device]) -> list[Device]:
    """Return the devices that are ranks: those that computed, and that have steps if any device's plane has.

    A process sees devices that its job does not use, and may have put some arrays there. If no device computes, all are
    returned.
    """
    busy = {id(one): _busy_ns(one) for one in devices}
    least = LEAST_BUSY * max(busy.values(), default=0)
    has_steps = any(one.steps for one in devices)
    kept = [one for one in devices if busy[id(one)] > least and (one.steps or not has_steps)]
    return kept or list(devices)


def _busy_ns(device: Device) -> int:
    """Return the time of its operations without copies."""
    return sum(one.duration for one in device.operations if device_kind(one.instruction.opcode, one.name) != "memory")


class Modules:
    """The compiled modules of a profile, by program id and by name."""

    def __init__(self, modules: Sequence[Module]) -> None:
        self._by_id = {one.program_id: one for one in modules if one.program_id is not None}
        self._by_name = {one.name: one for one in modules}

    def find(self, event: Event) -> tuple[str, Module | None]:
        """Return the name of an event's module, and the module if it is recorded."""
        program = event.stat("program_id")
        name = event.stat("hlo_module")
        found = self._by_id.get(program) if isinstance(program, int) else None
        if found is None and isinstance(name, str):
            found = self._by_name.get(name)
        return (name if isinstance(name, str) else found.name if found else ""), found

    def named(self, name: str) -> Module | None:
        """Return the module of that name."""
        return self._by_name.get(name)

    @property
    def devices(self) -> int | None:
        """The number of devices of the largest module; None if no module states it, or only one device."""
        most = max((one.devices or 0 for one in self._by_name.values()), default=0)
        return most if most > 1 else None


def devices_of(space: Space, modules: Modules) -> list[Device]:
    """Return the devices that have operations, by their numbers. Raises DecodeError if an event is damaged."""
    found = []
    for plane in space.planes:
        match = _DEVICE.match(plane.name)
        if match is not None:
            words, number = _words(plane, match["kind"]), int(match["number"])
            known = DeviceIdentity(ordinal=number, model=words if words != match["kind"] else None)
            device = Device(number, words, identity=known, settings=_settings(plane))
            _read_plane(plane, device, modules)
            found.append(device)
    kept = [device for device in found if device.operations]
    if not kept:
        kept = [device for plane in space.named("/host:") for device in _on_threads(plane, modules)]
    if not kept:
        operators = [one for plane in space.named("/host:") for one in operators_on(plane)]
        kept = [Device(0, "CPU", operators)] if operators else []
    return sorted(kept, key=lambda device: device.number)


def _words(plane: Plane, kind: str) -> str:
    names = ("device_type_string", "device_type", "chip_type", "gpu_device_name")
    return next((value for name in names if (value := one_line(plane.stats.get(name)))), kind)


def _settings(plane: Plane) -> dict[str, str]:
    memory, cores = (positive(plane.stats.get(name)) for name in ("memory_size", "core_count"))
    return without_unknown(device_memory_bytes=memory, multiprocessors=cores)


def _read_plane(plane: Plane, device: Device, modules: Modules) -> None:
    streams = [line for line in plane.lines if _STREAM.match(line.name)]
    lines = streams or [line for line in plane.lines if line.name in (_OPERATIONS, _ASYNCHRONOUS)]
    executions = sorted(
        _Execution(start, start + event.duration_ps // 1000, number, _PROGRAM.sub("", event.kind.name))
        for line in plane.lines
        if line.name == _MODULES
        for number, (event, start) in enumerate(_timed(plane, line))
    )
    has_asynchronous = any(line.name == _ASYNCHRONOUS and line.events for line in lines)
    for line in lines:
        stream = _STREAM.match(line.name)
        lane = f"stream {stream[1]}" if stream else f"stream {line.name}"
        rows = [_operation(event, start, lane, modules, executions) for event, start in _timed(plane, line)]
        if stream:
            device.operations += rows
        elif line.name == _ASYNCHRONOUS:
            device.operations += [one for one in rows if collective_part(one.instruction.opcode, one.name)]
        else:
            device.operations += leaves(list(_joined(rows, drop=has_asynchronous)))
    for line in plane.lines:
        if line.name == _STEPS:
            device.steps += [
                (int(match[1]), start, start + event.duration_ps // 1000)
                for event, start in _timed(plane, line)
                if (match := _NUMBER.match(event.kind.display_name or event.kind.name))
            ]


def _timed(plane: Plane, line: Line) -> Iterator[tuple[Event, int]]:
    """Yield events with their begin in ns on the plane's clock."""
    for event in plane.events(line):
        yield event, line.timestamp_ns + event.offset_ps // 1000


def _operation(
    event: Event, start: int, lane: str, modules: Modules, executions: Sequence[_Execution] = ()
) -> Operation:
    module_name, module = modules.find(event)
    hlo = event.stat("hlo_op")
    shown = event.kind.display_name or event.kind.name
    key = hlo if isinstance(hlo, str) and hlo else shown.split(" = ")[0].lstrip("%")
    instruction = module.instructions.get(key, _UNKNOWN) if module is not None else _UNKNOWN
    origin = event.stat("tf_op") or event.stat("name") or instruction.op_name
    run = event.stat("run_id")
    within = _execution_at(executions, start) if executions else None
    if within is not None:
        run = run if isinstance(run, int) else within.number
        module_name = module_name or within.module
    correlation = event.stat("correlation_id")
    return Operation(
        lane=lane,
        name=shown if lane.startswith("stream ") and shown[:1] not in ("%", "") else key,
        start=start,
        duration=event.duration_ps // 1000,
        instruction=instruction,
        op_name=origin if isinstance(origin, str) else instruction.op_name,
        module=module_name,
        run=run if isinstance(run, int) else None,
        correlation=correlation if isinstance(correlation, int) else None,
    )


def _execution_at(executions: Sequence[_Execution], start: int) -> _Execution | None:
    """Return the execution in progress at a time; executions are in order and do not overlap."""
    at = bisect_right(executions, start, key=lambda one: one.start) - 1
    return executions[at] if at >= 0 and start < executions[at].end else None


def _on_threads(plane: Plane, modules: Modules) -> list[Device]:
    """Return CPU devices, whose operations run on the host's threads."""
    devices: dict[int, Device] = {}
    for number, line in enumerate(plane.lines):
        rows: dict[int, list[Operation]] = {}
        for event, start in _timed(plane, line):
            if not isinstance(event.stats.get("hlo_op"), str):
                continue
            ordinal = event.stats.get("device_ordinal")
            ordinal = ordinal if isinstance(ordinal, int) else 0
            rows.setdefault(ordinal, []).append(_operation(event, start, f"stream {number}", modules))
        for ordinal, some in rows.items():
            devices.setdefault(ordinal, Device(ordinal, "CPU")).operations += leaves(some)
    return list(devices.values())


def _joined(rows: Sequence[Operation], *, drop: bool) -> Iterator[Operation]:
    """Yield the operations, with the start and done of each asynchronous collective joined to one.

    `drop` leaves both out, because another line has them.
    """
    waiting: dict[str, list[Operation]] = {}
    for one in sorted(rows, key=lambda one: one.start):
        part = collective_part(one.instruction.opcode, one.name)
        if part is None or not part[1]:
            yield one
        elif drop:
            continue
        elif part[1] == "-start":
            waiting.setdefault(part[0], []).append(one)
        elif begun := waiting.get(part[0]):
            first = begun.pop(_begun_as(begun, one))
            yield Operation(
                lane=f"{one.lane} (asynchronous)",
                name=first.name.replace("-start", ""),
                start=first.start,
                duration=max(one.end - first.start, 0),
                instruction=first.instruction,
                op_name=first.op_name or one.op_name,
                module=first.module,
                run=first.run,
                correlation=first.correlation,
            )


def _begun_as(begun: Sequence[Operation], done: Operation) -> int:
    """Return the index of the pending collective that is done: the one of the same number, else the first."""
    wanted = done.name.replace("-done", "-start")
    return next((at for at, one in enumerate(begun) if one.name == wanted), 0)


_BEGUN: Final = "ExecutorState::ProcessAsync::Start"
_DONE: Final = "ExecutorState::ProcessAsync::Done"
_EAGER: Final = "EagerLocalExecute: "
_OF_DATA: Final = "tf_data_"
"""Threads that prepare data in parallel with the step."""
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
"""TensorFlow's name → XLA's, without `V2`, `V3`, …."""
_VERSION: Final = re.compile(r"V\d+$")


def operators_on(plane: Plane) -> list[Operation]:
    """Return the operators of a host's plane. Raises DecodeError if an event is damaged."""
    found = _asynchronous(plane)
    waits = {one.name for one in found}
    for number, line in enumerate(plane.lines):
        if line.name.startswith(_OF_DATA):
            continue
        rows = []
        for event, start in _timed(plane, line):
            if (operator := _operator(event)) is not None:
                rows.append(_host_operation(f"stream {number}", *operator, start, event.duration_ps // 1000))
        # An operator marked by two instants also has an event of its own, which ends when it has begun.
        found += leaves([one for one in rows if one.name not in waits])
    return found or _eager(plane)


def _operator(event: Event) -> tuple[str, str] | None:
    """Return name and type of an operator: `model/dense/MatMul:MatMul`, which is shown as `MatMul`."""
    kind = event.kind.display_name
    name, colon, end = event.kind.name.rpartition(":")
    return (name, kind) if kind and colon and end == kind and kind not in _CALLS else None


def _eager(plane: Plane) -> list[Operation]:
    """Return operators of a loop without compiled parts: they run where Python calls them, named by their type."""
    return leaves(
        [
            _host_operation(f"stream {number}", kind, kind, start, event.duration_ps // 1000)
            for number, line in enumerate(plane.lines)
            for event, start in _timed(plane, line)
            if event.kind.name.startswith(_EAGER) and (kind := event.kind.name.removeprefix(_EAGER))
        ]
    )


def _asynchronous(plane: Plane) -> list[Operation]:
    begun: dict[int, tuple[int, int]] = {}
    done: list[tuple[int, int, str, str]] = []
    for number, line in enumerate(plane.lines):
        for event, start in _timed(plane, line):
            if event.kind.name == _BEGUN and isinstance(link := event.stats.get("_p"), int):
                begun[link] = number, start
            elif event.kind.name == _DONE and isinstance(link := event.stats.get("_c"), int):
                name, kind = (str(event.stats.get(stat, "")) for stat in ("name", "kernel_type"))
                done.append((link, start + event.duration_ps // 1000, name, kind))
    return [
        _host_operation(f"stream {begun[link][0]} (asynchronous)", name, kind, begun[link][1], end - begun[link][1])
        for link, end, name, kind in done
        if link in begun and end >= begun[link][1] and kind not in _CALLS
    ]


def _host_operation(lane: str, name: str, kind: str, start: int, duration: int) -> Operation:
    plain = _VERSION.sub("", kind)
    name = name.removeprefix("StatefulPartitionedCall/")
    return Operation(lane, name, start, duration, Instruction(_OPCODES.get(plain, kind)), name, "")
