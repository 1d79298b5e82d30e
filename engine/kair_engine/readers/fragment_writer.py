"""Writes rows of one or several ranks, collected by a reader, as a fragment of the operations table.

For formats that are read into memory: a reader adds rows and the steps, and gets its fragment. Steps come from the
recording's ranges, else from what its devices repeat.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kair_engine.errors import InputError
from kair_engine.readers.launch_queue import Calls, Work, are_earlier, found_ids, launched_before, queue_of
from kair_engine.readers.paths import host_of
from kair_engine.readers.rank_identity import by_rank
from kair_engine.readers.step_marks import OUTSIDE, Mark, Steps, between_optimizers, marked_steps, one_step, repetition
from kair_engine.trace.columns import Int64s, dictionary, nullable, numbers, occurrences
from kair_engine.trace.format import (
    KINDS,
    MAX_NAME_LENGTH,
    PHASES,
    QUEUE_FULL,
    SCHEMA,
    STEP_SCOPE,
    STREAM_PREFIX,
    FragmentWriter,
)
from kair_engine.trace.identity import RankIdentity
from kair_engine.trace.model import NOT_RECORDED, FragmentInfo, KairWarning, LaunchQueue, StepTimes, short_warning

_ABSENT: Final = -1
_TIMES: Final = range(-(1 << 62), 1 << 62)
_DURATIONS: Final = range(10**18)
_NUMBERS: Final = range((1 << 63) - 1)
_PEERS: Final = range(1 << 31)
# Microseconds since 1970 passed this in 1973; clocks that start at boot do not reach it.
EPOCH_NS: Final = 10**17


class Codes(dict[str, int]):
    """Text → its number, in the order of first use."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def __missing__(self, text: str) -> int:
        stored = text[:MAX_NAME_LENGTH].encode("utf-8", "replace").decode()
        if stored != text:
            self[text] = number = self[stored]
            return number
        self.texts.append(text)
        self[text] = len(self.texts) - 1
        return self[text]


Coded = tuple[Int64s, Sequence[str]]
"""Texts as numbers, and the text of each number."""


def _column() -> "array[int]":
    return array("q")


@dataclass
class Rows:
    """The operations of one rank, as columns that grow; 8 bytes a value."""

    bad: int = 0
    """Rows that were rejected for an invalid time or duration."""
    lanes: Codes = field(default_factory=Codes)
    names: Codes = field(default_factory=Codes)
    groups: Codes = field(default_factory=Codes)
    lane: "array[int]" = field(default_factory=_column)
    name: "array[int]" = field(default_factory=_column)
    kind: "array[int]" = field(default_factory=_column)
    phase: "array[int]" = field(default_factory=_column)
    start: "array[int]" = field(default_factory=_column)
    duration: "array[int]" = field(default_factory=_column)
    moment: "array[int]" = field(default_factory=_column)
    group: "array[int]" = field(default_factory=_column)
    sequence: "array[int]" = field(default_factory=_column)
    size: "array[int]" = field(default_factory=_column)
    peer: "array[int]" = field(default_factory=_column)
    correlation: "array[int]" = field(default_factory=_column)

    def __len__(self) -> int:
        return len(self.start)

    def add(
        self,
        lane: str,
        name: str,
        kind: str,
        start: int,
        duration: int,
        *,
        phase: str | None = None,
        group: str | None = None,
        sequence: int | None = None,
        size: int | None = None,
        peer: int | None = None,
        correlation: int | None = None,
        moment: int | None = None,
    ) -> None:
        """Add one operation; times in ns. `moment` is its launch time, which decides its step.

        A row without a usable time is counted as bad; other numbers that do not fit their column are left out.
        """
        if start not in _TIMES or duration not in _DURATIONS:
            self.bad += 1
            return
        self.lane.append(self.lanes[lane])
        self.name.append(self.names[name])
        self.kind.append(KINDS.index(kind))
        self.phase.append(_ABSENT if phase is None else PHASES.index(phase))
        self.start.append(start)
        self.duration.append(duration)
        self.moment.append(start if moment is None or moment not in _TIMES else moment)
        self.group.append(_ABSENT if group is None else self.groups[group])
        self.sequence.append(sequence if sequence is not None and sequence in _NUMBERS else _ABSENT)
        self.size.append(size if size is not None and size in _NUMBERS else _ABSENT)
        self.peer.append(peer if peer is not None and peer in _PEERS else _ABSENT)
        self.correlation.append(correlation if correlation is not None and correlation in _NUMBERS else _ABSENT)

    def add_wait(self, row: int, waited: int) -> None:
        """Split a launch into two operations: the wait for a place in the queue, and the launch proper."""
        self.add(
            self.lanes.texts[self.lane[row]],
            QUEUE_FULL,
            "sync",
            self.start[row],
            waited,
            phase=None if self.phase[row] == _ABSENT else PHASES[self.phase[row]],
            moment=self.moment[row],
        )
        self.start[row] += waited
        self.duration[row] -= waited

    def extend(
        self,
        lane: Coded,
        name: Coded,
        kind: Int64s,
        start: Int64s,
        duration: Int64s,
        *,
        phase: Int64s,
        correlation: Int64s,
        moment: Int64s,
        size: Int64s | None = None,
        group: Coded | None = None,
    ) -> None:
        """Add operations as columns, one after another as `add` would: kinds, phases and groups by number, -1 for none.

        Times that overflowed 64 bits on the way here are beyond any clock, and are rejected like those.
        """
        good = _within(start, _TIMES) & _within(duration, _DURATIONS)
        self.bad += len(good) - int(good.sum())
        absent = np.full(len(good), _ABSENT, np.int64)
        columns = {
            "kind": kind,
            "phase": phase,
            "start": start,
            "duration": duration,
            "moment": np.where(_within(moment, _TIMES), moment, start),
            "sequence": absent,
            "size": absent if size is None else np.where(_within(size, _NUMBERS), size, _ABSENT),
            "peer": absent,
            "correlation": np.where(_within(correlation, _NUMBERS), correlation, _ABSENT),
        }
        for of, values in columns.items():
            getattr(self, of).frombytes(values[good].astype(np.int64, copy=False).tobytes())
        self.lane.frombytes(_recoded(lane, good, self.lanes).tobytes())
        self.name.frombytes(_recoded(name, good, self.names).tobytes())
        groups = absent[good]
        if group is not None:
            named = good & (group[0] >= 0)
            groups[named[good]] = _recoded(group, named, self.groups)
        self.group.frombytes(groups.tobytes())

    def column(self, name: str) -> Int64s:
        """Return a column's values; -1 where absent."""
        return _numbers(getattr(self, name))

    def extent(self) -> tuple[int, int]:
        """Return the first begin and the last end. Raises ValueError if there are no rows."""
        start, duration = _numbers(self.start), _numbers(self.duration)
        return int(start.min()), int((start + duration).max())


