"""Both ends of sends and receives, where recordings leave open how they count them.

The other end is a place in the process group, or a rank of the job: profilers' releases differ, and a small number can
be either. Sends that meet receives tell which.
"""

import re
from collections import Counter
from typing import Final

import numpy as np

from kair_engine.arrays import NONE, Ints, dense, one_of_each
from kair_engine.trace.operations import COLLECTIVE, SEND, Operations

_RANKS: Final = re.compile(r"\[\s*(\d{1,9}(?:\s*,\s*\d{1,9})*)\s*\]$")
_Link = tuple[int, int, int]
"""(process group, sender, receiver); ranks as positions."""
_End = tuple[int, bool, int, int]
"""(process group, whether it sends, its own position, the recorded position of the other end)."""


def ends(ops: Operations, rows: Ints) -> tuple[Ints, Ints]:
    """Sender and receiver of every send and receive that names its other end; NONE for all other rows."""
    known = np.flatnonzero((ops.kind[rows] != COLLECTIVE) & (ops.peer[rows] != NONE))
    sender, receiver = np.full(len(rows), NONE), np.full(len(rows), NONE)
    if not len(known):
        return sender, receiver
    sends = ops.kind[rows[known]] == SEND
    columns = np.stack((ops.group[rows[known]], sends, ops.rank[rows[known]], ops.peer[rows[known]]))
    which = dense(columns)
    distinct, count = columns[:, one_of_each(which)].T.tolist(), np.bincount(which).tolist()
    found = [(group, bool(sending), own, other) for group, sending, own, other in distinct]
    settled = _settled(ops, dict(zip(found, count, strict=True)))
    other = np.array([settled[end] for end in found], dtype=np.int64)[which]
    own = ops.rank[rows[known]]
    sender[known], receiver[known] = np.where(sends, own, other), np.where(sends, other, own)
    return sender, receiver


def _settled(ops: Operations, ends_of: dict[_End, int]) -> dict[_End, int]:
    """Per kind of end (and how many there are of it) the position of the other end.

    As recorded, unless only the other reading makes as many sends meet as many receives.
    """
    sent, received = Counter[_Link](), Counter[_Link]()
    for end, count in ends_of.items():
        (sent if end[1] else received)[_link(end, end[3])] += count
    settled = {end: end[3] for end in ends_of}
    position = {rank: at for at, rank in enumerate(ops.ranks.tolist())}
    places = {group: _places(ops.group_text.get(group, ""), position) for group in {end[0] for end in ends_of}}
    for end, count in ends_of.items():
        mine, theirs = (sent, received) if end[1] else (received, sent)
        recorded = _link(end, end[3])
        other = places[end[0]].get(end[3])
        if mine[recorded] == theirs[recorded] or other is None or other == end[2]:
            continue
        link = _link(end, other)
        if mine[link] + count == theirs[link]:
            mine[recorded] -= count
            mine[link] += count
            settled[end] = other
    return settled


def _link(end: _End, other: int) -> _Link:
    group, sends, own, _ = end
    return (group, own, other) if sends else (group, other, own)


def _places(group: str, position: dict[int, int]) -> dict[int, int]:
    """Per member of a group (as positions) the member whose rank is the place of that one in the group.

    A recorded number was taken for a place: had it been a rank, it would have been that one's.
    """
    listed = _RANKS.search(group)
    ranks = [int(number) for number in listed[1].split(",")] if listed else []
    return {
        position[rank]: position[place]
        for place, rank in enumerate(ranks)
        if place in ranks and rank in position and place in position
    }
