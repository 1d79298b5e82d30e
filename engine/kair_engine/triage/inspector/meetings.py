"""Collectives matched across their members: what each waited in them, and what the transfer itself took.

All members leave a collective together, and the one that enters last is in it for the shortest time: that time is the
transfer, and whatever others are in it for longer is waiting. For a receive, the shortest of its kind on the same rank
stands for the transfer, because the log does not name the sender.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints, dense, offsets, order_by
from kair_engine.frozen import dataclass
from kair_engine.trace.inspector_calls import RECV, CallKind, InspectorCalls, Member
from kair_engine.triage.inspector.who import Who

ENOUGH: Final = 54
"""Cycles: a history of so many has the fewest that it judges, once its first quarter is left out."""
_MOST_CYCLES: Final = 20_000
_MOST_CELLS: Final = 1_500_000
"""Windows × ranks."""
_LONGEST_CYCLE: Final = 2_000
_SEEN: Final = 20_000
"""Collectives that a cycle is looked for in."""
_ALIKE: Final = 0.95
"""Of the sizes: so many repeat after a cycle."""
_MOST_MISSING: Final = 0.02
"""Of its collectives: where the median rank lacks more, logs were overwritten before they were written."""
_MOST_APART: Final = 0.2
"""The parts of the run that logs of different communicators lack differ by no more."""


@dataclass(frozen=True)
class Stream:
    """One kind of collectives of one communicator."""

    communicator: str
    name: str
    size: int
    """Members of the communicator."""
    nodes: int
    ranks: Ints
    """Places of those that are recorded."""
    begin: int
    """Of its collectives, as places in `Meetings.of_collectives`."""
    end: int


@dataclass(frozen=True)
class Meetings:
    """What is known of collectives, and of receives, as columns."""

    streams: tuple[Stream, ...]
    rank: Ints
    """Per call of a collective: the place of its rank."""
    collective: Ints
    """Per call: the place of its collective."""
    waited_us: Floats
    """Per call."""
    row: Ints
    """Per call: its row in the calls."""
    of_collectives: Floats
    """Per collective the transfer's own time, µs."""
    kind: Ints
    """Per collective."""
    turn: Ints
    """Per collective: which one of its stream it is, from 0 on."""
    of_receives: tuple[Ints, Floats, Floats]
    """Per receive: the place of its rank, the part of the run at which it is, from 0 to 1, and what it waited."""
    cycles: int
    """How often the job's collectives recur."""
    is_partial: bool
    """Whether logs lack collectives in so uneven a way that waits cannot be added up."""


def meetings_of(calls: InspectorCalls, who: Who) -> Meetings:
    """Return the collectives that two members and more recorded, and the receives."""
    is_receive = np.array([one.name == RECV for one in calls.kinds], np.bool_)[calls.kind]
    known = who.place[calls.member] >= 0
    rows = np.flatnonzero(known & ~is_receive)
    name = _codes([one.name for one in calls.kinds])[calls.kind[rows]]
    communicator = _codes([one.communicator for one in calls.members])[calls.member[rows]]
    stream = dense(np.stack((communicator, name)))
    rank = who.place[calls.member[rows]]
    order = order_by(stream, calls.number[rows], rank)
    rows, stream, rank = rows[order], stream[order], rank[order]
    number = calls.number[rows]
    same = (np.diff(stream, prepend=-1) == 0) & (np.diff(number, prepend=-1) == 0)
    once = ~(same & (np.diff(rank, prepend=-1) == 0))  # a line that was written twice
    rows, stream, rank, number, same = rows[once], stream[once], rank[once], number[once], same[once]
    collective = np.cumsum(~same) - 1
    met = np.bincount(collective)[collective] > 1
    rows, stream, rank, number = rows[met], stream[met], rank[met], number[met]
    collective = dense(collective[met][None])
    starts = np.flatnonzero(np.diff(collective, prepend=-1))
    us = calls.us[rows].astype(np.float64)
    own = np.minimum.reduceat(us, starts) if len(starts) else np.zeros(0)
    bounds = offsets(stream[starts], int(stream.max(initial=-1)) + 1)
    streams = _streams(calls, rows, stream, rank, collective, bounds)
    kind = calls.kind[rows[starts]].astype(np.int64)
    return Meetings(
        streams=streams,
        rank=rank,
        collective=collective,
        waited_us=us - own[collective],
        row=rows,
        of_collectives=own,
        kind=kind,
        turn=np.arange(len(starts)) - bounds[stream[starts]],
        of_receives=_receives(calls, who, np.flatnonzero(known & is_receive)),
        cycles=_cycles(streams, kind),
        is_partial=_lacks_some(streams, rank) or _are_apart(streams, number[starts]),
    )


