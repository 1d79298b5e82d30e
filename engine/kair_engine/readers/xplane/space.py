"""Parses an XSpace message, an XLA profiler's output on one host, into planes, lines and events."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from kair_engine.readers.xplane.messages import MESSAGES, DecodeError

_Event, _Plane, _Space, _Stat = (MESSAGES[name] for name in ("Event", "Plane", "Space", "Stat"))
_MOST_KNOWN: Final = 1 << 14
_SHORT: Final = 1 << 12
"""Longest property that is kept, in bytes."""

StatValue = int | float | str | bytes


class EventKind(msgspec.Struct):
    """Common data of all events with one metadata id."""

    name: str = ""
    display_name: str = ""
    stats: dict[str, StatValue] = {}


class Event(msgspec.Struct, frozen=True, gc=False):
    """One event: times in ps from the line's begin."""

    kind: EventKind
    offset_ps: int
    duration_ps: int
    stats: dict[str, StatValue]

    def stat(self, name: str) -> StatValue | None:
        """Return a property of the event, else of all events of its kind."""
        value = self.stats.get(name)
        return self.kind.stats.get(name) if value is None else value


@dataclass(frozen=True)
class Line:
    """A thread, a stream, or a view of one."""

    name: str
    id: int
    timestamp_ns: int
    events: Any
    """Encoded events."""


class Plane:
    """A device or a host."""

    def __init__(self, content: bytes) -> None:
        """Raise DecodeError."""
        message = _Plane.FromString(content)
        self.name: Final = text(message.name)
        names = {entry.key: text(entry.value.name) for entry in message.stat_names}
        self._stats_of: Final = _Stats(names)
        self.kinds: Final = {
            entry.key: EventKind(text(kind.name), text(kind.display_name), self._stats_of(kind.stats))
            for entry in message.kinds
            for kind in (entry.value,)
        }
        self.stats: Final = self._stats_of(message.stats)
        self.lines: Final = tuple(
            Line(text(line.name or line.display_name), line.id, line.timestamp_ns, line.events)
            for line in message.lines
        )

    def events(self, line: Line) -> Iterator[Event]:
        """Yield the events of a line, in the file's order. Raises DecodeError."""
        kinds, stats_of, unknown, decoded = self.kinds, self._stats_of, EventKind(), _Event.FromString
        for content in line.events:
            event = decoded(content)
            kind = kinds.get(event.kind, unknown)
            yield Event(kind, event.offset_ps, event.duration_ps, stats_of(event.stats))


class _Stats(dict[bytes, tuple[str, StatValue | None]]):
    """Properties by their encoded content: most repeat, and equal ones are decoded once."""

    def __init__(self, names: dict[int, str]) -> None:
        self._names = names

    def __call__(self, contents: Any) -> dict[str, StatValue]:  # noqa: ANN401  (a repeated field)
        stats = {}
        for content in contents:
            name, value = self[content]
            if value is not None:
                stats[name] = value
        return stats

    def __missing__(self, content: bytes) -> tuple[str, StatValue | None]:
        stat = _Stat.FromString(content)
        kind = stat.WhichOneof("value")
        value: Any = getattr(stat, kind) if kind else None
        if kind == "text":
            value = text(value)
        elif kind == "ref":
            value = self._names.get(value, "")
        found = self._names.get(stat.name, ""), value
        if len(content) <= _SHORT:
            if len(self) >= _MOST_KNOWN:
                self.clear()
            self[content] = found
        return found


@dataclass(frozen=True)
class Space:
    """All planes of a file, and whether the file was cut off."""

    planes: tuple[Plane, ...]
    hostnames: tuple[str, ...]
    is_cut: bool

    def named(self, prefix: str) -> list[Plane]:
        """Return the planes whose names begin with `prefix`."""
        return [plane for plane in self.planes if plane.name.startswith(prefix)]


def text(content: bytes) -> str:
    """Return text, with invalid bytes replaced."""
    return content.decode("utf-8", "replace")


def read_space(content: bytes) -> Space:
    """Return the planes of a file's content; if it is cut off or damaged, those before that position."""
    message, is_cut = _Space(), False
    planes: list[Plane] = []
    try:
        message.MergeFromString(content)
    except DecodeError:
        is_cut = True  # the message has what was decoded so far
    try:
        planes.extend(map(Plane, message.planes))  # keeps those before a damaged one
    except DecodeError:
        is_cut = True
    return Space(tuple(planes), tuple(map(text, message.hostnames)), is_cut)
