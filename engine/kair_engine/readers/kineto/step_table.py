"""Makes the rows of one step from its records.

Also assigns events to steps: a device's operation belongs to the step that launched it, whenever it ran.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import field
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kair_engine.arrays import Bools, is_one_of, order_by
from kair_engine.causes import COMPILES
from kair_engine.frozen import dataclass
from kair_engine.readers.blocking_calls import blocking_functions
from kair_engine.readers.kineto.classify import (
    DEVICE_CATEGORIES,
    UNKNOWN,
    Category,
    NameClass,
    host_phases,
    kind_codes,
    within_marks,
)
from kair_engine.readers.kineto.collective_details import DetailColumns, global_peers, peers_counted
from kair_engine.readers.kineto.collectives import StepCollectives
from kair_engine.readers.kineto.events import Records, joined
from kair_engine.readers.kineto.steps import OUTSIDE, StepWindows
from kair_engine.readers.kineto.tables import EventTables
from kair_engine.readers.launch_queue import (
    LONGEST_USUAL_NS,
    Calls,
    Work,
    are_earlier,
    before_their_calls,
    found_ids,
    queue_of,
)
from kair_engine.trace.columns import dictionary, nullable, numbers, occurrences
from kair_engine.trace.format import KINDS, PHASES, QUEUE_FULL, SCHEMA, STEP_SCOPE
from kair_engine.trace.model import FirstSend, LaunchQueue

Int64s = npt.NDArray[np.int64]

_IS_COMMUNICATION: Final = np.isin(KINDS, ("collective", "send", "recv"))
_HOST_TIMED: Final = (NameClass.HOST_COLLECTIVE, NameClass.HOST_SEND, NameClass.HOST_RECV)


@dataclass
class _Columns:
    """The columns of one step, equally long; -1 means absent until they become an Arrow table."""

    lane: Int64s
    name: Int64s
    kind: Int64s
    phase: Int64s
    start: Int64s
    duration: Int64s
    group: Int64s
    sequence: Int64s
    size: Int64s
    inputs: Int64s
    peer: Int64s
    correlation: Int64s


class StepAssembler:
    """Makes the tables of steps one by one; work that a file's steps share is done once."""

    def __init__(
        self,
        tables: EventTables,
        windows: StepWindows,
        *,
        rank: int,
        base_ns: int,
        default_group: str | None,
        groups_listed: bool,
        lost_device: bool,
        own: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        """`groups_listed`: the possible groups of a peer on the host are known, though not which of them it is.

        `lost_device`: the recording ran on a device although none of its operations may be left. `own`: the rank's
        tracks, if the file holds other ranks, too.
        """
        self._tables, self._windows = tables, windows
        self._rank, self.base_ns, self._groups_listed = rank, base_ns, groups_listed
        self._details = DetailColumns(tables.details)
        self._groups = [*self._details.groups, *([default_group] if default_group else [])]
        self.peers = peers_counted(tables.details, rank)
        self._no_group = self._groups.index(default_group) if default_group else -1
        self._category = tables.categories().astype(np.int64)
        self._name_class = tables.name_classes().astype(np.int64)
        self._is_mark = self._name_class == NameClass.STEP
        self._on_device = is_one_of(self._category, DEVICE_CATEGORIES)
        self._is_scope = is_one_of(self._category, (Category.CPU_OP, Category.ANNOTATION))
        self._from_device = np.array(["DtoH" in name for name in tables.names.items_], dtype=bool)
        lanes = tables.lane_names(own)
        self._lanes = sorted(set(lanes))
        numbers = {lane: number for number, lane in enumerate(self._lanes)}
        self._lane = np.array([numbers[lane] for lane in lanes], np.int64)
        self.has_device = lost_device or bool(self._on_device.any())
        kinds = kind_codes(
            has_device=self.has_device,
            host_collectives=bool(is_one_of(self._name_class, _HOST_TIMED).any()),
        )
        self._kinds = kinds.astype(np.int64)
        # With a device, operators on threads count as the host's already.
        compiles = (not self.has_device and COMPILES.match(name) is not None for name in tables.names.items_)
        self._compiles = np.fromiter(compiles, np.bool_)
        self._names = [*tables.names.items_, STEP_SCOPE]
        self._bytes_of_inputs = np.array(tables.inputs.bytes_, np.int64)
        self._shapes = tables.inputs.shapes
        self._has_shapes = np.array(list(map(bool, self._shapes)), np.bool_)
        self._first_sends: Counter[FirstSend] = Counter()
        self.groups_missing = False
        """Whether communication timed on the host, in the tables made so far, lacks its process group."""
        self.on_device: dict[int, tuple[int, int]] = {}
        """Index of a step whose table was made → begin of its first and end of its last device operation that computes
        or communicates."""

    def take_for_waits(self, functions: Int64s) -> None:
        """Count calls of these functions (numbers of names) as waits for the device in all tables."""
        self._name_class[functions] = NameClass.SYNCHRONIZE

    @property
    def first_send(self) -> FirstSend | None:
        """The most frequent first send of the tables made so far; None if none exists."""
        return self._first_sends.most_common(1)[0][0] if self._first_sends else None

    def table(self, records: Records, step: int) -> pa.Table:
        """Return the table of the step with index `step`, including its scope row."""
        records = self._without_marks(records)
        columns, groups = self._columns(records)
        self._see_first_send(columns, groups)
        works = self._on_device.take(records["track"]) & (columns.kind != KINDS.index("memory"))
        if works.any():
            over = columns.start[works] + columns.duration[works]
            self.on_device[step] = int(columns.start[works].min()), int(over.max())
        columns = self._in_order(columns, step)
        number = int(self._windows.number[step])
        return self._arrow(columns, groups, number)

    def _see_first_send(self, columns: _Columns, groups: list[str]) -> None:
        sends = np.flatnonzero((columns.kind == KINDS.index("send")) & (columns.peer >= 0) & (columns.group >= 0))
        if not len(sends):
            return
        first = sends[np.argmin(columns.start[sends])]
        received = columns.start[columns.kind == KINDS.index("recv")]
        begins = not np.any(received < columns.start[first])
        self._first_sends[FirstSend(groups[columns.group[first]], int(columns.peer[first]), begins)] += 1

    def _without_marks(self, records: Records) -> Records:
        steps = np.flatnonzero(self._is_mark.take(records["name"]))
        marks = steps[self._is_scope[records["track"][steps]]].tolist()
        # Few marks: copying the stretches between them is many times faster than selecting by mask.
        return joined(records[last + 1 : mark] for last, mark in pairwise([-1, *marks, len(records)]))

    def _columns(self, records: Records) -> tuple[_Columns, list[str]]:
        track, name = records["track"].astype(np.int64), records["name"].astype(np.int64)
        category, name_class = self._category.take(track), self._name_class.take(name)
        thread, start, duration = before_their_calls(
            np.flatnonzero(category == Category.OVERHEAD),
            (category == Category.RUNTIME) & (name_class != NameClass.SYNCHRONIZE),
            self._lane.take(track),
            records["start"].astype(np.int64),
            records["duration"].astype(np.int64),
            threads_known=False,
        )
        end = start + duration
        device = self._on_device.take(track)
        phase = host_phases(
            start=start,
            end=end,
            thread=thread,
            name_class=name_class,
            is_scope=self._is_scope.take(track),
            main_thread=self._main_lane(),
        ).astype(np.int64)
        kind = self._kinds.take(category * len(NameClass) + name_class)
        compilers = np.flatnonzero(self._compiles.take(name) & (kind == KINDS.index("compute")))
        compiling = within_marks(compilers, start, end, thread) & (kind == KINDS.index("compute"))
        kind[compiling] = KINDS.index("host")
        launch = _launch_rows(records, category, device)
        phase[device] = np.where(launch[device] >= 0, phase[launch[device]], UNKNOWN)
        count = len(records)
        correlated = device | (category == Category.RUNTIME)
        size, inputs = self._given(records, category)
        columns = _Columns(
            lane=thread,
            name=name,
            kind=kind,
            phase=phase,
            start=start + self.base_ns,
            duration=duration.copy(),
            group=np.full(count, -1),
            sequence=np.full(count, -1),
            size=size,
            inputs=inputs,
            peer=np.full(count, -1),
            correlation=np.where(correlated, records["correlation"], -1),
        )
        collectives = StepCollectives(
            self._tables,
            self._details,
            detail=records["detail"].astype(np.int64),
            category=category,
            name=name,
            name_class=name_class,
            thread=thread,
            start=start,
            end=end,
        )
        return columns, self._describe_collectives(columns, collectives, launch, device)

    def _given(self, records: Records, category: Int64s) -> tuple[Int64s, Int64s]:
        """Return per row its bytes, -1 for none, and for operators on threads the number of their inputs' shapes."""
        size, inputs = records["size"].astype(np.int64), np.full(len(records), -1)
        given = np.flatnonzero((category == Category.CPU_OP) & (size >= 0))
        number = size[given]
        size[given] = self._bytes_of_inputs[number]
        inputs[given] = np.where(self._has_shapes[number], number, -1)
        return size, inputs

    def _describe_collectives(
        self, columns: _Columns, collectives: StepCollectives, launch: Int64s, device: npt.NDArray[np.bool_]
    ) -> list[str]:
        """Fill group, sequence, bytes, peer and kind of communication rows; return the groups' names."""
        communication = _IS_COMMUNICATION[columns.kind]
        on_device = np.flatnonzero(communication & device)
        on_host = np.flatnonzero(communication & ~device)
        issued_by = collectives.calls_of_host_rows(on_host)
        copies = np.flatnonzero(device & self._from_device[columns.name])
        begins = collectives.begins_of_host_rows(on_host, issued_by, copies, launch) + self.base_ns
        columns.duration[on_host] -= begins - columns.start[on_host]
        columns.start[on_host] = begins
        columns.phase[on_host] = np.where(issued_by >= 0, columns.phase[issued_by], columns.phase[on_host])
        of_host, peers_of_host = collectives.of_host_rows(on_host)
        of_device = collectives.of_device_rows(on_device, launch)
        rows, of_rows = np.concatenate([on_device, on_host]), np.concatenate([of_device, of_host])
        peers = np.concatenate([self._details.peer[of_device], peers_of_host])
        group = self._details.group[of_rows]
        group[group < 0] = self._no_group
        self.groups_missing |= bool((group[len(on_device) :] < 0).any())
        groups = list(dict.fromkeys(group[group >= 0].tolist()))
        place = np.full(len(self._groups) + 1, -1)
        place[groups] = np.arange(len(groups))
        columns.group[rows] = place[group]
        described, of_rows = rows[of_rows >= 0], of_rows[of_rows >= 0]
        columns.sequence[described] = self._details.sequence[of_rows]
        columns.size[described] = self._details.size[of_rows]
        sent = self._details.kind[of_rows] != KINDS.index("collective")
        columns.kind[described[sent]] = self._details.kind[of_rows[sent]]
        known = (peers >= 0) & ((group >= 0) | device[rows] | self._groups_listed)
        for one in sorted(set(group[known].tolist())):
            of_group = known & (group == one)
            name = self._groups[one] if one >= 0 else None
            columns.peer[rows[of_group]] = global_peers(peers[of_group].tolist(), name, self._rank, self.peers)
        return [self._groups[one] for one in groups]

    def _main_lane(self) -> int:
        return int(self._lane[self._windows.track]) if self._windows.track >= 0 else 0

    def _in_order(self, columns: _Columns, step: int) -> _Columns:
        """Return the rows with the step's scope row, in the table's order."""
        begin, end = int(self._windows.begin[step]), int(self._windows.end[step])
        scope = dict.fromkeys(vars(columns), -1) | {
            "lane": self._main_lane(),
            "name": len(self._names) - 1,
            "kind": KINDS.index("scope"),
            "start": begin + self.base_ns,
            "duration": end - begin,
        }
        if not len(columns.start):
            return _Columns(**{name: np.array([value]) for name, value in scope.items()})
        keys = (np.append(getattr(columns, name), scope[name]) for name in ("lane", "start", "duration"))
        order = _rows_in_order(*keys)
        at = int(np.flatnonzero(order == len(columns.start))[0])
        # The scope row borrows another row's values until it is overwritten: joining first would copy everything twice.
        ordered = {name: values.take(order, mode="clip") for name, values in vars(columns).items()}
        for name, values in ordered.items():
            values[at] = scope[name]
        return _Columns(**ordered)

    def _arrow(self, columns: _Columns, groups: list[str], step: int) -> pa.Table:
        count = len(columns.start)
        absent = pa.nulls(count, pa.int32())
        arrays = {
            "step": np.full(count, step, np.int32),
            "rank": np.full(count, self._rank, np.int32),
            "lane": dictionary(columns.lane, self._lanes),
            "name": dictionary(columns.name, self._names),
            "kind": dictionary(columns.kind, KINDS),
            "phase": dictionary(columns.phase, PHASES),
            "occurrence": occurrences(columns.phase, columns.name, columns.kind, columns.start).astype(np.int32),
            "start_ns": columns.start,
            "duration_ns": columns.duration,
            "group": dictionary(columns.group, groups),
            "group_seq": nullable(columns.sequence, pa.int64()),
            "bytes": nullable(columns.size, pa.int64()),
            "inputs": dictionary(columns.inputs, self._shapes),
            "peer": nullable(columns.peer, pa.int32()),
            "microbatch": absent,
            "chunk": absent,
            "correlation": nullable(columns.correlation, pa.int64()),
        }
        return pa.table(
            [value if isinstance(value, pa.Array) else numbers(value) for value in arrays.values()],
            schema=SCHEMA,
        )


def _rows_in_order(lane: Int64s, start: Int64s, duration: Int64s) -> Int64s:
    """Return the rows by lane and start; of equal starts the longer one first."""
    order = order_by(lane, start)
    lane, start = lane.take(order), start.take(order)
    as_next = (start[1:] == start[:-1]) & (lane[1:] == lane[:-1])
    together = np.zeros(len(order), np.bool_)
    together[:-1] = as_next
    together[1:] |= as_next
    places = np.flatnonzero(together)
    rows = order[places]
    # Few ties; sorting everything by three keys takes thirty times as long.
    order[places] = rows[np.lexsort((-duration[rows], start[places], lane[places]))]
    return order


def _launch_rows(records: Records, category: Int64s, device: npt.NDArray[np.bool_]) -> Int64s:
    """Return for each device row the row that launched it, by correlation, else by external id; -1: unknown."""
    launch = np.full(len(records), -1)
    rows = np.flatnonzero(device)
    for key, wanted in _LAUNCHED_BY:
        ids = records[key].astype(np.int64)
        calls = np.flatnonzero((category == wanted) & (ids >= 0))
        if not len(calls) or not len(rows):
            continue
        calls = calls[np.argsort(ids[calls], kind="stable")]
        at, known = found_ids(ids[calls], ids[rows])
        launch[rows[known]] = calls[at[known]]
        rows = rows[~known]
    return launch


_LAUNCHED_BY: Final = (("correlation", Category.RUNTIME), ("external_id", Category.CPU_OP))


@dataclass(frozen=True)
class Launches:
    """Host calls that launched work on a device: sorted ids, and the index of the step of each call."""

    ids: Int64s
    step: Int64s

    def step_of(self, ids: Int64s) -> tuple[Int64s, Bools]:
        """Return the step of each id's launch, and whether there was one."""
        at, known = found_ids(self.ids, ids)
        return self.step.take(at) if len(self.ids) else np.full(len(ids), OUTSIDE), known


@dataclass(frozen=True)
class LaunchTables:
    """Data shared by all steps of a recording: who launched what, and how long launches waited in the queue."""

    windows: StepWindows
    by: tuple[Launches, Launches]
    """By correlation, and by external id."""
    earlier: Int64s
    """The launch numbers of work that was launched before the recording began, in order."""
    queue: LaunchQueue | None = None
    waited: Launches = field(default_factory=lambda: Launches(np.empty(0, np.int64), np.empty(0, np.int64)))
    """The launches that waited in the queue, by correlation, with their waits in ns in place of steps."""
    blocking: Int64s = field(default_factory=lambda: np.empty(0, np.int64))
    """The functions (numbers of names) whose calls wait for the device (blocking_calls.py)."""

    def step_indices(self, batch: Records, tables: EventTables) -> tuple[Int64s, int]:
        """Return the step of every record: host events by their start, device events by their launch, else their own
        start.

        Also returns how many were launched before the recording began, which belong to none of its steps.
        """
        step = self.windows.index_at(batch["start"])
        category = tables.categories().take(batch["track"])
        step[category == Category.DEVICE_ANNOTATION] = OUTSIDE
        if self.windows.on_device:
            return step, 0
        device = np.flatnonzero(is_one_of(category, DEVICE_CATEGORIES))
        by_correlation, by_external_id = self.by
        for name, launches in (("external_id", by_external_id), ("correlation", by_correlation)):
            of, known = launches.step_of(batch[name][device])
            step[device[known]] = of[known]
        before = device[found_ids(self.earlier, batch["correlation"][device])[1]]
        step[before] = OUTSIDE
        return step, len(before)

    def with_waits(self, batch: Records, step: Int64s, tables: EventTables) -> tuple[Records, Int64s]:
        """Return the batch with each launch that waited in the queue split into two calls: the wait and the launch."""
        if not len(self.waited.ids):
            return batch, step
        calls = np.flatnonzero(tables.categories().take(batch["track"]) == Category.RUNTIME)
        at, known = found_ids(self.waited.ids, batch["correlation"][calls])
        calls, lasted = calls[known], self.waited.step[at[known]]
        if not len(calls):
            return batch, step
        batch, waits = batch.copy(), batch[calls].copy()
        batch["start"][calls] += lasted
        batch["duration"][calls] -= lasted
        waits["duration"], waits["name"] = lasted, tables.names[QUEUE_FULL]
        for name in ("correlation", "external_id", "size", "detail"):
            waits[name] = -1
        return joined([batch, waits]), np.concatenate([step, step[calls]])


def find_launches(batches: Iterable[Records], tables: EventTables, windows: StepWindows) -> LaunchTables:
    """Return every host call by its id: runtime calls by `correlation`, operators by `external_id`; and the launch
    queue.
    """
    categories = tables.categories()
    on_device = is_one_of(categories, DEVICE_CATEGORIES)
    found: dict[str, list[tuple[Int64s, Int64s]]] = {name: [] for name, _ in _LAUNCHED_BY}
    calls, work, called = Calls(), list[tuple[Int64s, ...]](), list[tuple[Int64s, ...]]()
    for batch in batches:
        of_rows = categories.take(batch["track"])
        for name, category in _LAUNCHED_BY:
            chosen = np.flatnonzero(of_rows == category)
            chosen = chosen[batch[name][chosen] >= 0]
            found[name].append((batch[name][chosen], windows.index_at(batch["start"][chosen])))
            if category is Category.RUNTIME:
                calls.see(*(batch[of][chosen] for of in ("correlation", "name", "start", "duration")))
        chosen = np.flatnonzero((of_rows == Category.RUNTIME) & (batch["duration"] > LONGEST_USUAL_NS))
        called.append(tuple(batch[of][chosen] for of in ("name", "correlation", "start", "duration")))
        rows = np.flatnonzero(on_device.take(batch["track"]))
        names = ("correlation", "external_id", "track", "start", "duration")
        work.append(tuple(batch[name][rows] for name in names))
    if not work:
        return LaunchTables(windows, (_launches([]), _launches([])), np.zeros(0, np.int64))
    by_correlation, by_external_id = by = _launches(found["correlation"]), _launches(found["external_id"])
    correlation, external_id, track, start, over = (np.concatenate(column) for column in zip(*work, strict=True))
    over += start
    launched = by_correlation.step_of(correlation)[1] | by_external_id.step_of(external_id)[1]
    stream = _streams(tables)[track]
    earlier = are_earlier(correlation, stream, start, launched)
    found_waits = queue_of(calls, by_correlation.ids, Work(correlation, stream, over, earlier))
    blocking = _blocking(tables, called, np.unique(correlation), stream, np.stack((start, over)))
    numbers = np.sort(correlation[earlier])
    if found_waits is None:
        return LaunchTables(windows, by, numbers, blocking=blocking)
    waited = Launches(found_waits.ids, found_waits.waited_ns)
    return LaunchTables(windows, by, numbers, found_waits.queue, waited, blocking)


def _blocking(
    tables: EventTables, called: Sequence[tuple[Int64s, ...]], launched: Int64s, stream: Int64s, ran: Int64s
) -> Int64s:
    """Return the runtime functions whose long calls wait for the device, though their names do not show it."""
    name, correlation, start, duration = (np.concatenate(column) for column in zip(*called, strict=True))
    name = name.astype(np.int64)
    plain = tables.name_classes() == NameClass.PLAIN
    launching = np.unique(name[found_ids(launched, correlation)[1]])
    known = np.union1d(launching, np.flatnonzero(~plain))
    names = tables.names.items_
    return blocking_functions(names, name, start, start + duration, launching=known, stream=stream, ran_ns=ran)


def _streams(tables: EventTables) -> Int64s:
    """Return per track its stream as a small number: a stream has separate tracks for kernels and copies."""
    numbers: dict[tuple[int | str, int | str], int] = {}
    of = [numbers.setdefault((track.device, track.lane), len(numbers)) for track in tables.tracks.items_]
    return np.array(of, np.int64)


def _launches(parts: list[tuple[Int64s, Int64s]]) -> Launches:
    """Return the launches of all parts in the order of their ids."""
    if not parts:
        return Launches(np.empty(0, np.int64), np.empty(0, np.int64))
    ids, steps = map(np.concatenate, zip(*parts, strict=True))
    if np.any(ids[1:] < ids[:-1]):
        order = np.argsort(ids, kind="stable")
        ids, steps = ids[order], steps[order]
    return Launches(ids, steps)
