"""An XSpace message as planes, lines and events (tsl/profiler/protobuf/xplane.proto).

Protocol buffers' wire format, as much of it as reading needs. https://protobuf.dev/programming-guides/encoding
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec

VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
FIXED32: Final = 5
_MOST_SHIFT: Final = 63
_MOST_BYTES: Final = 10

Span = tuple[int, int]
"""Begin and end of a nested message or of text, as positions in the buffer."""


class WireError(ValueError):
    """The bytes are no such message, or end within one."""


def fields(data: bytes, begin: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """(field number, wire type, a, b) of the message in data[begin:end].

    For BYTES a and b are the begin and end of the payload; otherwise a is the value (unsigned) and b is 0.
    Raises WireError where it is damaged or cut off.
    """
    at = begin
    while at < end:
        key = data[at]
        at += 1
        if key > 127:
            key, at = varint(data, at - 1, end)
        kind = key & 7
        if kind == VARINT:
            if at >= end:
                raise WireError("cut off")
            value = data[at]
            at += 1
            if value > 127:
                value, at = varint(data, at - 1, end)
            yield key >> 3, kind, value, 0
        elif kind == BYTES:
            if at >= end:
                raise WireError("cut off")
            size = data[at]
            at += 1
            if size > 127:
                size, at = varint(data, at - 1, end)
            if size > end - at:
                raise WireError("cut off")
            yield key >> 3, kind, at, at + size
            at += size
        elif kind in (FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
            if size > end - at:
                raise WireError("cut off")
            yield key >> 3, kind, int.from_bytes(data[at : at + size], "little"), 0
            at += size
        else:
            raise WireError(f"wire type {kind}")


def varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """The number that begins at `at`, and the place after it."""
    value = shift = 0
    for byte in data[at : min(end, at + _MOST_BYTES)]:
        at += 1
        if byte < 128:
            return (value | byte << shift) & ((1 << 64) - 1), at
        value |= (byte & 127) << shift
        shift += 7
        if shift > _MOST_SHIFT:
            raise WireError("a number of more than ten bytes")
    raise WireError("cut off")


def signed(value: int) -> int:
    """An int64 from the unsigned number on the wire."""
    return value - (1 << 64) if value >> 63 else value


def real(value: int) -> float:
    """A double from its eight bytes."""
    return float(struct.unpack("<d", value.to_bytes(8, "little"))[0])


def text(data: bytes, begin: int, end: int) -> str:
    """Text, whatever its bytes are."""
    return data[begin:end].decode("utf-8", "replace")


def packed(data: bytes, kind: int, a: int, b: int) -> list[int]:
    """The numbers of a repeated field, packed or one at a time."""
    if kind != BYTES:
        return [a]
    values = []
    while a < b:
        value, a = varint(data, a, b)
        values.append(value)
    return values


_OF_EVENTS: Final = (0x08, 0x10, 0x18, 0x22)
"""How the fields of an event begin: its kind, offset and duration, and each property."""
_PROPERTY: Final = 0x22
_MOST_KNOWN: Final = 1 << 14
_SHORT: Final = 1 << 12
"""Bytes of a property that is kept."""

StatValue = int | float | str | Span
"""Numbers and text; bytes (an HLO module) stay a span of the file."""


@dataclass
class EventKind:
    """What events of one metadata id have in common."""

    name: str = ""
    display_name: str = ""
    stats: dict[str, StatValue] = field(default_factory=dict)


class Event(msgspec.Struct, frozen=True, gc=False):
    """One event: times in ps from the line's begin."""

    kind: EventKind
    offset_ps: int
    duration_ps: int
    stats: dict[str, StatValue]

    def stat(self, name: str) -> StatValue | None:
        """A property of the event, else of all events of its kind."""
        value = self.stats.get(name)
        return self.kind.stats.get(name) if value is None else value


@dataclass(frozen=True)
class Line:
    """A thread, a stream, or a view of one."""

    name: str
    id: int
    timestamp_ns: int
    events: tuple[Span, ...]


@dataclass(frozen=True)
class Plane:
    """A device or a host."""

    data: bytes
    name: str
    lines: tuple[Line, ...]
    kinds: dict[int, EventKind]
    stat_names: dict[int, str]
    stats: dict[str, StatValue]

    def events(self, line: Line) -> Iterator[Event]:
        """The events of a line, in the file's order. Raises WireError."""
        data, kinds = self.data, self.kinds
        unknown = EventKind()
        stat_of = _Stats(data, self.stat_names)
        for begin, end in line.events:
            kind, offset, duration, spans = _event(data, begin, end)
            stats = {}
            for span in spans:
                name, value = stat_of(span)
                if value is not None:
                    stats[name] = value
            yield Event(kinds.get(kind, unknown), signed(offset), signed(duration), stats)