def _within(values: Int64s, bounds: range) -> npt.NDArray[np.bool_]:
    inside: npt.NDArray[np.bool_] = (values >= bounds.start) & (values < bounds.stop)
    return inside


def _recoded(coded: Coded, chosen: npt.NDArray[np.bool_], known: Codes) -> Int64s:
    """Return the chosen ones by the numbers of `known`, to which missing texts are added in order of first use."""
    codes, texts = coded[0][chosen], coded[1]
    first = np.full(len(texts), len(codes))
    # The last assignment to an index wins: in reversed order that is the first use.
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    number = np.full(len(texts), _ABSENT)
    for at in np.argsort(first, kind="stable")[: int((first < len(codes)).sum())].tolist():
        number[at] = known[texts[at]]
    return number[codes]


@dataclass(frozen=True)
class RankRecording:
    """The operations and steps of one rank."""

    rank: int
    rows: Rows
    steps: Steps
    main_lane: str
    """The lane of the steps' scopes."""
    host: str | None = None
    """As the recording states it; a folder `host=NAME` takes precedence."""
    identity: RankIdentity | None = None
    """What else the recording states about the rank; None for nothing."""


def write_recording(
    source: Path,
    out: Path,
    ranks: Sequence[RankRecording],
    *,
    form: str,
    rank_known: bool,
    has_device: bool,
    mark: str,
    device: str | None = None,
    world_size: int | None = None,
    warnings: Iterable[KairWarning] = (),
) -> FragmentInfo:
    """Write the ranks' rows as the fragment `out`, step by step and rank by rank.

    `mark` says how steps would have been marked, for a warning if they are not; that comes before `warnings`. Raises
    InputError if no row of any rank lies in a step, OSError if the disk is full.
    """
    if not any(len(one.rows) for one in ranks):
        raise InputError(f"{source.name} holds no operations")
    steps = ranks[0].steps
    ranks = sorted(ranks, key=lambda one: one.rank)
    parts = [_Part(one) for one in ranks]
    if not any(part.count for part in parts):
        raise InputError(f"{source.name} holds no operations")
    times: list[tuple[int, ...]] = []
    with FragmentWriter(out) as writer:
        for number in sorted({number for part in parts for number in part.numbers}):
            for part in parts:
                if (at := part.numbers.get(number)) is not None:
                    writer.write(table := part.table(at, number))
                    begin, length = part.window(at)
                    device_times = part.on_device.get(at, (NOT_RECORDED, NOT_RECORDED))
                    times.append((part.rank, number, begin, length, len(table) - 1, *device_times))
        step_times = _step_times(sorted(times))
        info = FragmentInfo(
            source=str(source),
            format=form,
            ranks=tuple(one.rank for one in ranks),
            rank_known=rank_known,
            world_size=world_size,
            hosts={one.rank: host for one in ranks if (host := host_of(source, one.host))},
            device=device,
            has_device=has_device,
            absolute_time=int(steps.begin.min()) > EPOCH_NS,
            operations=sum(step_times.operations),
            step_times=step_times,
            warnings=(*steps.warnings(source, mark), *warnings, *_left_out(source, parts)),
            launch_queue={part.rank: part.queue for part in parts if part.queue is not None},
            identity=by_rank(one.identity for one in ranks if one.identity is not None),
        )
        writer.commit(info)
    return info


