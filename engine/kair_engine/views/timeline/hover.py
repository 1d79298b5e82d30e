"""What runs under the cursor of a timeline, beside the same operations of the rank's peers."""

from typing import Final

import numpy as np

from kair_engine.arrays import Ints
from kair_engine.ranks import Position, rank_at
from kair_engine.results.timeline import TimelineOperation
from kair_engine.trace.operations import KIND_NAMES, PHASE_NAMES, SCOPE
from kair_engine.views.timeline.prepared import PreparedStep

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
    """(what it waited, how much later than the median member it arrived) in µs; None where it is no member."""
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
