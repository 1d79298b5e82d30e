"""One step's operations as plain arrays: what the inner loops of every analysis work on.

Order in time, nesting and launches of operations, on arrays: a step can hold 10⁷.

Counts of what had finished by a given time.
"""

from collections.abc import Mapping
from dataclasses import field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from kair_engine.arrays import NONE, Bools, Ints, SmallInts, dense, is_one_of, order_by, present
from kair_engine.causes import COMPILES, PROFILER_OVERHEADS
from kair_engine.frozen import dataclass
from kair_engine.trace.side_threads import side_threads

_LARGEST_KEY = 1 << 62
ROUNDING_NS = 2
"""Begins and durations are rounded each: an operation may be recorded as over so much after the next one began."""


@dataclass(frozen=True)
class Nesting:
    """Operations on threads, the outer before the inner ones.

    `order` lists their rows by (rank, lane, start, longest first); `parent` has an entry per operation of the
    step: the row of the innermost operation around it on its thread, or NONE.
    """

    order: Ints
    parent: Ints


def lane_order(lane: Ints, start: Ints, duration: Ints, rows: Ints) -> Ints:
    """`rows` by (lane, start, longest first); `lane` is a number per rank and lane.

    The operations table has nearly that order already, which a stable sort by one key profits from and
    np.lexsort does not: 0.03 s against 1.2 s for 5 million rows.
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
    """Find every operation's parent among `rows` (threads' operations) by depth: the last one above it."""
    order = lane_order(lane, start, end - start, rows)
    depth = _depth(lane[order], start[order], end[order])
    by_depth = order_by(depth)
    levels = np.split(by_depth, np.flatnonzero(np.diff(depth[by_depth])) + 1)
    parent = np.full(len(lane), NONE, dtype=np.int64)
    for above, here in pairwise(levels):
        parent[order[here]] = order[above[np.searchsorted(above, here) - 1]]
    return Nesting(order, parent)


def _depth(lane: Ints, start: Ints, end: Ints) -> Ints:
    """How many earlier operations of the same lane each one lies in, in lane order.

    Counted, not walked: operations begun before it minus operations ended by its start.
    """
    if not len(lane):
        return lane
    first = np.flatnonzero(np.concatenate(([True], lane[1:] != lane[:-1])))
    number = np.cumsum(np.concatenate(([False], lane[1:] != lane[:-1])))
    # An empty operation must not count as ended when a longer one with the same start is looked at.
    end = np.maximum(end - ROUNDING_NS, start + 1)
    low = int(start.min())
    span = int(end.max()) - low + 2
    ended = np.sort(number * span + (end - low), kind="stable")
    finished = np.searchsorted(ended, number * span + (start - low), side="right")
    earlier_lanes = np.searchsorted(ended, np.arange(len(first)) * span, side="left")
    begun = np.arange(len(lane)) - first[number]
    return np.asarray(np.maximum(begun - (finished - earlier_lanes[number]), 0))


def launches(rank: Ints, correlation: Ints, on_stream: Bools) -> Ints:
    """For every operation on a stream the host operation that launched it (same rank and correlation id), else NONE."""
    result = np.full(len(rank), NONE, dtype=np.int64)
    known = correlation != NONE
    host, device = np.flatnonzero(known & ~on_stream), np.flatnonzero(known & on_stream)
    if not len(host) or not len(device):
        return result
    ids = correlation[known]
    low, span = int(ids.min()), int(ids.max()) - int(ids.min()) + 1
    if (int(rank.max()) + 1) * span >= _LARGEST_KEY:
        correlation = np.unique(correlation, return_inverse=True)[1].astype(np.int64)
        low, span = 0, len(correlation)
    launched, launching = (rank[rows] * span + (correlation[rows] - low) for rows in (device, host))
    order = np.argsort(launching, kind="stable")
    host, launching = host[order], launching[order]
    place = np.minimum(np.searchsorted(launching, launched), len(host) - 1)
    found = launching[place] == launched
    result[device[found]] = host[place[found]]
    return result


# The same words and order as format.KINDS and format.PHASES, which need pyarrow (30 ms of start-up); a test
# holds them together.
KIND_NAMES = ("compute", "collective", "send", "recv", "memory", "input", "host", "sync", "gc", "scope")
PHASE_NAMES = ("forward", "backward", "optimizer", "input")
COMPUTE, COLLECTIVE, SEND, RECV, MEMORY, INPUT, HOST, SYNC, GC, SCOPE = range(len(KIND_NAMES))
STEP_SCOPE = "step"
QUEUE_FULL = "launch queue full"
INSIDE_UNKNOWN = "(inside not recorded)"


@dataclass(frozen=True)
class Operations:
    """The operations of one step on all ranks: arrays of one length, ordered by (rank, lane, start).

    `lane`, `name` and `group` are codes; `name_text`, `lane_text` and `group_text` say what they stand for.
    `kind` and `phase` index KIND_NAMES and PHASE_NAMES. NONE (−1) stands for null here, and nowhere else.
    `begin_ns` and `length_ns` are the step's own scope rows, one entry per rank of `ranks`; where hosts run ahead, its
    time on the devices. Times count from `origin_ns`, the step's earliest begin, so that they pass through float64
    without loss.
    """

    step: int
    origin_ns: int
    ranks: Ints
    begin_ns: Ints
    length_ns: Ints
    main_lane: Ints
    """The lane that carries each rank's step scope: its main thread."""
    rank: Ints
    """Position in `ranks`, not the rank's number."""
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
    """Position in `ranks` of the other end of a send or receive, where the trace says it."""
    correlation: Ints
    name_text: Mapping[int, str]
    lane_text: Mapping[int, str]
    group_text: Mapping[int, str]
    input_bytes: Ints | None = None
    """What operators on threads are given, NONE where the shapes of that are not recorded; None: of no operation."""
    message_bytes: Ints | None = None
    """Of collectives, sends and receives the bytes that a member gives or gets, whichever is more, NONE where that is
    not recorded; nothing of other rows. None: of none.
    """
    inputs: Ints | None = None
    """A code of the dimensions of what operators on threads are given, NONE where they are not recorded; None: of none.
    """
    inputs_text: Mapping[int, str] = field(default_factory=dict)
    """What those codes stand for: `2048,1408;8` of two tensors."""
    in_device_job: bool = False
    """Whether some rank has a device that these, a part of the step's ranks, need not have."""
    runs_ahead: bool = False
    """Whether the step's times are its devices', a launch queue behind the hosts that launch for them."""
    clock: Ints | None = None
    """Per position in `ranks` a number, equal for those on one clock; None: each has its own."""
    remembered: dict[str, Any] | None = field(default=None, compare=False, repr=False)
    """What was derived from it, for whoever derives the same; None where it is not kept beyond one question."""

    def __len__(self) -> int:
        return len(self.rank)

    @cached_property
    def end_ns(self) -> Ints:
        """When each operation ended, on its rank's clock."""
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
        """True on the rank's main thread, and beside a device on those that run the backward pass.

        There other threads serve them: gloo's copy what has arrived, the data loader's pins memory.
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
        """True on streams that the program launches nothing on, and that carry no communication: they pace themselves.

        Copies of checkpoints and loggers run so, launched by threads of their own, or by what was not recorded. Nobody
        waits for them as far as a recording shows. Where none of a rank's launches were recorded, no stream is one.
        """
        device = np.flatnonzero(self.on_stream & (self.kind != SCOPE))
        launch = self.launch[device]
        launched = (launch != NONE) & self.of_program[launch]
        ranks = np.bincount(self.rank[device], weights=launched, minlength=len(self.ranks)) > 0
        # Each rank may have streams of its own: a table of all ranks × all streams takes gigabytes.
        lane = dense(self.lane_key[device][None])
        held = np.bincount(lane, weights=launched | self.communication[device]) > 0
        result = np.zeros(len(self), dtype=bool)
        result[device] = ~held[lane] & ranks[self.rank[device]]
        return result

    @cached_property
    def of_side_threads(self) -> Bools:
        """True on threads of a job without devices that nobody waits for, as far as the step shows."""
        on_threads = ~self.on_stream & (self.kind != SCOPE)
        return side_threads(self, np.flatnonzero(on_threads), np.flatnonzero(is_one_of(self.kind, (COMPUTE, MEMORY))))

    @cached_property
    def nesting(self) -> Nesting:
        """Which operation lies in which on the threads; scopes and communication take no part."""
        rows = np.flatnonzero(~self.on_stream & (self.kind != SCOPE) & ~self.communication)
        return nest(self.lane_key, self.start_ns, self.end_ns, rows)

    @cached_property
    def launch(self) -> Ints:
        """For every row on a stream the host row that launched it, else NONE."""
        return launches(self.rank, self.correlation, self.on_stream)

    @cached_property
    def given_by(self) -> Ints:
        """The row that tells what each is given, NONE where none does: its own, or of a kernel that of the innermost
        operator around its launch that does.
        """
        known = [of != NONE for of in (self.input_bytes, self.inputs) if of is not None]
        if not known:
            return np.full(len(self), NONE)
        tells = np.logical_or.reduce(known)
        told = np.where(tells, np.arange(len(self)), NONE)
        kernels = np.flatnonzero(self.on_stream & (self.kind == COMPUTE))
        around = self.launch[kernels]
        while (silent := (around != NONE) & ~tells[around]).any():
            around = np.where(silent, self.nesting.parent[around], around)
        told[kernels] = around
        return told

    @cached_property
    def given_bytes(self) -> Ints | None:
        """What each row is given."""
        if self.input_bytes is None:
            return None
        return np.where(self.given_by == NONE, NONE, self.input_bytes[self.given_by])

    @cached_property
    def garbage_collections(self) -> Ints:
        """The rows of kind GC."""
        return np.flatnonzero(self.kind == GC)

    @cached_property
    def of_profiler(self) -> Bools:
        """Whether each is the profiler's own work, which holds up the thread of the program that it is on."""
        codes = [code for code, text in self.name_text.items() if text in PROFILER_OVERHEADS]
        # Most recordings have none: then nobody asks which threads are the program's.
        held = is_one_of(self.name, codes) & (self.kind == HOST)
        return np.asarray(held & self.of_program) if codes else held

    @cached_property
    def compiling(self) -> Bools:
        """Return whether each, in a job without devices, is a call of a compiler or within one: its host's own time."""
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
        """Whether each is what a launch waited before it for a place in the queue to its device."""
        codes = [code for code, text in self.name_text.items() if text == QUEUE_FULL]
        return np.asarray(is_one_of(self.name, codes) & (self.kind == SYNC))

    @cached_property
    def step_time_ns(self) -> float:
        """The step's duration: the median over ranks."""
        return float(np.median(self.length_ns)) if len(self.length_ns) else 0.0

    @cached_property
    def has_device(self) -> bool:
        """True where anything ran on a stream."""
        return self.in_device_job or bool(self.on_stream.any())

    def operator(self, row: int) -> str:
        """Return the operator's name of one row."""
        return self.name_text[int(self.name[row])]


