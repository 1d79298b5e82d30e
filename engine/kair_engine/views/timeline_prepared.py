"""A step made ready to be looked at: loaded, matched and on one clock, so that a window of it is cut out at once.

Threads and streams of one rank, moment by moment.

Windows of time as letters: for each the one that takes most of it.
"""

import math
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from kair_engine.arrays import NONE, Floats, Ints, SmallInts, is_one_of, offsets, ranges
from kair_engine.localize.excess import JobRoles
from kair_engine.localize.large_step_detail import excess_and_detail
from kair_engine.localize.rank_times import rank_times
from kair_engine.results.timeline import ARRIVED, ARRIVED_LAST, LETTERS, NO_ARRIVAL
from kair_engine.timeline.clocks import Synchronisation, synchronise
from kair_engine.timeline.graph import ExecutionGraph, Lateness, build, lateness
from kair_engine.timeline.roles import logical_keys, role_codes, roles
from kair_engine.timeline.self_time import host_gap_ns, own_ns
from kair_engine.timeline.step_parts import PARTS, collective_own_ns, device_ends, moments
from kair_engine.trace.large_steps import LargeStep, large_steps
from kair_engine.trace.loading import load_step
from kair_engine.trace.model import Job, Trace
from kair_engine.trace.operations import COMPUTE, GC, HOST, INPUT, MEMORY, SCOPE, SYNC, Operations

MOST_LANES: Final = 12
"""Threads and streams of a rank that are drawn, the busiest of each."""
BUSY_SHARE: Final = 0.005
"""Of the step: threads and streams that are busy for less are not drawn, but for the main thread."""


class Lane(NamedTuple):
    """A thread or stream."""

    code: int
    name: str


def lane_moments(ops: Operations, own: Ints, shown: Sequence[Lane] | None = None) -> list[tuple[Lane, Ints, SmallInts]]:
    """(lane, times, codes) of the threads and streams of one rank: from each time to the next what the code says.

    `ops` are that rank's operations, `own` has the self time of what is a member of a collective, else NONE. Streams
    come first, then threads; of each the busiest. Those of `shown` instead, where that is given.
    """
    rows = np.flatnonzero(ops.kind != SCOPE)
    if shown is not None:
        return [(lane, *_moments(ops, own, rows[ops.lane[rows] == lane.code])) for lane in shown]
    lanes = np.unique(ops.lane[rows])
    busy = {int(lane): int(ops.duration_ns[rows[ops.lane[rows] == lane]].sum()) for lane in lanes}
    least = BUSY_SHARE * int(ops.length_ns[0])
    busy = {lane: time for lane, time in busy.items() if time >= least or lane == ops.main_lane[0]}
    is_stream = {lane: ops.lane_text[lane].startswith("stream ") for lane in busy}
    chosen = sorted(busy, key=lambda lane: (not is_stream[lane], -busy[lane]))[:MOST_LANES]
    return [(Lane(lane, ops.lane_text[lane]), *_moments(ops, own, rows[ops.lane[rows] == lane])) for lane in chosen]


def _moments(ops: Operations, own: Ints, rows: Ints) -> tuple[Ints, SmallInts]:
    """Return what the innermost operation of a lane does: one pass over them in order, the outer before the inner."""
    rows = rows[np.lexsort((-ops.duration_ns[rows], ops.start_ns[rows]))]
    times: list[int] = []
    codes: list[int] = []
    around: list[tuple[int, int]] = []
    """(end, code) of the operations that are under way, the innermost last."""

    def change(time: int, code: int) -> None:
        times.append(time)
        codes.append(code)

    def until(time: int) -> None:
        while around and around[-1][0] <= time:
            end, _ = around.pop()
            change(end, around[-1][1] if around else NONE)

    pieces = zip(
        ops.start_ns[rows].tolist(), ops.end_ns[rows].tolist(), own[rows].tolist(), _codes(ops, rows), strict=True
    )
    for start, end, own_time, code in pieces:
        until(start)
        # Operations that cross instead of nesting are cut where the outer one ends.
        stop = min(end, around[-1][0]) if around else end
        if own_time == NONE:
            change(start, code)
        else:
            change(start, CODES["waiting"])
            change(max(stop - own_time, start), CODES["communication"])
        around.append((stop, code))
    until(np.iinfo(np.int64).max)
    return np.array(times, dtype=np.int64), np.array(codes, dtype=np.int8)


