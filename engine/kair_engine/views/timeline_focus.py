"""The delay that a timeline is around: which operation, which collective waited for it, and the path between them.

What runs under the cursor of a timeline, compared with the same operations of the rank's peers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Final

import numpy as np

from kair_engine.arrays import Ints
from kair_engine.blame.analysis import NOISE_RESIDUALS, NOISE_SHARE
from kair_engine.blame.walk import Contribution, Walk, walk_back
from kair_engine.causes import Cause
from kair_engine.errors import UsageError
from kair_engine.ranks import Position, rank_at
from kair_engine.results.blame import RoleInPath
from kair_engine.results.timeline import TimelineDelay, TimelineOperation, TimelineStop
from kair_engine.trace.operations import KIND_NAMES, PHASE_NAMES, SCOPE
from kair_engine.views.timeline_prepared import PreparedStep

_MOST_COMPARED = 500
"""Operations of which the excess is looked at, the longest: enough to find the one that stands out."""
_MOST_STOPS = 200
_AROUND = 0.02
"""Of a view: what is left free at both sides."""


@dataclass(frozen=True)
class Asked:
    """Around what: a rank (position), an operator (a part of its name), a moment of the rank's step (ns)."""

    rank: Position | None = None
    operator: str | None = None
    at_ns: int | None = None


@dataclass(frozen=True)
class Focus:
    """The delay as rows of the step."""

    row: int
    """The operation."""
    instance: int | None
    """The collective that waited next; None if none did."""
    cause: Cause | None
    walk: Walk | None


def find_focus(step: PreparedStep, asked: Asked) -> Focus:
    """Return the operation that is asked for and what waited for it; else what was waited for longest.

    Raises UsageError where no operation of that name ran.
    """
    if asked.operator is None and asked.at_ns is None:
        instance = _most_waited_for(step, asked.rank)
        if instance is not None:
            return _behind(step, instance)
    row = _operation(step, asked)
    instance = _next_collective(step, row)
    if instance is None:
        return Focus(row, None, None, None)
    behind = _behind(step, instance)
    return Focus(row, instance, behind.cause, behind.walk)


def _behind(step: PreparedStep, instance: int) -> Focus:
    """Return what made the collective's last member late."""
    found = step.sync.collectives
    last = int(found.row[found.last[instance]])
    noise = max(NOISE_RESIDUALS * (step.sync.clocks.residual_ns or 0), NOISE_SHARE * step.ops.step_time_ns)
    walk = _known(step, walk_back(step.graph, step.late, last, noise))
    if not walk.contributions:
        return Focus(last, instance, None, walk)
    largest = walk.contributions[0]
    return Focus(largest.row, instance, largest.cause, walk)


def _known(step: PreparedStep, walk: Walk) -> Walk:
    """Return the walk without what it found on ranks of which only the communication is there."""
    if len(step.held) == len(step.ops.ranks):
        return walk
    held = np.isin(step.ops.rank[[one.row for one in walk.contributions]], step.held).tolist()
    return replace(walk, contributions=type(walk.contributions)(compress(walk.contributions, held)))


def _most_waited_for(step: PreparedStep, rank: Position | None) -> int | None:
    """Return the collective that waited longest: for anybody, or for this rank."""
    waited = step.sync.collectives.total_wait_ns
    of_rank = np.flatnonzero(step.last_rank == rank) if rank is not None else np.arange(len(waited))
    of_rank = of_rank[waited[of_rank] > 0]
    return int(of_rank[np.argmax(waited[of_rank])]) if len(of_rank) else None


def _operation(step: PreparedStep, asked: Asked) -> int:
    """By its begin where that is asked for, else the one that takes most more than its peers'."""
    ops = step.ops
    first, stop = (
        (0, len(ops)) if asked.rank is None else (int(step.bounds[asked.rank]), int(step.bounds[asked.rank + 1]))
    )
    rows = first + np.flatnonzero(ops.kind[first:stop] != SCOPE)
    if asked.operator is not None:
        named = [code for code, text in ops.name_text.items() if asked.operator in text]
        rows = rows[np.isin(ops.name[rows], named)]
    if not len(rows):
        whose = "" if asked.rank is None else f" on rank {rank_at(ops.ranks, asked.rank)}"
        what = "no operation" if asked.operator is None else f"no operation matches {asked.operator!r}"
        raise UsageError(f"{what}{whose} in step {ops.step}", "choose another step with --step")
    if asked.at_ns is not None:
        start = ops.start_ns[rows] - ops.begin_ns[ops.rank[rows]]
        # Of several that begin together the shortest: the innermost.
        return int(rows[np.lexsort((ops.duration_ns[rows], np.abs(start - asked.at_ns)))[0]])
    longest = rows[np.argsort(-(step.own_ns[rows] + step.held_up_ns[rows]), kind="stable")[:_MOST_COMPARED]]
    expected = step.expected(longest)
    more = np.maximum(step.own_ns[longest] - expected.own, step.held_up_ns[longest] - expected.held_up)
    return int(longest[np.nanargmax(more)]) if not np.isnan(more).all() else int(longest[0])