def latest_ended(ops: Operations, rows: Ints, others: Ints, by: Ints | None = None, ends: Ints | None = None) -> Ints:
    """For each row the one of `others` on its rank that ended last, not after the row's start; NONE if none did.

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
    """Return the same by a time per row, of those that had begun before the row's start."""
    if not len(rows) or not len(others):
        return np.full(len(rows), NONE)
    low, high = int(min(ops.start_ns[others].min(), by.min())), int(max(ops.end_ns[others].max(), by.max()))
    span = high - low + 1
    ends = ops.rank[others] * span + (ops.end_ns[others] - low)
    order = np.argsort(ends, kind="stable")
    begun = ops.rank[others[order]] * span + (ops.start_ns[others[order]] - low)
    place = np.searchsorted(ends[order], ops.rank[rows] * span + (by - low), side="right")
    wanted = ops.rank[rows] * span + (ops.start_ns[rows] - low)
    # The least begin of so many, up to each one: what began later is skipped by powers of two, the largest first.
    least = [begun]
    while (size := 1 << (len(least) - 1)) * 2 <= len(begun):
        least.append(np.minimum(least[-1], np.concatenate((least[-1][:size], least[-1][:-size]))))
    for power in range(len(least) - 1, -1, -1):
        skipped = (place >= 1 << power) & (least[power][np.maximum(place, 1) - 1] >= wanted)
        place = np.where(skipped, place - (1 << power), place)
    found = others[order[np.maximum(place, 1) - 1]]
    return np.where((place > 0) & (ops.rank[found] == ops.rank[rows]), found, NONE)
