"""One step's operations as plain arrays, on which the inner loops of all analyses work.

Also order in time, nesting and launches of operations, on arrays, because a step can have 10⁷ of them; and counts of
operations that had ended by a given time.
"""

from collections.abc import Mapping
from dataclasses import field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

import numpy as np

from kair_engine.arrays import (
    NONE,
    Bools,
    Codes,
    Ints,
    SmallInts,
    dense,
    is_one_of,
    order_by,
    present,
    stable_order,
    whole_parts,
)
from kair_engine.causes import COMPILES, PROFILER_OVERHEADS
from kair_engine.frozen import dataclass
from kair_engine.trace.side_threads import side_threads

_LARGEST_KEY = 1 << 62
ROUNDING_NS = 2
"""Begins and durations are rounded separately: an operation may seem to end this long after the next one began."""


@dataclass(frozen=True)
class Nesting:
    """Nesting of operations on threads.

    `order` lists their rows by (rank, lane, start, longest first), the outer before the inner ones; `parent` has an
    entry per operation of the step: the row of the innermost operation around it on its thread, or NONE.
    """

    order: Ints
    parent: Codes


ROWS_TOGETHER: Final = 1 << 18
"""Of threads, or of ranks, that are looked at together where others do not matter: arrays of more are in no cache, and
what is worked out of all at once takes several times their memory."""


def lane_order(lane: Ints, start: Ints, duration: Ints, rows: Ints) -> Ints:
    """Return `rows` by (lane, start, longest first); `lane` is a number per rank and lane.

    The operations table nearly has that order already, which a stable sort by one key profits from and np.lexsort does
    not: 0.03 s against 1.2 s for 5 million rows.
    """
    if not len(rows):
        return rows
    lanes, starts = lane[rows], start[rows]
    low = int(starts.min())
    span = int(starts.max()) - low + 1
    if (int(lanes.max()) + 1) * span >= _LARGEST_KEY:
        return np.asarray(rows[np.lexsort((-duration[rows], starts, lanes))])
    key = lanes * span + (starts - low)
    if np.any(np.diff(key) < 0):
        by_key = np.argsort(key, kind="stable")
        rows, key = rows[by_key], key[by_key]
    ties = (np.diff(key) == 0) & (np.diff(duration[rows]) > 0)
    if ties.any():
        rows = rows[np.lexsort((-duration[rows], key))]
    return np.asarray(rows)


def nest(lane: Ints, start: Ints, end: Ints, rows: Ints) -> Nesting:
    """Find the parent of each operation in `rows` (threads' operations) by depth: the last one above it."""
    order, parent, duration = np.empty(len(rows), dtype=np.int64), np.full(len(lane), NONE, dtype=np.int32), end - start
    lanes = lane[rows]
    if np.any(lanes[1:] < lanes[:-1]):
        by_lane = stable_order(lanes)
        rows, lanes = rows[by_lane], lanes[by_lane]
    bounds = np.append(np.flatnonzero(np.diff(lanes, prepend=NONE)), len(rows))
    for first, last in whole_parts(bounds, ROWS_TOGETHER):
        some = slice(bounds[first], bounds[last])
        order[some] = of = lane_order(lane, start, duration, rows[some])
        depth = _depth(lane[of], start[of], end[of])
        by_depth = order_by(depth)
        levels = np.split(by_depth, np.flatnonzero(np.diff(depth[by_depth])) + 1)
        for above, here in pairwise(levels):
            parent[of[here]] = of[above[np.searchsorted(above, here) - 1]]
    return Nesting(order, parent)


def _depth(lane: Ints, start: Ints, end: Ints) -> Ints:
    """Return the number of earlier operations of its lane that contain each one, in lane order.

    Counted without a walk: operations begun before it minus operations ended by its start.
    """
    if not len(lane):
        return lane
    first = np.flatnonzero(np.concatenate(([True], lane[1:] != lane[:-1])))
    number = np.cumsum(np.concatenate(([False], lane[1:] != lane[:-1])))
    # An empty operation must not count as ended for a longer one with the same start.
    end = np.maximum(end - ROUNDING_NS, start + 1)
    low = int(start.min())
    span = int(end.max()) - low + 2
    ended = np.sort(number * span + (end - low))
    finished = np.searchsorted(ended, number * span + (start - low), side="right")
    earlier_lanes = np.searchsorted(ended, np.arange(len(first)) * span, side="left")
    begun = np.arange(len(lane)) - first[number]
    return np.asarray(np.maximum(begun - (finished - earlier_lanes[number]), 0))