class _Part:
    """One rank's rows, by step."""

    def __init__(self, recording: RankRecording) -> None:
        self.rank, self._rows, self._steps = recording.rank, recording.rows, recording.steps
        self.bad = recording.rows.bad
        rows = recording.rows
        self._main = rows.lanes[recording.main_lane]
        self._scope = rows.names[STEP_SCOPE]
        # Within a step, lanes are ordered by name.
        order = sorted(range(len(rows.lanes.texts)), key=rows.lanes.texts.__getitem__)
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        self._lane_place = place
        self.queue, before = _with_waits_apart(rows)
        step = self._steps.index_at(_numbers(rows.moment))
        step[before] = OUTSIDE
        self.launched_before = len(before)
        self.on_device: dict[int, tuple[int, int]] = {}
        """Index of a step whose table was made → begin of its first and end of its last device operation that computes
        or communicates."""
        by_step = np.argsort(step, kind="stable")
        bounds = np.searchsorted(step[by_step], np.arange(len(self._steps.number) + 1))
        self._of_step = [by_step[begin:end] for begin, end in pairwise(bounds)]
        self.count = sum(map(len, self._of_step))
        self.numbers = {int(number): at for at, number in enumerate(self._steps.number.tolist())}

    def window(self, at: int) -> tuple[int, int]:
        begin = int(self._steps.begin[at])
        return begin, int(self._steps.end[at]) - begin

    def table(self, at: int, number: int) -> pa.Table:
        """Return the rows of one step, in the table's order, including the step's scope."""
        rows, chosen = self._rows, self._of_step[at]
        self._see_device(at, chosen)
        begin, length = self.window(at)
        scope = {"lane": self._main, "name": self._scope, "kind": KINDS.index("scope"), "start": begin}
        scope["duration"] = length
        of = {
            name: np.append(_numbers(getattr(rows, name))[chosen], np.int64(scope.get(name, _ABSENT)))
            for name in _COLUMNS
        }
        order = np.lexsort((-of["duration"], of["start"], self._lane_place[of["lane"]]))
        of = {name: values[order] for name, values in of.items()}
        return _arrow(of, rows, self.rank, number)

    def _see_device(self, at: int, chosen: Int64s) -> None:
        rows = self._rows
        works = chosen[_on_streams(rows)[_numbers(rows.lane)[chosen]]]
        works = works[~np.isin(_numbers(rows.kind)[works], (KINDS.index("memory"), KINDS.index("scope")))]
        if len(works):
            start = _numbers(rows.start)[works]
            self.on_device[at] = int(start.min()), int((start + _numbers(rows.duration)[works]).max())


def _on_streams(rows: Rows) -> npt.NDArray[np.bool_]:
    """Return per lane whether it is a device's."""
    return np.array([lane.startswith(STREAM_PREFIX) for lane in rows.lanes.texts], dtype=bool)


def _with_waits_apart(rows: Rows) -> tuple[LaunchQueue | None, Int64s]:
    """Return (the launch queue, the rows launched before the recording began).

    The waits of launches become rows.
    """
    queue, waits, before = _launch_queue(rows)
    for row, waited in waits:
        rows.add_wait(row, waited)
    return queue, before


def _launch_queue(rows: Rows) -> tuple[LaunchQueue | None, list[tuple[int, int]], Int64s]:
    """Return (the launch queue, (launch, wait in ns) of launches that waited in it, the rows launched before)."""
    lane, number = _numbers(rows.lane), _numbers(rows.correlation)
    device = _on_streams(rows)[lane] if len(lane) else np.zeros(0, dtype=bool)
    device &= _numbers(rows.kind) != KINDS.index("scope")
    calls, work = np.flatnonzero(~device & (number >= 0)), np.flatnonzero(device)
    calls = calls[np.argsort(number[calls], kind="stable")]
    start, over = _numbers(rows.start), _numbers(rows.start) + _numbers(rows.duration)
    _, launched = found_ids(number[calls], number[work])
    before = are_earlier(number[work], lane[work], start[work], launched)
    seen = Calls()
    seen.see(number[calls], _numbers(rows.name)[calls], start[calls], _numbers(rows.duration)[calls])
    found = queue_of(seen, number[calls], Work(number[work], lane[work], over[work], before))
    if found is None:
        return None, [], work[before]
    at, waits = found_ids(found.ids, number[calls])
    waited = zip(calls[waits].tolist(), found.waited_ns[at[waits]].tolist(), strict=True)
    return found.queue, list(waited), work[before]