def _codes(ops: Operations, rows: Ints) -> list[int]:
    kind = ops.kind[rows]
    code = np.full(len(rows), CODES["unknown"])
    code[is_one_of(kind, (COMPUTE, MEMORY))] = CODES["compute"]
    code[kind == INPUT] = CODES["input"]
    code[kind == GC] = CODES["host"]
    code[kind == HOST] = CODES["operation"]
    code[kind == SYNC] = CODES["synchronisation"]
    return list(code.tolist())


NAMES: Final = (*PARTS, "unknown", "operation", "synchronisation")
CODES: Final[dict[str, int]] = {name: code for code, name in enumerate(NAMES)}
"""The parts of a step by their places, as `step_parts` counts them, then what is drawn of lanes alone."""
_NOTHING: Final = len(NAMES)
_SIGNS: Final = np.frombuffer(
    "".join(LETTERS[name] for name in (*NAMES, "nothing")).encode("ascii"),  # type: ignore[index]
    dtype=np.uint8,
)
_ARRIVALS: Final = np.frombuffer((NO_ARRIVAL + ARRIVED + ARRIVED_LAST).encode("ascii"), dtype=np.uint8)


_NO_CODE: Final = np.array([NONE], dtype=np.int8)


class Doings(NamedTuple):
    """What one row does: from each time (ns, the job's clock) to the next a code; nothing before the first."""

    time: Ints
    code: SmallInts