def _next_collective(step: PreparedStep, row: int) -> int | None:
    """Return the first on the operation's rank that ends after it has ended."""
    found, ops = step.sync.collectives, step.ops
    members, _ = step.members_of(np.array([ops.rank[row]]))
    ends = ops.end_ns[found.row[members]]
    members, ends = members[ends >= ops.end_ns[row]], ends[ends >= ops.end_ns[row]]
    return int(found.instance[members[np.argmin(ends)]]) if len(members) else None


# The view.


def view_around(step: PreparedStep, focus: Focus, collectives: int) -> tuple[int, int]:
    """(begin, end) in ns: the delay and what waited for it, with so many of the rank's collectives on both sides.

    Within the step, but for a delay that lies before it, as those of hosts that run ahead can.
    """
    rank = step.ops.rank[focus.row]
    start = int(step.on_clock(step.ops.start_ns[[focus.row]], np.array([rank]))[0])
    if focus.instance is None:
        return max(min(start, 0), step.earliest_ns), step.length_ns
    members, _ = step.members_of(np.array([rank]))
    instances = np.unique(step.sync.collectives.instance[members])
    if focus.instance not in instances:
        instances = np.union1d(instances, [focus.instance])
    by_end = instances[np.argsort(step.ended_ns[instances], kind="stable")]
    at = int(np.flatnonzero(by_end == focus.instance)[0])
    shown = by_end[max(at - collectives, 0) : at + collectives + 1]
    begin, end = min(int(step.begun_ns[shown].min()), start), int(step.ended_ns[shown].max())
    margin = round((end - begin) * _AROUND)
    first = max(start - margin, step.earliest_ns) if start < 0 else 0
    return max(begin - margin, first), min(end + margin, step.length_ns)


# As plain values.


def delay(step: PreparedStep, focus: Focus) -> TimelineDelay:
    """Return the delay for people and machines."""
    found, instance, walk = step.sync.collectives, focus.instance, focus.walk
    largest = walk.contributions[0] if walk is not None and walk.contributions else None
    return TimelineDelay(
        operation=operation(step, focus.row),
        cause=focus.cause,
        is_edge=largest is not None and largest.row == focus.row and largest.is_edge,
        waited_in=None if instance is None else step.ops.operator(int(found.row[found.starts[instance]])),
        late_rank=None if instance is None else rank_at(step.ops.ranks, Position(int(step.last_rank[instance]))),
        waited_us=0.0 if instance is None else float(found.total_wait_ns[instance]) / 1e3,
    )


def path(step: PreparedStep, focus: Focus) -> tuple[TimelineStop, ...]:
    """From who waited longest back to what it comes from: a stop for each stretch on one rank."""
    if focus.instance is None or focus.walk is None:
        return ()
    found = step.sync.collectives
    members = np.flatnonzero(found.instance == focus.instance)
    victim = int(found.row[members[np.argmax(found.wait_ns[members])]])
    last = int(found.row[found.last[focus.instance]])
    came_us = int(step.on_clock(step.ops.start_ns[[last]], step.ops.rank[[last]])[0]) / 1e3
    waits = _stop(step, [victim], "victim")
    found_stops = [replace(waits, end_us=max(came_us, waits.begin_us))]
    largest = focus.walk.contributions[0] if focus.walk.contributions else None
    rows = _until(step, focus.walk, largest)
    stretches = list(_stretches(step, rows))
    found_stops += [_stop(step, stretch, "victim") for stretch in stretches[: _MOST_STOPS - 1]]
    end: RoleInPath = "edge" if largest is not None and largest.is_edge else "culprit"
    found_stops[-1] = _stop(step, stretches[-1], end)
    return tuple(found_stops)


def _until(step: PreparedStep, walk: Walk, largest: Contribution | None) -> list[int]:
    """Return the rows of the path up to its largest cause, which can be an operation around them."""
    rows, ops = list(walk.path), step.ops
    if largest is None:
        return rows
    start = int(ops.start_ns[largest.row])
    before = (
        at
        for at, row in enumerate(rows)
        if ops.rank[row] == ops.rank[largest.row] and (row == largest.row or ops.start_ns[row] <= start)
    )
    at = next(before, None)
    if at is None:
        return [*rows, largest.row] if ops.rank[rows[-1]] == ops.rank[largest.row] else rows
    return [*rows[: max(at, 1)], largest.row] if largest.row != rows[0] else rows[:1]