def launches(rank: Ints, correlation: Ints, on_stream: Bools) -> Ints:
    """Return per operation on a stream the host operation that launched it (by rank and correlation), else NONE."""
    result = np.full(len(rank), NONE, dtype=np.int32)
    known = correlation != NONE
    host, device = np.flatnonzero(known & ~on_stream), np.flatnonzero(known & on_stream)
    if not len(host) or not len(device):
        return result
    ids = correlation[known]
    low, span = int(ids.min()), int(ids.max()) - int(ids.min()) + 1
    if (int(rank.max()) + 1) * span >= _LARGEST_KEY:
        correlation = np.unique(correlation, return_inverse=True)[1].astype(np.int64)
        low, span = 0, len(correlation)
    launched, launching = (rank[rows] * span + correlation[rows] - low for rows in (device, host))
    order = stable_order(launching)
    host, launching = host[order], launching[order]
    place = np.minimum(np.searchsorted(launching, launched), len(host) - 1)
    found = launching[place] == launched
    result[device[found]] = host[place[found]]
    return result


# The same words and order as format.KINDS and format.PHASES, which need pyarrow (30 ms of start-up); a test compares
# them.
KIND_NAMES = ("compute", "collective", "send", "recv", "memory", "input", "host", "sync", "gc", "scope")
PHASE_NAMES = ("forward", "backward", "optimizer", "input")
COMPUTE, COLLECTIVE, SEND, RECV, MEMORY, INPUT, HOST, SYNC, GC, SCOPE = range(len(KIND_NAMES))
STEP_SCOPE = "step"
QUEUE_FULL = "launch queue full"
INSIDE_UNKNOWN = "(inside not recorded)"


_OF_ROWS: Final = (
    *("lane", "name", "kind", "phase", "occurrence", "start_ns", "duration_ns", "group", "group_seq", "correlation"),
    *("input_bytes", "message_bytes", "inputs"),
)
"""The arrays of Operations that have an entry for each, and say the same of some ranks' operations."""


