"""Reads XLA profiles (`.xplane.pb` of JAX and TensorFlow): one file of one host to one fragment, a rank for each
device.

Host threads provide step marks, calls that launch, and the operations of the main thread.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from kair_engine.errors import InputError
from kair_engine.readers.blocks import read_whole
from kair_engine.readers.formats import NotATraceError
from kair_engine.readers.fragment_writer import EPOCH_NS, RankRecording, Rows, write_recording
from kair_engine.readers.paths import rank_from_name
from kair_engine.readers.rank_identity import cuda_version, one_line, process_id, without_unknown
from kair_engine.readers.step_marks import Steps, one_step, steps_of
from kair_engine.readers.xplane.devices import Device, Modules, devices_of, that_ran_steps
from kair_engine.readers.xplane.hlo import Groups, Operation, device_kind, host_kind, phase_of, read_module
from kair_engine.readers.xplane.messages import DecodeError
from kair_engine.readers.xplane.space import Plane, Space, read_space
from kair_engine.trace.identity import RankIdentity
from kair_engine.trace.model import FragmentInfo, KairWarning, listed, short_warning

Mark = tuple[int, int, int]
"""A step: (number, begin, end)."""
CAPTURED_STEP: Final = "kair step"
"""The name of the marks that capture puts into its own profile."""
_LAUNCH: Final = re.compile(r"^PjitFunction\((?P<function>.*)\)$")
# The Python tracer's frames, thread pools' own marks, and the ends of asynchronous work.
_NOISE: Final = ("$", "ThreadpoolListener::", "end: ", "ThunkExecutor::")


class HostEvent(msgspec.Struct, frozen=True, gc=False):
    """One event of a host's thread; times in ns."""

    name: str
    start: int
    duration: int


@dataclass
class HostThreads:
    """The threads of a profile's host."""

    marks: list[Mark] = field(default_factory=list)
    """Capture's own if it made the profile, else the script's."""
    main: list[HostEvent] = field(default_factory=list)
    """Events of the thread that marks the steps, or launches most."""
    main_lane: str = "thread host"
    launches: dict[str, list[HostEvent]] = field(default_factory=dict)
    """By function, the calls that run a compiled module, in order; of nested ones the outermost."""
    calls: dict[int, HostEvent] = field(default_factory=dict)
    """By correlation id, the driver's calls that launch kernels."""


def host_threads(space: Space) -> HostThreads:
    """Return the host threads in the host's planes. Raises DecodeError if an event is damaged."""
    found = HostThreads()
    best = (-1, -1)
    named: list[tuple[str, Mark]] = []
    for plane in space.named("/host:"):
        for number, line in enumerate(plane.lines):
            marks, events = _read_line(plane, number, found)
            named += marks
            launches = sum(1 for event in events if _LAUNCH.match(event.name))
            if events and (len(marks), launches) > best:
                best = (len(marks), launches)
                found.main = events
                found.main_lane = f"thread {line.name or line.id}"
    captured = [mark for name, mark in named if name == CAPTURED_STEP]
    found.marks = captured or [mark for _, mark in named]
    found.launches = _outermost(found.main)
    return found


def _read_line(plane: Plane, number: int, found: HostThreads) -> tuple[list[tuple[str, Mark]], list[HostEvent]]:
    line = plane.lines[number]
    marks: list[tuple[str, Mark]] = []
    events: list[HostEvent] = []
    awaited: dict[tuple[str, int], int] = {}
    for event in plane.events(line):
        name = event.kind.name
        if name.startswith(_NOISE) or "hlo_op" in event.stats:
            continue
        start, duration = line.timestamp_ns + event.offset_ps // 1000, event.duration_ps // 1000
        step = event.stats.get("step_num")
        if isinstance(step, int | str) and str(step).isdecimal() and len(str(step)) < 10:
            marks.append((name, (int(step), start, start + duration)))
            continue
        if host_kind(name) == "sync":
            # Two instants mark a wait: where the thread began to wait, and where it went on.
            begun, done = event.stats.get("_p"), event.stats.get("_c")
            if isinstance(begun, int):
                awaited[name, begun] = start
                continue
            if isinstance(done, int) and (began := awaited.pop((name, done), None)) is not None:
                start, duration = began, start + duration - began
        one = HostEvent(name, start, duration)
        correlation = event.stats.get("correlation_id")
        if isinstance(correlation, int):
            found.calls[correlation] = one
        events.append(one)
    return marks, events