def letters(rows: Sequence[Doings], edges: Ints) -> list[str]:
    """Of every row a letter per window between two `edges` (ascending, in ns): what most of it goes into."""
    if not rows:
        return []
    windows = len(edges) - 1
    time, code, row = _in_view(rows, int(edges[0]), int(edges[-1]))
    # Every moment is cut at the edges of windows, and its pieces are added up by window and code.
    span = int(edges[-1] - edges[0]) + 1
    at_edges = np.arange(len(rows))[:, None] * span + (edges - edges[0])
    begin = np.concatenate((row * span + (time - edges[0]), at_edges.reshape(-1)))
    of_piece = np.concatenate((code, np.full(len(rows) * len(edges), -2)))
    order = np.argsort(begin, kind="stable")
    begin, of_piece = begin[order], of_piece[order]
    known = np.where(of_piece == -2, 0, np.arange(len(of_piece)))
    np.maximum.accumulate(known, out=known)
    doing = of_piece[known]
    length = np.diff(begin, append=begin[-1])
    which = np.searchsorted(edges - edges[0], begin % span, side="right") - 1
    inside = (which < windows) & (length > 0)
    cell = ((begin // span)[inside] * windows + which[inside]) * (_NOTHING + 1) + np.where(
        doing[inside] < 0, _NOTHING, doing[inside]
    )
    spent = np.bincount(cell, weights=length[inside], minlength=len(rows) * windows * (_NOTHING + 1)).astype(float)
    # What is nothing counts for less than anything: a short operation alone in its window is seen.
    spent = spent.reshape(len(rows), windows, _NOTHING + 1)
    spent[..., _NOTHING] /= 2
    signs = _SIGNS[spent.argmax(axis=2)]
    return [line.tobytes().decode("ascii") for line in signs]


def arrival_letters(rows: int, edges: Ints, row: Ints, time: Ints, last: Ints) -> list[str]:
    """Of every row a letter per window; arrivals are of a row (place), at a time in ns, `last` 1 or 0 each."""
    windows = len(edges) - 1
    marks = np.zeros((rows, windows), dtype=np.int64)
    inside = (time >= edges[0]) & (time < edges[-1])
    which = np.searchsorted(edges, time[inside], side="right") - 1
    np.maximum.at(marks, (row[inside], which), 1 + last[inside])
    return [line.tobytes().decode("ascii") for line in _ARRIVALS[marks]]


def _in_view(rows: Sequence[Doings], begin: int, end: int) -> tuple[Ints, Ints, Ints]:
    """(time, code, row) of all moments in view, each row's first one at the left edge."""
    times: list[Ints] = []
    codes: list[SmallInts] = []
    for one in rows:
        first = int(np.searchsorted(one.time, begin, side="right"))
        stop = max(int(np.searchsorted(one.time, end, side="left")), first)
        times += [np.array([begin]), one.time[first:stop]]
        codes += [one.code[first - 1 : first] if first else _NO_CODE, one.code[first:stop]]
    return (
        np.concatenate(times).astype(np.int64),
        np.concatenate(codes).astype(np.int64),
        np.repeat(np.arange(len(rows)), [1 + len(time) for time in times[1::2]]),
    )


Thing = TypeVar("Thing")

_COLUMNS: Final = (
    *("lane", "name", "kind", "phase", "occurrence", "start_ns", "duration_ns"),
    *("group", "group_seq", "peer", "correlation"),
)
"""What `Operations` has per operation, but for the rank."""


class Expected(NamedTuple):
    """What the peers of some operations take, the median, in ns; NaN if no peer runs it."""

    own: Floats
    held_up: Floats


@dataclass(frozen=True)
class PreparedStep:
    """One step of all ranks. What only some ranks need is made when they are looked at, and kept."""

    job: Job
    ops: Operations
    sync: Synchronisation
    role: Ints
    """A code per rank of the step."""
    held: Ints
    """The ranks (positions) whose operations are all there; of the others it is their communication."""
    recorded: "PreparedStep | None" = None
    """The step as recorded, where this is the same one replayed: its threads and streams are those that are drawn."""
    _doings: dict[int, Doings] = field(default_factory=dict)
    _lanes: dict[int, tuple[tuple[Lane, Doings], ...]] = field(default_factory=dict)
    _views: dict[Hashable, Any] = field(default_factory=dict)
    _made: dict[Hashable, Any] = field(default_factory=dict)

    def remembered(self, view: Hashable, make: Callable[[], Thing]) -> Thing:
        """Return the last view that was made, made now where another is asked for: a cursor that moves needs no new
        one.
        """
        if view not in self._views:
            made = make()
            self._views.clear()
            self._views[view] = made
        thing: Thing = self._views[view]
        return thing

    def once(self, key: Hashable, make: Callable[[], Thing]) -> Thing:
        """Return what is the same in all views that ask for `key`."""
        if key not in self._made:
            self._made[key] = make()
        thing: Thing = self._made[key]
        return thing

    # Times.

    @cached_property
    def offset_ns(self) -> Ints:
        """Per rank, what its clock is ahead of the job's."""
        return self.sync.clocks.offset_ns.round().astype(np.int64)

    @cached_property
    def begin_ns(self) -> Ints:
        """Per rank, where its step begins on the job's clock, whose zero is the earliest of them."""
        return np.asarray(self.ops.begin_ns - self.offset_ns - self._zero_ns)

    @cached_property
    def end_ns(self) -> Ints:
        """Per rank, where its step ends; a device that lags behind its host ends later."""
        own = np.maximum(self.ops.begin_ns + self.ops.length_ns, device_ends(self.ops))
        return np.asarray(own - self.offset_ns - self._zero_ns)

    @cached_property
    def earliest_ns(self) -> int:
        """Where the first operation of any rank begins: before the step where hosts run ahead, else with it."""
        if not self.ops.runs_ahead:
            return 0
        rows = np.flatnonzero(self.ops.kind != SCOPE)
        return min(int(self.on_clock(self.ops.start_ns[rows], self.ops.rank[rows]).min()), 0) if len(rows) else 0

    @cached_property
    def _zero_ns(self) -> int:
        return int((self.ops.begin_ns - self.offset_ns).min())

    @property
    def length_ns(self) -> int:
        """Of the whole step, over all ranks."""
        return int(self.end_ns.max())

    def on_clock(self, times: Ints, rank: Ints) -> Ints:
        """Return times of operations, each of the rank at a position, on the job's clock."""
        return np.asarray(times - self.offset_ns[rank] - self._zero_ns)

    # Who waited for whom.

    @cached_property
    def ended_ns(self) -> Ints:
        """Per collective, when the last of its members ended."""
        found, ops = self.sync.collectives, self.ops
        ends = self.on_clock(ops.end_ns[found.row], ops.rank[found.row])
        return np.asarray(np.maximum.reduceat(ends, found.starts)) if len(found) else ends

    @cached_property
    def begun_ns(self) -> Ints:
        """Per collective, when the first of its members arrived."""
        found, ops = self.sync.collectives, self.ops
        begins = self.on_clock(ops.start_ns[found.row], ops.rank[found.row])
        return np.asarray(np.minimum.reduceat(begins, found.starts)) if len(found) else begins

    @cached_property
    def last_rank(self) -> Ints:
        """Per collective, the position of the rank that arrived last."""
        found = self.sync.collectives
        return np.asarray(self.ops.rank[found.row[found.last]])

    @cached_property
    def waited_ns(self) -> Floats:
        """Per rank, what it waited in the whole step: who delays others waits least."""
        found = self.sync.collectives
        ranks = self.ops.rank[found.row]
        return np.bincount(ranks, weights=found.wait_ns, minlength=len(self.ops.ranks)).astype(float)

    @cached_property
    def members(self) -> tuple[Ints, Ints]:
        """(members of collectives by rank and start, where each rank's begin among them)."""
        rows = self.sync.collectives.row
        order = np.argsort(rows, kind="stable") if len(rows) else rows
        # Rows are by rank already, and on each lane by start; a rank has few of them.
        return order, offsets(self.ops.rank[rows[order]], len(self.ops.ranks))

    def members_of(self, ranks: Ints) -> tuple[Ints, Ints]:
        """(members on these ranks, the place among `ranks` of each)."""
        order, bounds = self.members
        begins, ends = bounds[ranks], bounds[ranks + 1]
        return order[ranges(begins, ends)], np.repeat(np.arange(len(ranks)), ends - begins)

    # Blame.

    @cached_property
    def graph(self) -> ExecutionGraph:
        """Which operation waited for which."""
        return build(self.ops, self.sync)

    @cached_property
    def late(self) -> Lateness:
        """How much later than its peers each operation is."""
        return lateness(self.graph, self.role)

    # Compared with peers.

    @cached_property
    def own_ns(self) -> Ints:
        """Per operation, its self time."""
        return own_ns(self.ops, self.sync)

    @cached_property
    def held_up_ns(self) -> Ints:
        """Per operation, how long its host alone held it up."""
        return host_gap_ns(self.ops)

    @cached_property
    def _alike(self) -> tuple[Ints, Ints, Ints]:
        """(key per operation, operations by key, their keys)."""
        keys = logical_keys(self.ops, self.role)
        rows = np.flatnonzero(self.ops.kind != SCOPE)
        rows = rows[np.argsort(keys[rows], kind="stable")]
        return keys, rows, keys[rows]

    def expected(self, rows: Ints) -> Expected:
        """Return what the others of its role take for each operation, the median."""
        found = [self.once(("expected", row), partial(self._expected, row)) for row in rows.tolist()]
        own, held_up = np.array(found, dtype=float).reshape(-1, 2).T
        return Expected(own, held_up)

    def _expected(self, row: int) -> tuple[float, float]:
        keys, by_key, ordered = self._alike
        begin, end = (int(np.searchsorted(ordered, keys[row], side=side)) for side in ("left", "right"))
        others = by_key[begin:end]
        others = others[self.ops.rank[others] != self.ops.rank[row]]
        if not len(others):
            return math.nan, math.nan
        return float(np.median(self.own_ns[others])), float(np.median(self.held_up_ns[others]))

    # What is drawn.

    @cached_property
    def bounds(self) -> Ints:
        """Where each rank's operations begin, and where the last ones end."""
        return offsets(self.ops.rank, len(self.ops.ranks))

    @cached_property
    def _collective_own_ns(self) -> Ints:
        return collective_own_ns(self.ops, self.sync)

    def doings(self, ranks: Ints) -> list[Doings]:
        """Return what each of these ranks does, moment by moment."""
        new = np.array([rank for rank in dict.fromkeys(ranks.tolist()) if rank not in self._doings], dtype=np.int64)
        if len(new):
            part = self.part(new)
            found = moments(part, self._collective_own_ns[self._rows(new)])
            cuts = np.searchsorted(found.rank, np.arange(len(new) + 1))
            for at, rank in enumerate(new.tolist()):
                here = slice(cuts[at], cuts[at + 1])
                time = self.on_clock(found.time[here], np.full(len(found.time[here]), rank))
                self._doings[rank] = self._within_step(rank, time, found.part[here])
        return [self._doings[rank] for rank in ranks.tolist()]

    def _within_step(self, rank: int, time: Ints, part: SmallInts) -> Doings:
        """Return the same from the step's begin on; before its first operation a rank's host has launched nothing."""
        begin, end = int(self.begin_ns[rank]), int(self.end_ns[rank])
        before = max(int(np.searchsorted(time, begin, side="right")) - 1, -1)
        first = CODES["host"] if before < 0 else int(part[before])
        inside = (time > begin) & (time < end)
        return Doings(np.concatenate(([begin], time[inside], [end])), np.concatenate(([first], part[inside], [NONE])))

    def lanes(self, rank: int) -> tuple[tuple[Lane, Doings], ...]:
        """Return the threads and streams of a rank, and what each does."""
        if rank not in self._lanes:
            one = np.array([rank], dtype=np.int64)
            shown = None if self.recorded is None else [lane for lane, _ in self.recorded.lanes(rank)]
            found = lane_moments(self.part(one), self._collective_own_ns[self._rows(one)], shown)
            self._lanes[rank] = tuple(
                (lane, Doings(self.on_clock(time, np.full(len(time), rank)), code)) for lane, time, code in found
            )
        return self._lanes[rank]

    def _rows(self, ranks: Ints) -> Ints:
        return ranges(self.bounds[ranks], self.bounds[ranks + 1])

    def part(self, ranks: Ints) -> Operations:
        """Return the operations of some ranks alone."""
        ops, rows = self.ops, self._rows(ranks)
        return replace(
            ops,
            ranks=ops.ranks[ranks],
            begin_ns=ops.begin_ns[ranks],
            length_ns=ops.length_ns[ranks],
            main_lane=ops.main_lane[ranks],
            rank=np.repeat(np.arange(len(ranks)), self.bounds[ranks + 1] - self.bounds[ranks]),
            # Of all ranks' lanes, which are many, those that are asked for.
            lane_text={code: ops.lane_text[code] for code in np.unique(ops.lane[rows]).tolist()},
            **{name: getattr(ops, name)[rows] for name in _COLUMNS},
            input_bytes=None if ops.input_bytes is None else ops.input_bytes[rows],
        )


def prepare(trace: Trace, step: int, asked: Collection[int] = (), among: tuple[int, int] | None = None) -> PreparedStep:
    """Load the step and match its collectives. Raises UsageError for one that cannot be analysed.

    Of one that is too large to be held whole the operations of some ranks are there: of those that were waited for
    longest, of `asked`, and of as many from the first to the last of `among` as may be held.
    """
    trace = trace.select([step])
    if large_steps(trace):
        return _prepared_of_some(trace, step, asked, among)
    ops = load_step(trace, step)
    return PreparedStep(
        trace.job, ops, synchronise(ops), role_codes(ops.ranks, roles(trace, ops)), np.arange(len(ops.ranks))
    )


def _prepared_of_some(trace: Trace, step: int, asked: Collection[int], among: tuple[int, int] | None) -> PreparedStep:
    of = JobRoles.of(trace)
    large, times = LargeStep.read(trace, step, rank_times)
    within = [rank for rank in trace.job.ranks if among is not None and among[0] <= rank <= among[1]]
    spread = np.linspace(0, len(within) - 1, min(len(within), large.ranks_held)).astype(np.int64).tolist()
    _, seen = excess_and_detail(large, times, of, [*asked, *(within[at] for at in spread)])
    ops = seen.sync.collectives.ops
    return PreparedStep(trace.job, ops, seen.sync, of.role_in(ops), np.flatnonzero(seen.shown))