def _stretches(step: PreparedStep, rows: Sequence[int]) -> Iterator[list[int]]:
    """Rows of a path cut where it goes over to another rank."""
    stretch: list[int] = []
    for row in rows:
        if stretch and step.ops.rank[row] != step.ops.rank[stretch[-1]]:
            yield stretch
            stretch = []
        stretch.append(row)
    yield stretch


def _stop(step: PreparedStep, rows: Sequence[int], role: RoleInPath) -> TimelineStop:
    """From the begin of the earliest operation to the end of the latest, which for a late arrival is its begin."""
    ops, latest, earliest = step.ops, rows[0], rows[-1]
    arrives = len(rows) > 1 or (bool(ops.communication[latest]) and role != "victim")
    ends: Ints = ops.start_ns if arrives else ops.end_ns
    rank = np.array([ops.rank[latest]])
    begin, end = (
        int(step.on_clock(times[[row]], rank)[0]) for times, row in ((ops.start_ns, earliest), (ends, latest))
    )
    return TimelineStop(
        rank=rank_at(ops.ranks, Position(int(rank[0]))),
        operator=ops.operator(earliest),
        begin_us=begin / 1e3,
        end_us=max(end, begin) / 1e3,
        role_in_path=role,
    )


_MOST: Final = 12


def operations_under(
    step: PreparedStep, position: Position, at_ns: int, width_ns: int
) -> tuple[TimelineOperation, ...]:
    """One operation of each thread and stream around a time on the job's clock: the innermost that fills most of it.

    The cursor is a window of `width_ns` around that time. Streams come before threads, computing before communication.
    """
    ops = step.ops
    rows = np.arange(step.bounds[position], step.bounds[position + 1])
    rows = rows[ops.kind[rows] != SCOPE]
    begin = step.on_clock(ops.start_ns[rows], ops.rank[rows])
    low, high = at_ns - width_ns / 2, at_ns + width_ns / 2
    inside = np.minimum(begin + ops.duration_ns[rows], high) - np.maximum(begin, low)
    here = inside > 0
    rows, inside = rows[here], inside[here]
    # The longest inside the window, of equals the shortest: what is nested deepest.
    order = np.lexsort((ops.duration_ns[rows], -inside))
    rows, inside = rows[order], inside[order]
    _, first = np.unique(ops.lane[rows], return_index=True)
    rows, inside = rows[first], inside[first]
    main = ops.lane[rows] == ops.main_lane[position]
    first_drawn = np.lexsort((-inside, ~main, ops.communication[rows], ~ops.on_stream[rows]))
    return tuple(operation(step, int(row)) for row in rows[first_drawn][:_MOST])


def operation(step: PreparedStep, row: int) -> TimelineOperation:
    """One operation, and what its peers take for it."""
    ops = step.ops
    position = Position(int(ops.rank[row]))
    expected = step.expected(np.array([row]))
    own, phase = float(step.own_ns[row]), int(ops.phase[row])
    typical = _us(float(expected.own[0]))
    waited, late = _in_collective(step, row, position)
    return TimelineOperation(
        rank=rank_at(ops.ranks, position),
        lane=ops.lane_text[int(ops.lane[row])],
        operator=ops.operator(row),
        kind=KIND_NAMES[ops.kind[row]],
        phase=PHASE_NAMES[phase] if phase >= 0 else None,
        start_us=int(ops.start_ns[row] - ops.begin_ns[position]) / 1e3,
        begin_us=int(step.on_clock(ops.start_ns[[row]], np.array([position]))[0]) / 1e3,
        duration_us=int(ops.duration_ns[row]) / 1e3,
        own_us=own / 1e3,
        expected_us=typical,
        excess_us=None if typical is None else own / 1e3 - typical,
        held_up_us=float(step.held_up_ns[row]) / 1e3,
        expected_held_up_us=_us(float(expected.held_up[0])),
        waited_us=waited,
        late_us=late,
    )


def _in_collective(step: PreparedStep, row: int, position: Position) -> tuple[float | None, float | None]:
    """Return (what it waited, how much later than the median member it arrived) in µs; None where it is no member."""
    found = step.sync.collectives
    members, _ = step.members_of(np.array([position]))
    member = members[found.row[members] == row]
    if not len(member):
        return None, None
    start = int(found.starts[found.instance[member[0]]])
    waits: Ints = found.wait_ns[start : start + int(found.sizes[found.instance[member[0]]])]
    own = float(found.wait_ns[member[0]])
    return own / 1e3, (float(np.median(waits)) - own) / 1e3


def _us(ns: float) -> float | None:
    return None if np.isnan(ns) else ns / 1e3