def _outermost(events: Sequence[HostEvent]) -> dict[str, list[HostEvent]]:
    launches: dict[str, list[HostEvent]] = {}
    for event in sorted(events, key=lambda one: (one.start, -one.duration)):
        match = _LAUNCH.match(event.name)
        if match is None:
            continue
        known = launches.setdefault(match["function"], [])
        if not known or event.start >= known[-1].start + known[-1].duration:
            known.append(event)
    return launches


_LARGEST: Final = 1 << 31
"""Bytes: no protocol buffer is larger."""
_RUNS: Final = 1 << 40
_SUFFIX: Final = ".xplane.pb"


@dataclass(frozen=True)
class _Profile:
    """Data shared by all devices of a file."""

    host: HostThreads
    modules: Modules
    base: int
    """Added to every time, ns."""
    host_name: str | None
    pid: int | None
    versions: dict[str, str]


def read_xplane(source: Path, out: Path, *, rank_hint: int | None = None) -> FragmentInfo:
    """Write `source` as the fragment `out`, and return its description.

    The file states no rank: its devices count up from `rank_hint`, else from 0 with `rank_known` false. Raises
    NotATraceError if it is no profile of XLA, InputError if it holds no operations of a device, OSError if the disk is
    full.
    """
    content, is_damaged = read_whole(source, _LARGEST)
    space = read_space(content)
    del content
    if not space.planes:
        raise NotATraceError("no planes in it")
    try:
        modules = Modules([read_module(content) for content in _module_contents(space)])
        found, host = devices_of(space, modules), host_threads(space)
    except DecodeError as error:
        raise InputError(f"{source.name} is damaged: an event in it cannot be decoded", "record it again") from error
    if not found:
        hint = "record with jax.profiler.trace or tf.profiler.experimental, on a device that XLA compiles for"
        raise InputError(f"{source.name} holds no operations of a device", hint)
    devices = that_ran_steps(found)
    # A file of several devices is named after its host: a number in that is no rank.
    named = rank_from_name(source) if len(devices) == 1 else None
    first = rank_hint if rank_hint is not None else named
    if len(devices) > 1 and not host.marks:
        host = HostThreads()  # one thread drives them all, and nothing says what it did in whose steps
    profile = _Profile(host, modules, _base_ns(space), _host_name(source, space), _process(space), _versions(space))
    before = [_meetings_before(device) for device in devices]
    if len({len(one) for one in before}) > 1:
        before = [[] for _ in devices]  # their steps would be numbered apart
    recordings = [
        _recording((first or 0) + at, device, profile, of)
        for at, (device, of) in enumerate(zip(devices, before, strict=True))
    ]
    warnings: list[KairWarning] = []
    if is_damaged or space.is_cut:
        text = f"{source.name} is cut off or damaged; the planes before that place are used"
        warnings.append(short_warning("truncated_file", text))
    if idle := [one.number for one in found if one not in devices]:
        text = f"{source.name}: device {listed(idle)} ran no step, and is no rank"
        warnings.append(short_warning("idle_devices", text))
    return write_recording(
        source,
        out,
        recordings,
        form="xplane",
        rank_known=first is not None,
        has_device=True,
        mark="StepTraceAnnotation",
        device=devices[0].words,
        world_size=modules.devices,
        warnings=warnings,
    )


def _module_contents(space: Space) -> list[bytes]:
    kinds = (kind for plane in space.planes for kind in plane.kinds.values())
    found = (kind.stats.get(name) for kind in kinds for name in ("Hlo Proto", "hlo_proto"))
    return [content for content in found if isinstance(content, bytes)]


