"""An XSpace message as planes, lines and events (tsl/profiler/protobuf/xplane.proto)."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from kair_engine.readers.xplane.wire import BYTES, FIXED64, Span, WireError, fields, real, signed, text

StatValue = int | float | str | Span
"""Numbers and text; bytes (an HLO module) stay a span of the file."""


@dataclass
class EventKind:
    """What events of one metadata id have in common."""

    name: str = ""
    display_name: str = ""
    stats: dict[str, StatValue] = field(default_factory=dict)


@dataclass(frozen=True)
class Event:
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
        for begin, end in line.events:
            kind, offset, duration = 0, 0, 0
            spans: list[Span] = []
            for number, _, a, b in fields(data, begin, end):
                if number == 1:
                    kind = a
                elif number == 2:
                    offset = a
                elif number == 3:
                    duration = a
                elif number == 4:
                    spans.append((a, b))
            stats = {}
            for span in spans:
                name, value = _stat(data, span, self.stat_names)
                if value is not None:
                    stats[name] = value
            yield Event(kinds.get(kind, unknown), signed(offset), signed(duration), stats)


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