@dataclass(frozen=True)
class Operations:
    """The operations of one step on all ranks: arrays of one length, ordered by (rank, lane, start).

    `lane`, `name` and `group` are codes for `lane_text`, `name_text` and `group_text`. `kind` and `phase` index
    KIND_NAMES and PHASE_NAMES. NONE (−1) stands for null here, and nowhere else. `begin_ns` and `length_ns` are the
    step's own scope rows, one entry per rank of `ranks`; if hosts run ahead, its time on the devices. Times count from
    `origin_ns`, the step's earliest begin, so that float64 holds them without loss.
    """

    step: int
    origin_ns: int
    ranks: Ints
    begin_ns: Ints
    length_ns: Ints
    main_lane: Ints
    """The lane of each rank's step scope: its main thread."""
    rank: Ints
    """Index into `ranks`, not the rank's number."""
    lane: Ints
    name: Ints
    kind: SmallInts
    phase: SmallInts
    occurrence: Ints
    start_ns: Ints
    duration_ns: Ints
    group: Ints
    group_seq: Ints
    peer: Ints
    """Index into `ranks` of the other end of a send or receive, if recorded."""
    correlation: Ints
    name_text: Mapping[int, str]
    lane_text: Mapping[int, str]
    group_text: Mapping[int, str]
    input_bytes: Ints | None = None
    """Bytes of the inputs of operators on threads, NONE where shapes are not recorded; None: of no operation."""
    message_bytes: Ints | None = None
    """Bytes that a member of a collective, send or receive gives or gets, whichever is more; NONE where not recorded,
    and for other rows. None: of no operation."""
    inputs: Ints | None = None
    """Code of the input dimensions of operators on threads, NONE where not recorded; None: of no operation."""
    inputs_text: Mapping[int, str] = field(default_factory=dict)
    """The texts of those codes: `2048,1408;8` for two tensors."""
    in_device_job: bool = False
    """Whether some rank has a device, which these, a part of the step's ranks, may lack."""
    runs_ahead: bool = False
    """Whether the step's times are its devices', a launch queue behind the hosts that launch for them."""
    clock: Ints | None = None
    """Per index into `ranks` a number, equal for those on one clock; None: each has its own."""
    remembered: dict[str, Any] | None = field(default=None, compare=False, repr=False)
    """Values derived from it, for reuse; None if it is not kept beyond one question."""

    def __len__(self) -> int:
        return len(self.rank)

    def of_places(self, first: int, last: int) -> "Operations":
        """Return those of the ranks at the positions from `first` to before `last`, of which these know no other ends.

        What was found out of all ranks, as which threads nobody waits for, holds of them, too.
        """
        begin, end = np.searchsorted(self.rank, (first, last)).tolist()
        rows, ranks = slice(begin, end), slice(first, last)
        of_ranks = {name: getattr(self, name)[ranks] for name in ("ranks", "begin_ns", "length_ns", "main_lane")}
        of_rows = {name: of[rows] for name in _OF_ROWS if (of := getattr(self, name)) is not None}
        part = replace(
            self,
            **of_ranks,
            **of_rows,
            rank=self.rank[rows] - first,
            peer=np.broadcast_to(np.int32(NONE), end - begin),
            clock=None if self.clock is None else self.clock[ranks],
            in_device_job=self.has_device,
            remembered=None,
        )
        order, parent, launch = self.nesting.order, self.nesting.parent[rows], self.launch[rows]
        # Rows of one rank lie together in it, though they are in no order themselves.
        of_part = slice(*np.searchsorted(order, (begin, end)))
        vars(part).update(
            nesting=Nesting(order[of_part] - begin, np.where(parent == NONE, NONE, parent - begin)),
            launch=np.where(launch == NONE, NONE, launch - begin),
            of_side_threads=self.of_side_threads[rows],
        )
        return part

    def forget(self, *names: str) -> None:
        """Drop these derived arrays, which are made again when they are asked for."""
        for name in names:
            vars(self).pop(name, None)

    @cached_property
    def end_ns(self) -> Ints:
        """The end of each operation, on its rank's clock."""
        return self.start_ns + self.duration_ns

    @cached_property
    def on_stream(self) -> Bools:
        """True where the operation ran on a device's stream, False on a host's thread."""
        streams = [code for code, text in self.lane_text.items() if text.startswith("stream ")]
        return np.isin(self.lane, streams)

    @cached_property
    def lane_key(self) -> Ints:
        """One number per rank and lane."""
        return np.asarray(self.rank * (int(self.lane.max(initial=0)) + 1) + self.lane)

    @cached_property
    def communication(self) -> Bools:
        """True for collectives, sends and receives."""
        return is_one_of(self.kind, (COLLECTIVE, SEND, RECV))

    @cached_property
    def of_program(self) -> Bools:
        """True on the rank's main thread and, with a device, on threads that run the backward pass.

        With a device other threads serve these: gloo's copy received data, the data loader's pins memory.
        """
        if not len(self):
            return np.zeros(0, dtype=bool)
        of_main = self.lane == self.main_lane[self.rank]
        if not self.has_device:
            return np.asarray(of_main)
        backward = (self.phase == PHASE_NAMES.index("backward")) & ~self.on_stream & ~self.communication
        return np.asarray(of_main | np.isin(self.lane_key, np.unique(self.lane_key[backward])))

    @cached_property
    def of_side_streams(self) -> Bools:
        """True on streams without launches by the program and without communication: they pace themselves.

        Copies of checkpoints and loggers run so, launched by separate threads or by unrecorded calls. The recording
        shows nothing that waits for them. If none of a rank's launches were recorded, none of its streams counts.
        """
        device = np.flatnonzero(self.on_stream & (self.kind != SCOPE))
        launch = self.launch[device]
        launched = (launch != NONE) & self.of_program[launch]
        ranks = np.bincount(self.rank[device], weights=launched, minlength=len(self.ranks)) > 0
        # Each rank may have its own streams: a table of all ranks × all streams takes gigabytes.
        lane = dense(self.lane_key[device][None])
        held = np.bincount(lane, weights=launched | self.communication[device]) > 0
        result = np.zeros(len(self), dtype=bool)
        result[device] = ~held[lane] & ranks[self.rank[device]]
        return result

    @cached_property
    def of_side_threads(self) -> Bools:
        """True on threads of a job without devices that nothing waits for, as far as the step shows."""
        on_threads = ~self.on_stream & (self.kind != SCOPE)
        return side_threads(self, np.flatnonzero(on_threads), np.flatnonzero(is_one_of(self.kind, (COMPUTE, MEMORY))))

    @cached_property
    def nesting(self) -> Nesting:
        """The nesting of operations on threads; scopes and communication are left out."""
        rows = np.flatnonzero(~self.on_stream & (self.kind != SCOPE) & ~self.communication)
        return nest(self.lane_key, self.start_ns, self.end_ns, rows)

    @cached_property
    def launch(self) -> Ints:
        """The host row that launched each row on a stream, else NONE."""
        return launches(self.rank, self.correlation, self.on_stream)

    @cached_property
    def given_by(self) -> Ints:
        """The row with each row's inputs, NONE without one.

        That is the row itself, or for a kernel the innermost operator around its launch that has inputs.
        """
        known = [of != NONE for of in (self.input_bytes, self.inputs) if of is not None]
        if not known:
            return np.full(len(self), NONE)
        has_inputs = np.logical_or.reduce(known)
        row = np.where(has_inputs, np.arange(len(self)), NONE)
        kernels = np.flatnonzero(self.on_stream & (self.kind == COMPUTE))
        around = self.launch[kernels]
        while (silent := (around != NONE) & ~has_inputs[around]).any():
            around = np.where(silent, self.nesting.parent[around], around)
        row[kernels] = around
        return row

    @cached_property
    def given_bytes(self) -> Ints | None:
        """The input bytes of each row."""
        if self.input_bytes is None:
            return None
        return np.where(self.given_by == NONE, NONE, self.input_bytes[self.given_by])

    @cached_property
    def garbage_collections(self) -> Ints:
        """The rows of kind GC."""
        return np.flatnonzero(self.kind == GC)

    @cached_property
    def of_profiler(self) -> Bools:
        """Whether each is work of the profiler that delays a thread of the program."""
        codes = [code for code, text in self.name_text.items() if text in PROFILER_OVERHEADS]
        # Most recordings have none, which saves finding the program's threads.
        held = is_one_of(self.name, codes) & (self.kind == HOST)
        return np.asarray(held & self.of_program) if codes else held

    @cached_property
    def compiling(self) -> Bools:
        """Return whether each, in a job without devices, is a compiler's call or within one: its host's own time."""
        of_host = np.zeros(len(self), dtype=bool) if self.has_device else self.kind == HOST
        names = present(self.name[of_host]).tolist()
        inside = of_host & is_one_of(self.name, [code for code in names if COMPILES.match(self.name_text[code])])
        while inside.any() and (found := of_host & ~inside & self._within_any(inside)).any():
            inside = inside | found
        return np.asarray(inside)

    def _within_any(self, rows: Bools) -> Bools:
        """Return whether the innermost operation around each, on its thread, is among `rows`."""
        parent = self.nesting.parent
        return np.asarray((parent != NONE) & rows[parent])

    @cached_property
    def queue_full(self) -> Bools:
        """Whether each is the wait before a launch for a place in the queue to its device."""
        codes = [code for code, text in self.name_text.items() if text == QUEUE_FULL]
        return np.asarray(is_one_of(self.name, codes) & (self.kind == SYNC))

    @cached_property
    def step_time_ns(self) -> float:
        """The step's duration: the median over ranks."""
        return float(np.median(self.length_ns)) if len(self.length_ns) else 0.0

    @cached_property
    def has_device(self) -> bool:
        """True if anything ran on a stream."""
        return self.in_device_job or bool(self.on_stream.any())

    def operator(self, row: int) -> str:
        """Return the operator's name of a row."""
        return self.name_text[int(self.name[row])]


