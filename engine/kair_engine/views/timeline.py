"""The timeline of one step: what every rank did in each window of time, around a delay."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from kair_engine.arrays import Floats, Ints
from kair_engine.errors import UsageError
from kair_engine.ranks import Position, rank_at
from kair_engine.results.timeline import (
    NO_ARRIVAL,
    TimelineCollective,
    TimelineDelay,
    TimelineOperation,
    TimelineResult,
    TimelineRow,
)
from kair_engine.timeline.step_parts import timed_on
from kair_engine.trace.model import KairWarning, Trace, require_rank, require_steps, short_warning
from kair_engine.views.timeline_focus import (
    Asked,
    Focus,
    delay,
    find_focus,
    operation,
    operations_under,
    path,
    view_around,
)
from kair_engine.views.timeline_prepared import PreparedStep, arrival_letters, letters, prepare

WINDOWS, ROWS, COLLECTIVES = 400, 64, 2
MOST_WINDOWS = 10_000
_WINDOWS_A_COLLECTIVE = 8
"""Marks of arrivals closer than this hide what is drawn: of more collectives only the longest waits are marked."""
_MOST_COLLECTIVES = 100


@dataclass(frozen=True)
class View:
    """What is asked of a step: times in µs, on the job's clock unless said otherwise."""

    rank: int | None = None
    operator: str | None = None
    at_us: float | None = None
    """A moment of the rank's own step, as `kair pinpoint` and `kair blame` print it."""
    collectives: int = COLLECTIVES
    """Before and after the delay."""
    whole: bool = False
    begin_us: float | None = None
    end_us: float | None = None
    ranks: tuple[int, int] | None = None
    """The first and the last rank of the rows; None for all."""
    rows: int = ROWS
    """At most so many; where there are more ranks, each stands for several."""
    windows: int = WINDOWS
    unfold: tuple[int, ...] = ()
    """Ranks of which threads and streams are shown too."""
    cursor: tuple[int, float] | None = None
    """(rank, time); None for the delay."""


def step_to_show(trace: Trace) -> int:
    """Return the slowest of the chosen steps. Raises UsageError if no step is chosen."""
    require_steps(trace)
    return trace.job.slowest_of(trace.steps)


def timeline(trace: Trace, view: View, prepared: PreparedStep | None = None) -> TimelineResult:
    """Rows of windows around a delay, in one step: the slowest of those chosen.

    `prepared` is the step made ready before, by `prepare`: with it only what is in view is computed, and where only
    the cursor has moved, only what is under it. Raises UsageError for a rank that left no trace, an operator that never
    ran, a range that is empty, and no windows or rows.
    """
    _require_sense(trace, view)
    step = prepared or prepare(trace, step_to_show(trace), asked_ranks(view), view.ranks)
    seen = step.remembered(replace(view, cursor=None), lambda: _seen(step, view))
    return replace(seen.result, under=_under(step, seen.focus, view, seen.result.window_us))


def asked_ranks(view: View) -> tuple[int, ...]:
    """Return the ranks that a view is of in any case."""
    one, cursor = (view.rank,) if view.rank is not None else (), view.cursor
    return (*one, *view.unfold, *(cursor[:1] if cursor is not None else ()))


def covers(step: PreparedStep, view: View) -> bool:
    """Whether the operations of all ranks that the view is of are there."""
    ranks = step.ops.ranks[step.held]
    low, high = view.ranks or (-math.inf, math.inf)
    some_there, some = (bool(((of >= low) & (of <= high)).any()) for of in (ranks, step.ops.ranks))
    missing = set(asked_ranks(view)).difference(ranks.tolist()).intersection(step.ops.ranks.tolist())
    return some_there == some and not missing


@dataclass(frozen=True)
class _Seen:
    """A view, and what it is around."""

    result: TimelineResult
    focus: Focus


def _seen(step: PreparedStep, view: View) -> _Seen:
    asked = _asked(step, view)
    focus = step.once(asked, lambda: find_focus(step, asked))
    stops = step.once((asked, "path"), lambda: path(step, focus))
    edges = _edges(step, focus, view)
    in_view, marked = _in_view(step, edges)
    of_path = np.searchsorted(step.ops.ranks, [stop.rank for stop in stops]).tolist() if stops else []
    shown = _shown_ranks(step, view, in_view, [int(step.ops.rank[focus.row]), *of_path])
    result = TimelineResult(
        step=step.ops.step,
        around=step.once((asked, "delay"), lambda: delay(step, focus)),
        begin_us=int(edges[0]) / 1e3,
        end_us=int(edges[-1]) / 1e3,
        step_us=step.length_ns / 1e3,
        window_us=float(edges[-1] - edges[0]) / view.windows / 1e3,
        windows=view.windows,
        rows=tuple(_rows(step, view, shown, edges, marked)),
        collectives=tuple(_collective(step, int(one)) for one in marked[:_MOST_COLLECTIVES]),
        collectives_in_view=len(in_view),
        path=stops,
        under=(),
        clock_residual_us=None if (residual := step.sync.clocks.residual_ns) is None else residual / 1e3,
        warnings=_warnings(step),
        timed_on=timed_on(step.job),
        earliest_us=step.earliest_ns / 1e3,
    )
    return _Seen(result, focus)


