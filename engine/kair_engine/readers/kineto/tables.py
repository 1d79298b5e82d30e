"""Holds the tables that one file's records refer to: names, tracks (thread or stream), collectives' details."""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import field
from itertools import compress
from operator import attrgetter
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from kair_engine.frozen import dataclass
from kair_engine.readers.kineto import events as times
from kair_engine.readers.kineto.classify import DEVICE_CATEGORIES, Category, NameClass, category_of, name_class_of
from kair_engine.readers.kineto.collective_details import Details, Inputs, collective_details
from kair_engine.readers.kineto.events import NO_ARGS, RECORD, Event, Records, chosen
from kair_engine.trace.format import MAX_NAME_LENGTH, STREAM_PREFIX, THREAD_PREFIX

_INT64: Final = range(-(1 << 63), 1 << 63)
_TRAILING_NUMBER: Final = re.compile(r"(-?\d+)\s*$")
_DETAILED: Final = np.isin(
    np.arange(len(NameClass)),
    [
        NameClass.DEVICE_COLLECTIVE,
        NameClass.HOST_COLLECTIVE,
        NameClass.HOST_SEND,
        NameClass.HOST_RECV,
        NameClass.COLLECTIVE_CALL,
        NameClass.COLLECTIVE_RECORD,
    ],
)
_ROOM_FOR_NAMES: Final = 64 << 20
_ENTRY: Final = 100
"""Characters of names, and the overhead of each: room for 400,000 usual ones. Recordings have hundreds."""
_OTHER_NAMES: Final = "(other operations)"
_phase, _name, _track = attrgetter("ph"), attrgetter("name"), attrgetter("cat", "pid", "tid")
_start, _duration = attrgetter("ts"), attrgetter("dur")
_args, _correlation = attrgetter("args"), attrgetter("correlation")
_external_id = attrgetter("external_id")


@dataclass(frozen=True)
class Track:
    """A category on a thread or a stream."""

    category: Category
    device: int | str
    lane: int | str


class _Tracks(dict[tuple[str, int | str, int | str], int]):
    """(cat, pid, tid) → number of the track."""

    def __init__(self) -> None:
        super().__init__()
        self.items_: list[Track] = []
        self.without_category: list[bool] = []

    def __missing__(self, key: tuple[str, int | str, int | str]) -> int:
        self.without_category.append(not key[0])
        category = category_of(key[0])
        self.items_.append(Track(category, _number(key[1]), _number(key[2])))
        self[key] = len(self.items_) - 1
        return self[key]


class _Names(dict[str, int]):
    """Name → its number; overlong names are cut at once, but stay distinct. Beyond a limit all get one number."""

    def __init__(self) -> None:
        super().__init__()
        self.items_: list[str] = []
        self.classes: list[NameClass] = []
        self.is_full = False
        self._room = _ROOM_FOR_NAMES

    def __missing__(self, name: str) -> int:
        key = name if len(name) <= MAX_NAME_LENGTH else stored_name(name)
        number = self.get(key)
        if number is None and (self.is_full or self._room < 0):
            self.is_full = True
            return self.get(_OTHER_NAMES) or self._new(_OTHER_NAMES)
        return self._new(key) if number is None else number

    def _new(self, key: str) -> int:
        number = self[key] = len(self.items_)
        self.items_.append(stored_name(key))
        self.classes.append(name_class_of(key))
        self._room -= _ENTRY + len(key)
        return number