def latest_ended(ops: Operations, rows: Ints, others: Ints, by: Ints | None = None, ends: Ints | None = None) -> Ints:
    """Return for each row the one of `others` on its rank that ended last, by the row's start; NONE if none did.

    `by` (one time per row) replaces the rows' starts, `ends` (one per operation) the operations' ends.
    """
    if not len(rows) or not len(others):
        return np.full(len(rows), NONE, dtype=np.int64)
    ends = ops.end_ns if ends is None else ends
    by = ops.start_ns[rows] if by is None else by
    low = min(int(ends[others].min()), int(by.min()))
    span = max(int(ends[others].max()), int(by.max())) - low + 1
    key = ops.rank[others] * span + (ends[others] - low)
    order = np.argsort(key, kind="stable")
    place = np.searchsorted(key[order], ops.rank[rows] * span + (by - low), side="right") - 1
    found = others[order[np.maximum(place, 0)]]
    return np.where((place >= 0) & (ops.rank[found] == ops.rank[rows]), found, NONE)


def latest_of_begun(ops: Operations, rows: Ints, others: Ints, by: Ints) -> Ints:
    """Return the last to end by a time per row, of those that had begun before the row's start."""
    if not len(rows) or not len(others):
        return np.full(len(rows), NONE)
    low, high = int(min(ops.start_ns[others].min(), by.min())), int(max(ops.end_ns[others].max(), by.max()))
    span = high - low + 1
    ends = ops.rank[others] * span + (ops.end_ns[others] - low)
    order = np.argsort(ends, kind="stable")
    begun = ops.rank[others[order]] * span + (ops.start_ns[others[order]] - low)
    place = np.searchsorted(ends[order], ops.rank[rows] * span + (by - low), side="right")
    wanted = ops.rank[rows] * span + (ops.start_ns[rows] - low)
    # Minima of begins over the last 1, 2, 4, … entries: later begins are skipped by powers of two, largest first.
    least = [begun]
    while (size := 1 << (len(least) - 1)) * 2 <= len(begun):
        least.append(np.minimum(least[-1], np.concatenate((least[-1][:size], least[-1][:-size]))))
    for power in range(len(least) - 1, -1, -1):
        skipped = (place >= 1 << power) & (least[power][np.maximum(place, 1) - 1] >= wanted)
        place = np.where(skipped, place - (1 << power), place)
    found = others[order[np.maximum(place, 1) - 1]]
    return np.where((place > 0) & (ops.rank[found] == ops.rank[rows]), found, NONE)