_COLUMNS: Final = (
    "lane",
    "name",
    "kind",
    "phase",
    "start",
    "duration",
    "group",
    "sequence",
    "size",
    "peer",
    "correlation",
)


def _arrow(of: dict[str, Int64s], rows: Rows, rank: int, step: int) -> pa.Table:
    count = len(of["start"])
    absent = pa.nulls(count, pa.int32())
    arrays = [
        numbers(np.full(count, step, np.int32)),
        numbers(np.full(count, rank, np.int32)),
        dictionary(of["lane"], rows.lanes.texts),
        dictionary(of["name"], rows.names.texts),
        dictionary(of["kind"], KINDS),
        dictionary(of["phase"], PHASES),
        numbers(occurrences(of["phase"], of["name"], of["kind"], of["start"]).astype(np.int32)),
        numbers(of["start"]),
        numbers(of["duration"]),
        dictionary(of["group"], rows.groups.texts),
        nullable(of["sequence"], pa.int64()),
        nullable(of["size"], pa.int64()),
        pa.nulls(count, SCHEMA.field("inputs").type),
        nullable(of["peer"], pa.int32()),
        absent,
        absent,
        nullable(of["correlation"], pa.int64()),
    ]
    return pa.table(arrays, schema=SCHEMA)


def _step_times(times: Iterable[tuple[int, ...]]) -> StepTimes:
    rank, step, begin, duration, operations, device_begin, device_end = map(tuple, zip(*times, strict=True))
    plain = StepTimes(rank, step, begin, duration, operations)
    if all(one == NOT_RECORDED for one in device_end):
        return plain
    return replace(plain, device_begin_ns=device_begin, device_end_ns=device_end)


def _left_out(source: Path, parts: Sequence["_Part"]) -> Iterator[KairWarning]:
    if bad := sum(part.bad for part in parts):
        text = f"{bad} events of {source.name} have no valid time or duration and are left out"
        yield short_warning("bad_events", text)
    if count := sum(part.launched_before for part in parts):
        yield launched_before(source.name, count)


def _numbers(column: "array[int]") -> npt.NDArray[np.int64]:
    return np.frombuffer(column, np.int64) if len(column) else np.empty(0, np.int64)


def steps_from(marks: Sequence[Mark], rows: Rows) -> Steps:
    """Return the steps from ranges, else from what repeats on a stream, else the whole recording as one."""
    if not len(rows):
        return marked_steps(marks, np.empty(0, np.int64)) or one_step((0, 0))
    work, extent = np.sort(rows.column("moment")), rows.extent()
    return marked_steps(marks, work) or between_optimizers(marks, work, extent) or _repeating(rows) or one_step(extent)


def _repeating(rows: Rows) -> Steps | None:
    """Return what repeats on a stream, the busiest streams first; steps are cut at launches if these are known."""
    kind, lane = rows.column("kind"), rows.column("lane")
    works = np.flatnonzero(kind != KINDS.index("scope"))
    computes = (kind[works] == KINDS.index("compute")) | (kind[works] == KINDS.index("collective"))
    often = np.bincount(lane[works], weights=computes, minlength=len(rows.lanes.texts))
    for stream in np.argsort(-often, kind="stable").tolist():
        if often[stream] and rows.lanes.texts[stream].startswith(STREAM_PREFIX):
            of_stream = works[lane[works] == stream]
            of_stream = of_stream[np.argsort(rows.column("start")[of_stream], kind="stable")]
            if (found := repetition(rows.column("name")[of_stream], rows.names.texts)) is not None:
                begin, end = _windows(rows, of_stream, found.bounds)
                return Steps(np.arange(len(begin)), begin, end, found.inferred_from)
    return None


def _windows(rows: Rows, stream: Int64s, bounds: Int64s) -> tuple[Int64s, Int64s]:
    """Return begins and ends of steps between places in a stream: each after the previous part was launched, or has
    run.

    Operations at the start of a recording may have been launched long before it: such steps are dropped.
    """
    moment, start = rows.column("moment")[stream], rows.column("start")[stream]
    over = np.where(moment < start, moment + 1, start + rows.column("duration")[stream])
    edges = np.append(rows.extent()[0], over)[bounds]
    sooner = np.minimum.accumulate(edges[::-1])[::-1]
    edges = edges[edges == sooner]
    return edges[:-1], edges[1:]