def _base_ns(space: Space) -> int:
    """Return the begin of the profile, which newer ones subtract from every time."""
    for plane in space.named("Task Environment"):
        began = plane.stats.get("profile_start_time")
        times = [line.timestamp_ns for other in space.planes for line in other.lines if line.events]
        if isinstance(began, int) and EPOCH_NS < began < 1 << 62 and max(times, default=0) < EPOCH_NS:
            return began
    return 0


def _process(space: Space) -> int | None:
    """Return the profiled process; None if it is unknown, or there are several."""
    found = {process_id(plane.stats.get("process_id")) for plane in space.planes} - {None}
    return found.pop() if len(found) == 1 else None


def _versions(space: Space) -> dict[str, str]:
    of = next((plane.stats for plane in space.named("/host:metadata")), {})
    jax = one_line(of.get("jax_version"))
    return without_unknown(
        framework=None if jax is None else f"jax {jax}",
        cuda=cuda_version(of.get("cuda_runtime_version")),
        cuda_driver=cuda_version(of.get("cuda_driver_version")),
    )


def _host_name(source: Path, space: Space) -> str | None:
    named = source.name.removesuffix(".gz").removesuffix(_SUFFIX) if _SUFFIX in source.name else None
    stated = next((name for name in space.hostnames if name), None)
    return stated or named or None


def _recording(rank: int, device: Device, profile: _Profile, before: Sequence[tuple[int, int]]) -> RankRecording:
    rows, host, base = Rows(), profile.host, profile.base
    launched = _launches_of_runs(device, host)
    steps, are_of_device = _steps(device, host, launched, before)
    # Runs' own numbers may be anything; calls of the driver have small ones.
    number_of_run = {run: _RUNS + number for number, run in enumerate(launched)}
    for one in device.operations:
        launch = launched.get(one.run) if one.run is not None else None
        call = host.calls.get(one.correlation) if one.correlation is not None else None
        moment = one.start if are_of_device else _first_start(call, launch, one.start)
        correlation = one.correlation if launch is None or one.run is None else number_of_run[one.run]
        _add(rows, one, rank, profile, moment=moment, correlation=correlation)
    number_of = {id(event): number_of_run[run] for run, event in launched.items()}
    correlation_of = {id(event): number for number, event in host.calls.items()}
    for event in host.main:
        kind = host_kind(event.name)
        rows.add(
            host.main_lane,
            event.name,
            kind,
            event.start + base,
            event.duration,
            phase="input" if kind == "input" else None,
            correlation=number_of.get(id(event), correlation_of.get(id(event))),
        )
    shifted = Steps(steps.number, steps.begin + base, steps.end + base, steps.inferred_from, steps.is_whole_recording)
    identity = RankIdentity(
        rank, pid=profile.pid, device=device.identity, versions=profile.versions, settings=device.settings
    )
    return RankRecording(rank, rows, shifted, host.main_lane, profile.host_name, identity)


def _first_start(call: HostEvent | None, launch: HostEvent | None, own: int) -> int:
    return call.start if call is not None else launch.start if launch is not None else own


def _add(rows: Rows, one: Operation, rank: int, profile: _Profile, *, moment: int, correlation: int | None) -> None:
    modules, base = profile.modules, profile.base
    kind = device_kind(one.instruction.opcode, one.name)
    module = modules.named(one.module)
    phase = phase_of(one.op_name, trains=module is not None and module.trains)
    is_collective = kind == "collective"
    rows.add(
        one.lane,
        one.name,
        kind,
        one.start + base,
        one.duration,
        phase="input" if kind == "input" else phase,
        group=_group(one.instruction.groups, rank, modules.devices) if is_collective else None,
        size=one.instruction.size if is_collective else None,
        correlation=correlation,
        moment=moment + base,
    )


def _group(groups: Groups, rank: int, devices: int | None) -> str | None:
    """Return the process group of a rank's collective; ranks are the logical devices of the module."""
    if not groups:
        return None if devices is None else "all devices"
    own = next((group for group in groups if rank in group), None)
    if own is None:
        return None
    return "all devices" if len(own) == devices else f"devices {list(own)}"[:200]


