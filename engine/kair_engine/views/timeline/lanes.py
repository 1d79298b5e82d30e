"""Threads and streams of one rank, moment by moment."""

from typing import Final, NamedTuple

import numpy as np

from kair_engine.arrays import NONE, Ints, SmallInts, is_one_of
from kair_engine.trace.operations import COMPUTE, GC, HOST, INPUT, MEMORY, SCOPE, SYNC, Operations
from kair_engine.views.timeline.raster import CODES

MOST_LANES: Final = 12
"""Threads and streams of a rank that are drawn, the busiest of each."""
BUSY_SHARE: Final = 0.005
"""Of the step: threads and streams that are busy for less are not drawn, but for the main thread."""


class Lane(NamedTuple):
    """A thread or stream."""

    code: int
    name: str


def lane_moments(ops: Operations, own: Ints) -> list[tuple[Lane, Ints, SmallInts]]:
    """(lane, times, codes) of the threads and streams of one rank: from each time to the next what the code says.

    `ops` are that rank's operations, `own` has the self time of what is a member of a collective, else NONE. Streams
    come first, then threads; of each the busiest.
    """
    rows = np.flatnonzero(ops.kind != SCOPE)
    lanes = np.unique(ops.lane[rows])
    busy = {int(lane): int(ops.duration_ns[rows[ops.lane[rows] == lane]].sum()) for lane in lanes}
    least = BUSY_SHARE * int(ops.length_ns[0])
    busy = {lane: time for lane, time in busy.items() if time >= least or lane == ops.main_lane[0]}
    is_stream = {lane: ops.lane_text[lane].startswith("stream ") for lane in busy}
    chosen = sorted(busy, key=lambda lane: (not is_stream[lane], -busy[lane]))[:MOST_LANES]
    return [(Lane(lane, ops.lane_text[lane]), *_moments(ops, own, rows[ops.lane[rows] == lane])) for lane in chosen]


def _moments(ops: Operations, own: Ints, rows: Ints) -> tuple[Ints, SmallInts]:
    """What the innermost operation of a lane does: one pass over them in order, the outer before the inner."""
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