def _codes(texts: Sequence[str]) -> Ints:
    code: dict[str, int] = {}
    return np.array([code.setdefault(one, len(code)) for one in texts], np.int64)


def _streams(  # noqa: PLR0917  (columns of one table)
    calls: InspectorCalls, rows: Ints, stream: Ints, rank: Ints, collective: Ints, bounds: Ints
) -> tuple[Stream, ...]:
    found = []
    ends = np.searchsorted(stream, np.arange(len(bounds)))
    for code in range(len(bounds) - 1):
        begin, end = int(ends[code]), int(ends[code + 1])
        if begin == end:
            continue
        of: Member = calls.members[int(calls.member[rows[begin]])]
        name: CallKind = calls.kinds[int(calls.kind[rows[begin]])]
        ranks = np.unique(rank[begin:end])
        first, last = int(collective[begin]), int(collective[end - 1]) + 1
        found.append(Stream(of.communicator, name.name, of.size, of.nodes, ranks, first, last))
    return tuple(found)


def _cycles(streams: Sequence[Stream], kind: Ints) -> int:
    """Return how often the cycle recurs that recurs least, but often enough to judge by: a step has it once."""
    found: dict[tuple[str, int, int], int] = {}
    for one in streams:
        key = one.name, one.size, one.end - one.begin
        if key not in found:
            found[key] = _recurs(kind[one.begin : one.end])
    counts = sorted(found.values())
    return min(next((count for count in counts if count >= ENOUGH), max(counts, default=0)), _MOST_CYCLES)


def _recurs(kind: Ints) -> int:
    """Return how often the shortest cycle of sizes recurs, 0 where none does."""
    some = kind[-_SEEN:]
    for length in range(1, min(len(some) // 4, _LONGEST_CYCLE) + 1):
        if np.count_nonzero(some[length:] == some[:-length]) >= _ALIKE * (len(some) - length):
            return len(kind) // length
    return 0


def windows_of(found: Meetings, ranks: int) -> int:
    """Return into how many windows a run is cut: a cycle each, or several of very many."""
    every = -(-found.cycles * max(ranks, 1) // _MOST_CELLS)
    return found.cycles // max(every, 1)


def window_of(found: Meetings, windows: int) -> Ints:
    """Return per collective its window: each stream goes evenly through the run."""
    count = np.repeat([one.end - one.begin for one in found.streams], [one.end - one.begin for one in found.streams])
    return np.asarray(found.turn * windows // np.maximum(count, 1))


def _lacks_some(streams: Sequence[Stream], rank: Ints) -> bool:
    """Whether the median rank lacks many of the collectives that it was in."""
    if not streams:
        return False
    should = np.zeros(int(rank.max()) + 1)
    for one in streams:
        should[one.ranks] += one.end - one.begin
    missing = 1 - np.bincount(rank) / np.maximum(should, 1)
    return bool(np.median(missing[should > 0]) > _MOST_MISSING)


def _are_apart(streams: Sequence[Stream], number: Ints) -> bool:
    """Whether the logs of one communicator begin far later in the run than those of another."""
    long: list[Stream] = [one for one in streams if one.end - one.begin >= ENOUGH]
    lacked = [number[one.begin] / max(number[one.end - 1], 1) for one in long]
    return bool(lacked) and max(lacked) - min(lacked) > _MOST_APART


def _receives(calls: InspectorCalls, who: Who, rows: Ints) -> tuple[Ints, Floats, Floats]:
    """Return what ranks waited in receives: what each took beyond the shortest of its kind there."""
    if not len(rows):
        return np.zeros(0, np.int64), np.zeros(0), np.zeros(0)
    order = rows[order_by(calls.member[rows], calls.kind[rows])]
    member, kind = calls.member[order], calls.kind[order]
    fresh: Bools = (np.diff(member, prepend=-1) != 0) | (np.diff(kind, prepend=-1) != 0)
    starts, group = np.flatnonzero(fresh), np.cumsum(fresh) - 1
    size = np.diff(np.append(starts, len(order)))
    us = calls.us[order].astype(np.float64)
    waited = us - np.minimum.reduceat(us, starts)[group]
    at = (np.arange(len(order)) - starts[group]) / size[group]
    return who.place[member], at, waited