def _launches_of_runs(device: Device, host: HostThreads) -> dict[int, HostEvent]:
    """Return the call that ran each execution of a module: the k-th of the function is the k-th of its module."""
    runs: dict[str, dict[int, int]] = {}
    for one in device.operations:
        if one.run is not None:
            begun = runs.setdefault(one.module, {})
            begun[one.run] = min(begun.get(one.run, one.start), one.start)
    launched: dict[int, HostEvent] = {}
    for module, begun in runs.items():
        calls = host.launches.get(module.removeprefix("jit_").removeprefix("pjit_"), [])
        order = sorted(begun, key=begun.__getitem__)
        if len(calls) == len(order):
            launched |= {run: call for run, call in zip(order, calls, strict=True) if call.start <= begun[run]}
    return launched


def _steps(
    device: Device, host: HostThreads, launched: dict[int, HostEvent], before: Sequence[tuple[int, int]]
) -> tuple[Steps, bool]:
    """Return the steps from the device's own line, the host's marks, or the executions of the main module.

    The first source with valid times counts. Also returns whether the times are of the device's operations, which the
    host may have launched long before. `before`: executions that become extra steps if steps come from executions.
    """
    of_device, marked = steps_of(device.steps), steps_of(host.marks)
    if len(of_device.number):
        return of_device, True
    windows = _executions(device)
    if len(marked.number):
        if len(windows) == len(marked.number) and not _fits(windows, marked, launched):
            # The host ran ahead, and nothing links launches to operations: both count the same steps.
            counted = steps_of((number, *of) for number, of in zip(marked.number.tolist(), windows, strict=True))
            return counted, True
        return marked, False
    windows = [*before, *windows]
    counted = steps_of(((at, *window) for at, window in enumerate(windows)), _main_module(device.operations))
    if len(counted.number) >= 2:
        return counted, True
    last = max(one.end for one in device.operations)
    return one_step((min(one.start for one in device.operations), last)), True


def _fits(windows: Sequence[tuple[int, int]], marked: Steps, launched: dict[int, HostEvent]) -> bool:
    """Return whether marks and executions match: linked by launches, or each execution begins in a mark's window."""
    if launched:
        return True
    import numpy as np

    begins = np.array([begin for begin, _ in windows], np.int64)
    return sorted(marked.index_at(begins).tolist()) == list(range(len(windows)))


def _executions(device: Device) -> list[tuple[int, int]]:
    """Return the executions of the module that takes most time, from each begin to the next."""
    module = _main_module(device.operations)
    runs: dict[int, tuple[int, int]] = {}
    for one in device.operations:
        if one.run is not None and one.module == module:
            begin, end = runs.get(one.run, (one.start, one.end))
            runs[one.run] = (min(begin, one.start), max(end, one.end))
    ordered = sorted(runs.values())
    begins = [begin for begin, _ in ordered]
    return [(begin, begins[at + 1] if at + 1 < len(begins) else end) for at, (begin, end) in enumerate(ordered)]


def _meetings_before(device: Device) -> list[tuple[int, int]]:
    """Return the executions with collectives before the main module's first one.

    They show how the devices' clocks agree.
    """
    module = _main_module(device.operations)
    first = min((one.start for one in device.operations if one.module == module), default=0)
    runs: dict[int, tuple[int, int, bool]] = {}
    for one in device.operations:
        if one.run is not None and one.module != module and one.start < first:
            begin, end, meets = runs.get(one.run, (one.start, one.end, False))
            meets = meets or device_kind(one.instruction.opcode, one.name) == "collective"
            runs[one.run] = min(begin, one.start), max(end, one.end), meets
    return [(begin, min(end, first)) for begin, end, meets in sorted(runs.values()) if meets]


def _main_module(operations: Sequence[Operation]) -> str:
    spent: dict[str, int] = {}
    for one in operations:
        spent[one.module] = spent.get(one.module, 0) + one.duration
    return max(spent, key=lambda name: spent[name], default="")