def _event(data: bytes, begin: int, end: int) -> tuple[int, int, int, list[Span]]:
    """Kind, offset, duration and the places of the properties, as `fields` tells them.

    Most of a file is these: what every event has is read here, and what is rare by `fields`.
    """
    found = [0, 0, 0, 0]
    spans: list[Span] = []
    at = begin
    while at < end:
        key = data[at]
        if key not in _OF_EVENTS or at + 1 >= end:
            break
        value = data[at + 1]
        at += 2
        if value > 127:
            value, at = varint(data, at - 1, end)
        if key != _PROPERTY:
            found[key >> 3] = value
        elif value > end - at:
            raise WireError("cut off")
        else:
            spans.append((at, at + value))
            at += value
    for number, _, a, b in fields(data, at, end):
        if number == 4:
            spans.append((a, b))
        elif number < 4:
            found[number] = a
    return found[1], found[2], found[3], spans


class _Stats:
    """Properties of events, of which most are there many times: each that is alike is read once."""

    def __init__(self, data: bytes, names: dict[int, str]) -> None:
        self._data, self._names = data, names
        self._known: dict[bytes, tuple[str, StatValue | None]] = {}

    def __call__(self, span: Span) -> tuple[str, StatValue | None]:
        content = self._data[span[0] : span[1]]
        known = self._known.get(content)
        if known is not None:
            return known
        found = _stat(self._data, span, self._names)
        # A span is a place in the file, and so of this property alone.
        if not isinstance(found[1], tuple) and len(content) <= _SHORT:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[content] = found
        return found


@dataclass(frozen=True)
class Space:
    """All planes of a file, and whether it ended in the middle of one."""

    planes: tuple[Plane, ...]
    hostnames: tuple[str, ...]
    is_cut: bool

    def named(self, prefix: str) -> list[Plane]:
        """The planes whose names begin so."""
        return [plane for plane in self.planes if plane.name.startswith(prefix)]


def read_space(data: bytes) -> Space:
    """The planes of a file's content; those before the place where it is cut off or damaged."""
    planes: list[Plane] = []
    hostnames: list[str] = []
    try:
        for number, wire, a, b in fields(data, 0, len(data)):
            if wire != BYTES:
                continue
            if number == 1:
                planes.append(_plane(data, a, b))
            elif number == 4:
                hostnames.append(text(data, a, b))
    except WireError:
        return Space(tuple(planes), tuple(hostnames), is_cut=True)
    return Space(tuple(planes), tuple(hostnames), is_cut=False)


def _plane(data: bytes, begin: int, end: int) -> Plane:
    name = ""
    spans: dict[int, list[Span]] = {3: [], 4: [], 5: [], 6: []}
    for number, wire, a, b in fields(data, begin, end):
        if wire != BYTES:
            continue
        if number == 2:
            name = text(data, a, b)
        elif number in spans:
            spans[number].append((a, b))
    stat_names = dict(_entry(data, span) for span in spans[5])
    names = {key: _name(data, span) for key, span in stat_names.items()}
    kinds = {key: _kind(data, span, names) for key, span in (_entry(data, span) for span in spans[4])}
    stats = dict(stat for span in spans[6] for stat in (_stat(data, span, names),) if stat[1] is not None)
    lines = tuple(_line(data, span) for span in spans[3])
    return Plane(data, name, lines, kinds, names, {key: value for key, value in stats.items() if value is not None})


def _entry(data: bytes, span: Span) -> tuple[int, Span]:
    """A map's entry: its number, and the message it stands for."""
    key, message = 0, (span[1], span[1])
    for number, wire, a, b in fields(data, *span):
        if number == 1:
            key = a
        elif number == 2 and wire == BYTES:
            message = (a, b)
    return key, message


def _name(data: bytes, span: Span) -> str:
    return next((text(data, a, b) for number, wire, a, b in fields(data, *span) if number == 2 and wire == BYTES), "")


def _kind(data: bytes, span: Span, names: dict[int, str]) -> EventKind:
    kind = EventKind()
    for number, wire, a, b in fields(data, *span):
        if wire != BYTES:
            continue
        if number == 2:
            kind.name = text(data, a, b)
        elif number == 4:
            kind.display_name = text(data, a, b)
        elif number == 5:
            name, value = _stat(data, (a, b), names)
            if value is not None:
                kind.stats[name] = value
    return kind


def _line(data: bytes, span: Span) -> Line:
    name, display_name, number_of, timestamp = "", "", 0, 0
    events: list[Span] = []
    for number, wire, a, b in fields(data, *span):
        if number == 4 and wire == BYTES:
            events.append((a, b))
        elif number == 2 and wire == BYTES:
            name = text(data, a, b)
        elif number == 11 and wire == BYTES:
            display_name = text(data, a, b)
        elif number == 1:
            number_of = a
        elif number == 3:
            timestamp = signed(a)
    return Line(name or display_name, signed(number_of), timestamp, tuple(events))


def _stat(data: bytes, span: Span, names: dict[int, str]) -> tuple[str, StatValue | None]:
    name, value = "", None
    found: StatValue | None = value
    for number, wire, a, b in fields(data, *span):
        if number == 1:
            name = names.get(a, "")
        elif number == 2 and wire == FIXED64:
            found = real(a)
        elif number in (3, 7) and wire == 0:
            found = names.get(a, "") if number == 7 else a
        elif number == 4 and wire == 0:
            found = signed(a)
        elif number == 5 and wire == BYTES:
            found = text(data, a, b)
        elif number == 6 and wire == BYTES:
            found = (a, b)
    return name, found
