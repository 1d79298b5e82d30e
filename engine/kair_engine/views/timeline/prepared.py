"""A step made ready to be looked at: loaded, matched and on one clock, so that a window of it is cut out at once."""

import math
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from kair_engine.arrays import NONE, Floats, Ints, SmallInts, offsets, ranges
from kair_engine.localize.excess import JobRoles
from kair_engine.localize.large_step_detail import excess_and_detail
from kair_engine.localize.rank_times import rank_times
from kair_engine.timeline.graph import ExecutionGraph, Lateness, build, lateness
from kair_engine.timeline.peers import logical_keys
from kair_engine.timeline.roles import role_codes, roles
from kair_engine.timeline.self_time import host_gap_ns, own_ns
from kair_engine.timeline.synchronisation import Synchronisation, synchronise
from kair_engine.trace.model import Job, Trace
from kair_engine.trace.operations import SCOPE, Operations
from kair_engine.trace.steps.large_steps import LargeStep, large_steps
from kair_engine.trace.steps.loading import load_step
from kair_engine.views.step_parts import collective_own_ns, device_ends, moments
from kair_engine.views.timeline.lanes import Lane, lane_moments
from kair_engine.views.timeline.raster import CODES, Doings

Thing = TypeVar("Thing")

_COLUMNS: Final = (
    *("lane", "name", "kind", "phase", "occurrence", "start_ns", "duration_ns"),
    *("group", "group_seq", "peer", "correlation"),
)
"""What `Operations` has per operation, but for the rank."""


class Expected(NamedTuple):
    """What the peers of some operations take, the median, in ns; NaN where there is none that runs it."""

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
    _doings: dict[int, Doings] = field(default_factory=dict)
    _lanes: dict[int, tuple[tuple[Lane, Doings], ...]] = field(default_factory=dict)
    _views: dict[Hashable, Any] = field(default_factory=dict)
    _made: dict[Hashable, Any] = field(default_factory=dict)

    def remembered(self, view: Hashable, make: Callable[[], Thing]) -> Thing:
        """The last view that was made, made now where another is asked for: a cursor that moves needs no new one."""
        if view not in self._views:
            made = make()
            self._views.clear()
            self._views[view] = made
        thing: Thing = self._views[view]
        return thing

    def once(self, key: Hashable, make: Callable[[], Thing]) -> Thing:
        """What is the same in all views that ask for `key`."""
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
        """Times of operations, each of the rank at a position, on the job's clock."""
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

    # Beside peers.

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
        """What the others of its role take for each operation, the median."""
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
        """What each of these ranks does, moment by moment."""
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
        """The same from the step's begin on; before its first operation a rank's host has launched nothing."""
        begin, end = int(self.begin_ns[rank]), int(self.end_ns[rank])
        before = max(int(np.searchsorted(time, begin, side="right")) - 1, -1)
        first = CODES["host"] if before < 0 else int(part[before])
        inside = (time > begin) & (time < end)
        return Doings(np.concatenate(([begin], time[inside], [end])), np.concatenate(([first], part[inside], [NONE])))

    def lanes(self, rank: int) -> tuple[tuple[Lane, Doings], ...]:
        """The threads and streams of a rank, and what each does."""
        if rank not in self._lanes:
            one = np.array([rank], dtype=np.int64)
            found = lane_moments(self.part(one), self._collective_own_ns[self._rows(one)])
            self._lanes[rank] = tuple(
                (lane, Doings(self.on_clock(time, np.full(len(time), rank)), code)) for lane, time, code in found
            )
        return self._lanes[rank]

    def _rows(self, ranks: Ints) -> Ints:
        return ranges(self.bounds[ranks], self.bounds[ranks + 1])

    def part(self, ranks: Ints) -> Operations:
        """The operations of some ranks alone."""
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
    """Loads the step and matches its collectives. Raises UsageError for one that cannot be analysed.

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
