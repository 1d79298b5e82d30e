"""Infers waits between the streams of a rank, from order alone.

A stream that waits for another waits for what was launched there before it. Traces do not show these waits. The n-th
kernel of a name is taken to wait for the latest operation on another stream that was launched before it, and had ended
when it began on every peer in every step: where one peer shows an overlap, there is no such wait. A CUDA graph has one
launch: within it the order of beginning stands for that of launching.
"""

from collections.abc import Sequence

import numpy as np

from kair_engine.arrays import NONE, Ints
from kair_engine.trace.operations import KIND_NAMES, PHASE_NAMES, SCOPE, Operations

TOLERANCE_NS = 1_000
"""Timestamps in whole microseconds are off by this much."""


def shared_keys(steps: Sequence[Operations], role_of_rank: Sequence[Ints]) -> list[Ints]:
    """Per step and operation one number, equal for the same logical operator on all peers and in all steps."""
    names = max(int(ops.name.max(initial=0)) for ops in steps) + 1
    occurrences = max(int(ops.occurrence.max(initial=0)) for ops in steps) + 1
    result = []
    for ops, role in zip(steps, role_of_rank, strict=True):
        of = role[ops.rank] if len(ops) else ops.rank
        which = (of * (len(PHASE_NAMES) + 1) + ops.phase - NONE) * len(KIND_NAMES) + ops.kind
        result.append((which * names + ops.name) * occurrences + ops.occurrence)
    return result


def cross_stream_waits(steps: Sequence[Operations], keys: Sequence[Ints]) -> list[tuple[Ints, Ints]]:
    """Per step (operations that were waited for, operations that waited): rows on different streams of one rank."""
    return [within for within, _ in waits_between_streams(steps, keys)]


def waits_between_streams(
    steps: Sequence[Operations], keys: Sequence[Ints]
) -> list[tuple[tuple[Ints, Ints], tuple[Ints, Ints]]]:
    """The same, and what waited so for the steps before: of steps that are like these, the rows that would be it."""
    lanes = sorted({int(code) for ops in steps for code in np.unique(ops.lane[ops.on_stream])})
    found: list[list[tuple[Ints, Ints]]] = [[] for _ in steps]
    earlier: list[list[tuple[Ints, Ints]]] = [[] for _ in steps]
    for lane in lanes:
        seen = [_launched_and_ended(ops, lane) for ops in steps]
        key = np.concatenate([of_step[rows] for of_step, (rows, *_) in zip(keys, seen, strict=True)])
        if not len(key):
            continue
        lag = np.concatenate([launched - np.minimum(launched, ended) for _, launched, ended, *_ in seen])
        code = np.unique(key, return_inverse=True)[1].reshape(-1)
        most = np.zeros(int(code.max()) + 1, dtype=np.int64)
        np.maximum.at(most, code, lag)
        begin = 0
        for at, (rows, launched, _, others, first) in enumerate(seen):
            place = launched - most[code[begin : begin + len(rows)]] - 1
            begin += len(rows)
            found[at].append(_first_to_wait(steps[at], rows, place, others, first))
            count = np.diff(first)[steps[at].rank[rows]]
            before = np.where(place < 0, place + count, NONE)
            earlier[at].append(_first_to_wait(steps[at], rows, before, others, first))
    return [(_both_sides(within), _both_sides(of)) for within, of in zip(found, earlier, strict=True)]


def _both_sides(pairs: Sequence[tuple[Ints, Ints]]) -> tuple[Ints, Ints]:
    if not pairs:
        return _NOTHING
    return np.concatenate([before for before, _ in pairs]), np.concatenate([after for _, after in pairs])


_NOTHING = (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


def _launched_and_ended(ops: Operations, lane: int) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """(rows on other streams; how many of the lane's operations on their rank had been launched before, and had ended;
    the lane's operations by (rank, start); where each rank's begin)."""
    device = np.flatnonzero(ops.on_stream & (ops.kind != SCOPE) & ~ops.of_side_streams)
    own = ops.lane[device] == lane
    others, rows = device[own], device[~own]
    first = np.searchsorted(ops.rank[others], np.arange(len(ops.ranks) + 1))
    if not len(others) or not len(rows):
        return rows[:0], rows[:0], rows[:0], others, first
    rows = rows[np.diff(first)[ops.rank[rows]] > 0]
    launched = _launch_order(ops)
    counted = []
    for times, until in ((launched, launched), (ops.end_ns, ops.start_ns + TOLERANCE_NS + 1)):
        low = min(int(times[others].min()), int(until[rows].min(initial=0)))
        span = max(int(times[others].max()), int(until[rows].max(initial=0))) - low + 1
        ordered = np.sort(ops.rank[others] * span + (times[others] - low), kind="stable")
        by_then = np.searchsorted(ordered, ops.rank[rows] * span + (until[rows] - low))
        counted.append(by_then - first[ops.rank[rows]])
    return rows, counted[0], counted[1], others, first


def _launch_order(ops: Operations) -> Ints:
    """Per operation of a device its place among all in the order of launches; what one launched, as a CUDA graph, as it
    began.

    What has no launch was launched when it began; where hosts run ahead, with what came before it on its stream.
    """
    device = np.flatnonzero(ops.on_stream & (ops.kind != SCOPE))
    known = ops.launch[device] != NONE
    launched = np.where(known, ops.start_ns[ops.launch[device]], ops.start_ns[device])
    if ops.runs_ahead:
        # Rows are in the order of streams, and of beginning.
        latest = np.maximum.accumulate(np.where(known, np.arange(len(device)), NONE))
        same = (latest != NONE) & (ops.lane_key[device[latest]] == ops.lane_key[device])
        launched = np.where(~known & same, launched[latest], launched)
    order = np.lexsort((ops.start_ns[device], launched))
    result = np.full(len(ops), NONE, dtype=np.int64)
    result[device[order]] = np.arange(len(device))
    return result


def _first_to_wait(ops: Operations, rows: Ints, place: Ints, others: Ints, first: Ints) -> tuple[Ints, Ints]:
    """Without the waits that follow from an earlier one on the same stream."""
    known = place >= 0
    rows, place = rows[known], place[known]
    order = np.lexsort((ops.start_ns[rows], ops.lane_key[rows]))
    rows, place = rows[order], place[order]
    if not len(rows):
        return _NOTHING
    fresh = np.concatenate(([True], np.diff(ops.lane_key[rows]) != 0))
    span = int(place.max()) + 1
    reached = np.maximum.accumulate(np.cumsum(fresh) * span + place)
    new = fresh | np.concatenate(([True], reached[1:] > reached[:-1]))
    return others[first[ops.rank[rows[new]]] + place[new]], rows[new]