@dataclass
class EventTables:
    """Turns events into records, and keeps the tables that records refer to."""

    tracks: _Tracks = field(default_factory=_Tracks)
    names: _Names = field(default_factory=_Names)
    details: Details = field(default_factory=Details)
    inputs: Inputs = field(default_factory=Inputs)
    bad_events: int = 0
    """Events dropped because their time or duration is missing, negative, or no number."""
    without_category: int = 0
    """Complete events without a category, which are left out: a kernel would pass for an operator."""
    _open: dict[tuple[int | str, int | str], list[Event]] = field(default_factory=dict)
    """Begin events whose end is still missing, by (pid, tid)."""
    _name_classes: npt.NDArray[np.int8] = field(default_factory=lambda: np.empty(0, np.int8))
    _categories: npt.NDArray[np.int8] = field(default_factory=lambda: np.empty(0, np.int8))

    def records(self, events: list[Event]) -> Records:
        """Return the events that are operations, as records; start in ns from the trace's base time."""
        phases = list(map(_phase, events))
        if not {"B", "E"}.isdisjoint(phases):
            events = list(self._paired(events))
            phases = list(map(_phase, events))
        rows = list(compress(events, map("X".__eq__, phases)))
        result = np.empty(len(rows), RECORD)
        result["track"] = np.fromiter(map(self.tracks.__getitem__, map(_track, rows)), np.int32, len(rows))
        result["name"] = np.fromiter(map(self.names.__getitem__, map(_name, rows)), np.int32, len(rows))
        self._fill_args(result, rows)
        result["start"] = times.nanoseconds(list(map(_start, rows)))
        result["duration"] = times.nanoseconds(list(map(_duration, rows)))
        return self.valid(result)

    def _fill_args(self, result: Records, rows: list[Event]) -> None:
        args = [value or NO_ARGS for value in map(_args, rows)]
        result["correlation"] = _integers(list(map(_correlation, args)))
        result["external_id"] = _integers(list(map(_external_id, args)))
        result["size"] = result["detail"] = -1
        category = self.categories()[result["track"]]
        for at in np.flatnonzero(category == Category.COPY).tolist():
            result["size"][at] = args[at].size if args[at].size in _INT64 else -1
        operators = np.flatnonzero(category == Category.CPU_OP)
        result["size"][operators] = self.inputs.of_all([args[at] for at in operators.tolist()])
        detailed = self.detailed(result["name"])
        result["detail"][detailed] = [self.details.add(collective_details(args[at])) for at in detailed.tolist()]

    def detailed(self, names: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        """Return the rows, given by their names, that are collectives, sends or receives, or stand for one."""
        return np.flatnonzero(_DETAILED.take(self.name_classes().take(names)))

    def valid(self, records: Records) -> Records:
        """Return the records that become rows; the others are counted."""
        # An external id that only repeats the correlation links to no operator.
        records["external_id"][records["external_id"] == records["correlation"]] = -1
        row = self.categories()[records["track"]] != Category.NONE
        if any(self.tracks.without_category):
            self.without_category += int(np.array(self.tracks.without_category, np.bool_)[records["track"]].sum())
        duration = records["duration"]
        timed = (records["start"] != times.INVALID) & (duration >= 0) & (duration < times.MAX_DURATION_NS)
        self.bad_events += int((row & ~timed).sum())
        keep = row & timed
        return records if keep.all() else chosen(records, keep)

    def _paired(self, events: list[Event]) -> Iterator[Event]:
        """Yield begin/end pairs of each thread as complete events, and all other events unchanged."""
        for event in events:
            if event.ph not in ("B", "E"):
                yield event
                continue
            pending = self._open.setdefault((event.pid, event.tid), [])
            if event.ph == "B":
                pending.append(event)
            elif pending:
                yield _joined(pending.pop(), event)
            else:
                self.bad_events += 1

    @property
    def unpaired(self) -> int:
        """The number of begin events without an end."""
        return sum(map(len, self._open.values()))

    def name_classes(self) -> npt.NDArray[np.int8]:
        """Return the class of every name, by its number."""
        if len(self._name_classes) != len(self.names.classes):
            self._name_classes = np.array(self.names.classes, np.int8)
        return self._name_classes

    def categories(self) -> npt.NDArray[np.int8]:
        """Return the category of every track, by its number."""
        if len(self._categories) != len(self.tracks.items_):
            self._categories = np.array([track.category for track in self.tracks.items_], np.int8)
        return self._categories

    def lane_names(self, own: npt.NDArray[np.bool_] | None = None) -> list[str]:
        """Return the lane of every track, for a rank whose tracks are its `own` (None: all)."""
        tracks = self.tracks.items_ if own is None else list(compress(self.tracks.items_, own.tolist()))
        device_tracks = [track for track in tracks if track.category in DEVICE_CATEGORIES]
        several = len({track.device for track in device_tracks}) > 1
        return [_lane_name(track, several) for track in self.tracks.items_]


def stored_name(name: str) -> str:
    """Return `name` as it is stored: valid Unicode; an overlong one is cut, and a digest keeps it distinct."""
    encoded = name.encode("utf-8", "replace")
    if len(name) <= MAX_NAME_LENGTH:
        return encoded.decode()
    digest = hashlib.blake2b(encoded, digest_size=6).hexdigest()
    return f"{encoded.decode()[: MAX_NAME_LENGTH - len(digest) - 1]}…{digest}"


def _lane_name(track: Track, several_devices: bool) -> str:
    if track.category in DEVICE_CATEGORIES:
        device = f"{track.device}/" if several_devices else ""
        return stored_name(f"{STREAM_PREFIX}{device}{track.lane}")
    return stored_name(f"{THREAD_PREFIX}{track.lane}")


def _number(value: int | str) -> int | str:
    """Return the number at the end of an identity such as `stream 7`, else the identity itself."""
    if isinstance(value, str) and (match := _TRAILING_NUMBER.search(value)) and len(match.group(1)) < 19:
        return int(match.group(1))
    return value


def _integers(values: list[int]) -> npt.NDArray[np.int64]:
    try:
        return np.fromiter(values, np.int64, len(values))
    except OverflowError:
        return np.array([value if value in _INT64 else -1 for value in values], np.int64)


def _joined(begin: Event, end: Event) -> Event:
    start, stop = times.exact_nanoseconds(bytes(begin.ts)), times.exact_nanoseconds(bytes(end.ts))
    known = times.INVALID not in (start, stop)
    begin.ts = msgspec.Raw(bytes(begin.ts))
    begin.dur = msgspec.Raw(f"{(stop - start) // 1000}.{(stop - start) % 1000:03}".encode() if known else b"-1")
    begin.ph = "X"
    begin.args = begin.args or end.args
    return begin