def as_drawn(recorded: PreparedStep, view: View, drawn: TimelineResult, step: PreparedStep) -> TimelineResult:
    """Return what `step`, the same one replayed, has in the rows and windows of `drawn`, the view of it as recorded.

    It is around the same operation, and has no path: what was waited for is another question there.
    """
    asked = _asked(recorded, view)
    focus = recorded.once(asked, lambda: find_focus(recorded, asked))
    seen = step.remembered(replace(view, cursor=None), lambda: _seen_as(step, view, drawn, focus))
    return replace(seen, under=_under(step, focus, view, seen.window_us))


def _seen_as(step: PreparedStep, view: View, drawn: TimelineResult, focus: Focus) -> TimelineResult:
    edges = _windows(round(drawn.begin_us * 1e3), round(drawn.end_us * 1e3), drawn.windows)
    in_view, marked = _in_view(step, edges)
    imposed = _imposed(step, in_view)
    shown = []
    for row in drawn.rows:
        if row.lane is None:
            first, last, place = np.searchsorted(step.ops.ranks, (row.first_rank, row.last_rank, row.rank)).tolist()
            shown.append(_Shown(place, np.arange(first, last + 1), float(imposed[place])))
    return replace(
        drawn,
        around=TimelineDelay(operation(step, focus.row), None, False, None, None, 0.0),
        step_us=step.length_ns / 1e3,
        rows=tuple(_rows(step, view, shown, edges, marked)),
        collectives=tuple(_collective(step, int(one)) for one in marked[:_MOST_COLLECTIVES]),
        collectives_in_view=len(in_view),
        path=(),
    )


# What is asked.


def _require_sense(trace: Trace, view: View) -> None:
    for rank in (view.rank, None if view.cursor is None else view.cursor[0], *view.unfold):
        if rank is not None:
            require_rank(trace, rank)
    if view.at_us is not None and view.rank is None:
        raise UsageError("a moment is one of a rank's step", "name the rank with --around")
    if not 1 <= view.windows <= MOST_WINDOWS:
        raise UsageError(f"there can be 1 to {MOST_WINDOWS:,} windows, not {view.windows:,}")
    if view.rows < 1:
        raise UsageError("at least one row is needed")


def _asked(step: PreparedStep, view: View) -> Asked:
    rank = None if view.rank is None else _position(step, view.rank)
    return Asked(rank, view.operator, None if view.at_us is None else round(view.at_us * 1e3))


def _position(step: PreparedStep, rank: int) -> Position:
    found = np.flatnonzero(step.ops.ranks == rank)
    if not len(found):
        raise UsageError(f"rank {rank} did not record step {step.ops.step}", "choose another step with --step")
    return Position(int(found[0]))


def _edges(step: PreparedStep, focus: Focus, view: View) -> Ints:
    """Where windows begin, and where the last one ends."""
    begin, end = (0, step.length_ns) if view.whole else view_around(step, focus, view.collectives)
    begin = begin if view.begin_us is None else round(view.begin_us * 1e3)
    end = end if view.end_us is None else round(view.end_us * 1e3)
    if end <= begin:
        raise UsageError("the range of time is empty", "--from has to be before --to")
    return _windows(begin, end, view.windows)


def _windows(begin: int, end: int, windows: int) -> Ints:
    # A window lasts a nanosecond at least.
    return np.asarray(np.linspace(begin, max(end, begin + windows), windows + 1).round().astype(np.int64))


# Rows.


@dataclass(frozen=True)
class _Shown:
    """The rank of a row (position), the ranks that it stands for, and what others in view waited for it."""

    position: int
    ranks: Ints
    imposed_ns: float


def _shown_ranks(step: PreparedStep, view: View, in_view: Ints, always: Sequence[int]) -> list[_Shown]:
    """Consecutive ranks in as many groups as there are rows; of each the one that others waited for most.

    Those of the blame path come before that. Where nobody waited for any of a group, who waited least counts as worst.
    """
    places = _within(step, view)
    imposed = _imposed(step, in_view)
    cuts = np.linspace(0, len(places), min(view.rows, len(places)) + 1).round().astype(np.int64).tolist()
    shown = []
    for low, high in pairwise(cuts):
        group = places[low:high]
        position = next((rank for rank in always if rank in group), None)
        if position is None:
            here = imposed[group]
            position = int(group[np.argmax(here) if here.any() else np.argmin(step.waited_ns[group])])
        shown.append(_Shown(position, group, float(imposed[position])))
    return shown


def _imposed(step: PreparedStep, in_view: Ints) -> Floats:
    """Per rank (position), what others waited for it in these collectives, ns."""
    waits = step.sync.collectives.total_wait_ns[in_view]
    return np.bincount(step.last_rank[in_view], weights=waits, minlength=len(step.ops.ranks)).astype(float)


