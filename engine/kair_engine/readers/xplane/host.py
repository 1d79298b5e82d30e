"""What a profile's host threads say: step marks, calls that launch, and what the main thread does."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from kair_engine.readers.xplane.classify import host_kind
from kair_engine.readers.xplane.space import Plane, Space

Mark = tuple[int, int, int]
"""A step: (number, begin, end)."""
CAPTURED_STEP: Final = "kair step"
"""The name of the marks that capture makes in a profile of its own."""
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
    """Capture's own, where it made the profile, else the script's."""
    main: list[HostEvent] = field(default_factory=list)
    """What the thread did that marks the steps, or launches most."""
    main_lane: str = "thread host"
    launches: dict[str, list[HostEvent]] = field(default_factory=dict)
    """By function, the calls that run a compiled module, in order; of nested ones the outermost."""
    calls: dict[int, HostEvent] = field(default_factory=dict)
    """By correlation id, the driver's calls that launch kernels."""


def host_threads(space: Space) -> HostThreads:
    """What the host's planes hold. Raises WireError where an event is damaged."""
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
            # Two instants tell a wait: where the thread began to await something, and where it went on.
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
