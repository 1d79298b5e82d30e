"""The devices of a profile, and what ran on each: planes of their own, or threads of the host for CPU devices.

TensorFlow's operators on the host's processors, where nothing is compiled by XLA and no device has a plane.

An operator that waits (a collective, the next element of a data set) is begun on one thread and done on another: two
instants tell it, which carry the same number.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kair_engine.readers.rank_identity import positive, telling, told
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
"""The number of a program behind its module's name: `jit_train_step(1219076091)`."""


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
    """Its type, as far as the profile tells it."""
    operations: list[Operation] = field(default_factory=list)
    steps: list[tuple[int, int, int]] = field(default_factory=list)
    """(number, begin, end) where the device's own plane tells them."""
    identity: DeviceIdentity = field(default_factory=DeviceIdentity)
    """Empty for the host's processors."""
    settings: dict[str, str] = field(default_factory=dict)


LEAST_BUSY: Final = 0.01
"""Of the busiest device's time. A device that is a rank computes in each step, or waits in its collectives, which takes
its time too; moving a batch or an initial value to a device takes less of it."""


def that_ran_steps(devices: Sequence[Device]) -> list[Device]:
    """Return those that are ranks: devices that computed, and in steps where the others' planes tell steps.

    A process sees devices that its job does not use, and may have put some arrays there. Where no device computes all
    are alike.
    """
    busy = {id(one): _busy_ns(one) for one in devices}
    least = LEAST_BUSY * max(busy.values(), default=0)
    tell_steps = any(one.steps for one in devices)
    kept = [one for one in devices if busy[id(one)] > least and (one.steps or not tell_steps)]
    return kept or list(devices)


def _busy_ns(device: Device) -> int:
    """Return what its operations take, without copies."""
    return sum(one.duration for one in device.operations if device_kind(one.instruction.opcode, one.name) != "memory")


class Modules:
    """The compiled modules of a profile, by program id and by name."""

    def __init__(self, modules: Sequence[Module]) -> None:
        self._by_id = {one.program_id: one for one in modules if one.program_id is not None}
        self._by_name = {one.name: one for one in modules}

    def find(self, event: Event) -> tuple[str, Module | None]:
        """Return the name of the module that an event is of, and the module where it is recorded."""
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
        """How many devices the largest module was compiled for; None where no module says it, or for one alone."""
        most = max((one.devices or 0 for one in self._by_name.values()), default=0)
        return most if most > 1 else None


def devices_of(space: Space, modules: Modules) -> list[Device]:
    """Return the devices that have operations, by their numbers. Raises DecodeError where an event is damaged."""
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
    return next((value for name in names if (value := told(plane.stats.get(name)))), kind)


def _settings(plane: Plane) -> dict[str, str]:
    memory, cores = (positive(plane.stats.get(name)) for name in ("memory_size", "core_count"))
    return telling(device_memory_bytes=memory, multiprocessors=cores)


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
    """Events with their begin in ns on the plane's clock."""
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
    """Return the execution that was under way at a time; they are in order, one after another."""
    at = bisect_right(executions, start, key=lambda one: one.start) - 1
    return executions[at] if at >= 0 and start < executions[at].end else None


def _on_threads(plane: Plane, modules: Modules) -> list[Device]:
    """CPU devices, whose operations run on the host's threads."""
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
    """Yield the same, with the start and the done of each asynchronous collective as one that lasts from one to the
    other.

    `drop` leaves both out: another line tells them.
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
    """Which of the collectives under way is done: the one of the same number, else the first."""
    wanted = done.name.replace("-done", "-start")
    return next((at for at, one in enumerate(begun) if one.name == wanted), 0)


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
    """Return the operators of a host's plane. Raises DecodeError where an event is damaged."""
    found = _asynchronous(plane)
    waits = {one.name for one in found}
    for number, line in enumerate(plane.lines):
        if line.name.startswith(_OF_DATA):
            continue
        rows = []
        for event, start in _timed(plane, line):
            if (operator := _operator(event)) is not None:
                rows.append(_host_operation(f"stream {number}", *operator, start, event.duration_ps // 1000))
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