def _within(step: PreparedStep, view: View) -> Ints:
    """Return the ranks (positions) of the rows."""
    low, high = view.ranks or (-math.inf, math.inf)
    ranks = step.ops.ranks[step.held]
    places = step.held[(ranks >= low) & (ranks <= high)]
    if not len(places):
        raise UsageError(f"no rank of {low}-{high} left a trace", "choose others with --ranks")
    return places


def _rows(step: PreparedStep, view: View, shown: Sequence[_Shown], edges: Ints, marked: Ints) -> Iterator[TimelineRow]:
    """Yield a row for each group, and under one that is unfolded those of its rank's threads and streams."""
    ranks = np.array([one.position for one in shown], dtype=np.int64)
    drawn = letters(step.doings(ranks), edges)
    arrived = arrival_letters(len(ranks), edges, *_arrivals(step, ranks, marked))
    unfolded = set(view.unfold)
    for one, windows, arrivals in zip(shown, drawn, arrived, strict=True):
        row = _row(step, one, windows, arrivals)
        yield row
        if row.rank in unfolded:
            lanes = step.lanes(one.position)
            of_lanes = letters([doings for _, doings in lanes], edges)
            for (lane, _), text in zip(lanes, of_lanes, strict=True):
                yield replace(row, lane=lane.name, windows=text, arrivals=NO_ARRIVAL * view.windows)


def _row(step: PreparedStep, shown: _Shown, windows: str, arrivals: str) -> TimelineRow:
    places = (shown.position, *shown.ranks[[0, -1]].tolist())
    rank, first, last = (rank_at(step.ops.ranks, Position(at)) for at in places)
    return TimelineRow(
        rank=rank,
        first_rank=first,
        last_rank=last,
        ranks=len(shown.ranks),
        host=step.job.hosts.get(rank),
        lane=None,
        begin_us=int(step.begin_ns[shown.position]) / 1e3,
        windows=windows,
        arrivals=arrivals,
        imposed_us=shown.imposed_ns / 1e3,
    )


# Collectives.


def _in_view(step: PreparedStep, edges: Ints) -> tuple[Ints, Ints]:
    """Return (collectives in view, those of them that made ranks wait longest: the earliest end first)."""
    in_view = np.flatnonzero((step.ended_ns > edges[0]) & (step.begun_ns < edges[-1]))
    most, marked = max((len(edges) - 1) // _WINDOWS_A_COLLECTIVE, 1), in_view
    if len(in_view) > most:
        marked = in_view[np.argpartition(-step.sync.collectives.total_wait_ns[in_view], most - 1)[:most]]
    return in_view, np.asarray(marked[np.argsort(step.ended_ns[marked], kind="stable")])


def _arrivals(step: PreparedStep, ranks: Ints, marked: Ints) -> tuple[Ints, Ints, Ints]:
    """(row, time, 1 where it was the last) of the ranks' arrivals at those collectives."""
    found, ops = step.sync.collectives, step.ops
    members, row = step.members_of(ranks)
    chosen = np.isin(found.instance[members], marked)
    members, row = members[chosen], row[chosen]
    of_member = found.row[members]
    last = found.last[found.instance[members]] == members
    return row, step.on_clock(ops.start_ns[of_member], ops.rank[of_member]), last.astype(np.int64)


def _collective(step: PreparedStep, instance: int) -> TimelineCollective:
    found = step.sync.collectives
    last = int(found.row[found.last[instance]])
    position = np.array([step.ops.rank[last]])
    return TimelineCollective(
        operator=step.ops.operator(last),
        first_arrival_us=int(step.begun_ns[instance]) / 1e3,
        last_arrival_us=int(step.on_clock(step.ops.start_ns[[last]], position)[0]) / 1e3,
        last_rank=rank_at(step.ops.ranks, Position(int(position[0]))),
        end_us=int(step.ended_ns[instance]) / 1e3,
        members=int(found.sizes[instance]),
        waited_us=float(found.total_wait_ns[instance]) / 1e3,
    )


# The cursor.


def _under(step: PreparedStep, focus: Focus, view: View, window_us: float) -> tuple[TimelineOperation, ...]:
    """Return what runs under the cursor; without one, on the delay."""
    if view.cursor is None:
        return (operation(step, focus.row),)
    rank, at_us = view.cursor
    return operations_under(step, _position(step, rank), round(at_us * 1e3), max(round(window_us * 1e3), 1))


def _warnings(step: PreparedStep) -> tuple[KairWarning, ...]:
    if len(step.held) < len(step.ops.ranks):
        text = f"the step is too large to be held whole: rows are of {len(step.held)} of {len(step.ops.ranks):,} ranks"
        return (short_warning("some_ranks", f"{text}, those that were waited for longest among them"),)
    if len(step.sync.collectives) or len(step.ops.ranks) == 1:
        return ()
    return (KairWarning("no_collectives", "no collectives: it is unknown how long ranks wait for each other"),)
