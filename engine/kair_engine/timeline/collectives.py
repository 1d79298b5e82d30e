"""Matching the members of each collective across ranks, and what they waited for one another.

A collective's members leave together, so whoever arrived last has the shortest duration: waiting and
lateness come from durations alone and need no common clock.

Both ends of sends and receives, where recordings leave open how they count them.

The other end is a position in the process group, or a rank of the job: profilers' releases differ, and a small number
can be either. Sends that meet receives show which.
"""

import re
from collections import Counter
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from kair_engine.arrays import NONE, Bools, Floats, Ints, SmallInts, dense, is_one_of, one_of_each, order_by, present
from kair_engine.frozen import dataclass
from kair_engine.stats import median
from kair_engine.trace.model import KairWarning
from kair_engine.trace.operations import COLLECTIVE, RECV, SCOPE, SEND, Operations


@dataclass(frozen=True)
class Collectives:
    """The collectives of one step; a send with its receive counts as one of two members.

    Per member: `row` (in the operations), `instance`. Instances are numbered in order of their first
    member's start; members are ordered by instance. `rejected` counts instances whose members do not fit.
    """

    ops: Operations
    row: Ints
    instance: Ints
    rejected: int

    def __len__(self) -> int:
        return int(self.instance[-1]) + 1 if len(self.instance) else 0

    @cached_property
    def starts(self) -> Ints:
        """Index of each instance's first member."""
        if not len(self.instance):
            return self.instance
        return np.asarray(np.flatnonzero(np.concatenate(([True], np.diff(self.instance) > 0))))

    @cached_property
    def sizes(self) -> Ints:
        """Members of each instance."""
        return np.asarray(np.diff(np.concatenate((self.starts, [len(self.instance)]))))

    @cached_property
    def community(self) -> Ints:
        """Per instance a number, equal for those among the same ranks."""
        mixed = _mixed(self.ops.rank[self.row].astype(np.uint64))
        if not len(self.starts):
            return self.starts
        return np.unique(np.add.reduceat(mixed, self.starts), return_inverse=True)[1].reshape(-1).astype(np.int64)

    def members(self, instance: int) -> Ints:
        """Return the members of one instance, as positions among the step's ranks."""
        start = int(self.starts[instance])
        return np.asarray(self.ops.rank[self.row[start : start + int(self.sizes[instance])]])

    @cached_property
    def duration_ns(self) -> Ints:
        """Each member's duration, waiting included; of a send, as long as its thread stands still for it."""
        return np.minimum(self.ops.duration_ns[self.row], _until_thread_goes_on(self.ops, self.row))

    @cached_property
    def own_ns(self) -> Ints:
        """τ_g: each instance's self time, the shortest duration among its members."""
        return _reduce(np.minimum, self.duration_ns, self.starts)

    @cached_property
    def wait_ns(self) -> Ints:
        """Each member's waiting: its duration beyond the instance's self time."""
        return np.asarray(self.duration_ns - self.own_ns[self.instance])

    @cached_property
    def total_wait_ns(self) -> Ints:
        """Each instance's waiting, summed over its members."""
        return self.added_up(self.wait_ns)

    def added_up(self, of_members: Ints) -> Ints:
        """Each instance's sum of a figure of its members."""
        return _reduce(np.add, of_members, self.starts)

    @cached_property
    def last(self) -> Ints:
        """Index of each instance's member that arrived last (the lowest rank among equals)."""
        shortest = np.flatnonzero(self.wait_ns == 0)
        if not len(shortest):
            return shortest
        _, first = np.unique(self.instance[shortest], return_index=True)
        return np.asarray(shortest[first])

    @cached_property
    def lead_ns(self) -> Ints:
        """How much later than the last but one the last member arrived: what its punctuality would save."""
        rest = np.where(np.isin(np.arange(len(self.row)), self.last), np.iinfo(np.int64).max, self.wait_ns)
        lead = _reduce(np.minimum, rest, self.starts)
        return np.where(self.sizes > 1, lead, 0)


def _until_thread_goes_on(ops: Operations, rows: Ints) -> Ints:
    """Per row of a send on a thread the time to what that thread begins next; of all others the longest time there is.

    What profilers record of an asynchronous send (isend) lasts until somebody asks whether it is over, while its thread
    computes and sends on: it waits for nobody.
    """
    result = np.full(len(rows), np.iinfo(np.int64).max)
    sends = np.flatnonzero((ops.kind[rows] == SEND) & ~ops.on_stream[rows])
    if not len(sends):
        return result
    work = np.flatnonzero(ops.kind != SCOPE)  # A scope may be of the wait itself.
    place = np.searchsorted(work, rows[sends])
    followed = place + 1 < len(work)
    sends, place = sends[followed], place[followed]
    at, then = work[place], work[place + 1]
    same = ops.lane_key[at] == ops.lane_key[then]
    result[sends[same]] = (ops.start_ns[then] - ops.start_ns[at])[same]
    return result


def match(ops: Operations) -> Collectives:
    """Find which rows are one collective: process group + sequence number, else k-th of its name and group.

    A send and its receive are found by their ends where the trace says them: the k-th from one rank to the other.
    Collectives that name no group are matched among the ranks that call them equally often, stream by stream where a
    rank calls one name on several. If a member's recording has no numbers at all, order counts instead.
    What does not fit is left out and counted: a member missing that all siblings have, a rank with more or
    fewer of them than the others (in order, one too few would shift all that follow), a send without its receive.
    """
    rows = np.flatnonzero(is_one_of(ops.kind, (COLLECTIVE, SEND, RECV)))
    if not len(rows):
        return Collectives(ops, rows, rows, 0)
    rows = rows[order_by(ops.rank[rows], ops.start_ns[rows])]
    p2p = ops.kind[rows] != COLLECTIVE
    label = np.where(p2p, NONE, ops.name[rows])
    sender, receiver = ends(ops, rows)
    # Among more than two, each end numbers its sends and receives by itself: ends and order identify them.
    own_numbers = (sender != NONE) & (_group_size(ops, rows) > 2)
    sequence = _told_by_all(ops, rows, label, np.where(own_numbers, NONE, ops.group_seq[rows]))
    unnamed = ~p2p & (ops.group[rows] == NONE) & (sequence == NONE)
    queue = _queues(ops, rows, unnamed=unnamed & ops.on_stream[rows])
    program = _programs(ops.rank[rows], label, queue, unnamed=unnamed)
    family = dense(np.stack((label, ops.group[rows], p2p & (sequence == NONE), sender, receiver, program, queue)))
    call = dense(np.stack((family, sequence)))
    turn = ordinal(np.stack((ops.rank[rows], call)))
    instance = dense(np.stack((call, turn)))
    order = np.argsort(instance, kind="stable")
    agreed = _even(ops.rank[rows], call)[order]
    rows, instance, family = rows[order], instance[order], family[order]
    fits, rejected = _complete(ops.kind[rows], instance, family, agreed)
    rows, instance = rows[fits], instance[fits]
    return Collectives(ops, *_by_start(ops, rows, instance), rejected)


def _told_by_all(ops: Operations, rows: Ints, label: Ints, sequence: Ints) -> Ints:
    """`sequence` without the numbers of collectives (name and group) that a rank numbers none of."""
    told, collective = sequence != NONE, label != NONE
    if not (told & collective).any() or told[collective].all():
        return sequence
    call = dense(np.stack((label, ops.group[rows])))
    cells, of_row = np.unique(np.stack((call, ops.rank[rows])), axis=1, return_inverse=True)
    numbered = np.bincount(of_row.reshape(-1), weights=told, minlength=cells.shape[1]) > 0
    lacking = np.zeros(int(call.max()) + 1, dtype=bool)
    lacking[cells[0, ~numbered]] = True
    return np.where(lacking[call] & collective, NONE, sequence)


def of_unknown_ends(ops: Operations, rows: Ints) -> Bools:
    """Return whether each is a kernel of several sends and receives whose other ends are not recorded.

    Members of one need not meet all others: only common ends, by clocks that it did not set itself, show who did.
    """
    unknown = (ops.group[rows] == NONE) & (ops.group_seq[rows] == NONE) & (ops.kind[rows] == COLLECTIVE)
    if unknown.any():
        names = present(ops.name[rows[unknown]]).tolist()
        unknown &= is_one_of(ops.name[rows], [code for code in names if _GROUPED.search(ops.name_text[code])])
    return np.asarray(unknown)


_GROUPED: Final = re.compile(r"(?i)send_?recv")
"""In the names of NCCL's and RCCL's kernels."""


def _queues(ops: Operations, rows: Ints, *, unnamed: Bools) -> Ints:
    """Per row a number, equal for streams of different ranks that run the same collectives in the same order; else 0.

    A stream runs the collectives of one communicator in the order in which all its members call them. Only names that
    a rank runs on several streams need this: of its equal streams the k-th is the others' k-th.
    """
    queue = np.zeros(len(rows), dtype=np.int64)
    chosen = np.flatnonzero(unnamed)
    if not len(chosen):
        return queue
    name, lane, rank = ops.name[rows[chosen]], ops.lane_key[rows[chosen]], ops.rank[rows[chosen]]
    once = one_of_each(dense(np.stack((name, lane))))
    of_name_and_rank = dense(np.stack((name, rank)))
    several = np.isin(name, name[once[np.bincount(of_name_and_rank[once])[of_name_and_rank[once]] > 1]])
    if not several.any():
        return queue
    lane = dense(lane[None])
    of_lane, count = np.zeros(int(lane.max()) + 1, dtype=np.int64), np.bincount(lane)
    of_lane[lane] = rank
    names = np.zeros(len(count), dtype=np.uint64)
    np.add.at(names, lane, _mixed(_mixed(name.astype(np.uint64)) + ordinal(lane[None]).astype(np.uint64)))
    alike = dense(np.stack((names.astype(np.int64), count)))
    alike = dense(np.stack((alike, ordinal(np.stack((alike, of_lane))))))
    shared = np.bincount(alike)[alike] > 1
    queue[chosen] = np.where(several & shared[lane], 1 + alike[lane], 0)
    return queue


def _mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return a 64-bit hash of each (the finaliser of splitmix64): their sums distinguish sets."""
    mixed = (values + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed


def _programs(rank: Ints, label: Ints, queue: Ints, *, unnamed: Bools) -> Ints:
    """Per row a number, equal for ranks that call its collective equally often; 0 where its group is named.

    Without a named group, ranks that run different programs cannot be in one collective. A rank that is alone with its
    number does not run another program: it lost some calls, and its peers cannot be matched without it either.
    """
    result = np.zeros(len(rank), dtype=np.int64)
    if not unnamed.any():
        return result
    names, rank = dense(np.stack((label, queue))[:, unnamed]), rank[unnamed]
    cells, of_row, often = np.unique(np.stack((names, rank)), axis=1, return_inverse=True, return_counts=True)
    programs, ranks = np.unique(np.stack((cells[0], often)), axis=1, return_counts=True)
    alone = np.isin(cells[0], programs[0, ranks == 1])
    result[unnamed] = np.where(alone, 0, often)[of_row.reshape(-1)]
    return result


def _group_size(ops: Operations, rows: Ints) -> Ints:
    """Per row, how many ranks use its process group in this step."""
    group = dense(ops.group[rows][None])
    return np.asarray(np.bincount(group[one_of_each(dense(np.stack((group, ops.rank[rows]))))])[group])


def match_warnings(matched: int, rejected: int) -> tuple[KairWarning, ...]:
    """Return what is said of a job in which collectives do not fit, or are none."""
    if not matched and not rejected:
        return (KairWarning("no_collectives", "no collectives: it is unknown how long ranks wait for each other"),)
    if not rejected:
        return ()
    text = f"{rejected} of {matched + rejected} collectives could not be matched across ranks and "
    left_out = f"{'was' if rejected == 1 else 'were'} left out"
    text += left_out if matched else "who waits for whom is unknown: prices are estimates"
    return (KairWarning("unmatched_collectives", text),)


def disagreement_ns(collectives: Collectives, offset_ns: Floats) -> Floats:
    """How far each member's end lies from its instance's median end, on clocks corrected by `offset_ns`."""
    ends = collectives.ops.end_ns[collectives.row] - offset_ns[collectives.ops.rank[collectives.row]]
    return ends - instance_median(collectives, ends)


def instance_median(collectives: Collectives, values: Floats) -> Floats:
    """Return the median over each member's instance, as one value per member."""
    result = np.empty(len(values))
    for size in np.unique(collectives.sizes):
        index = collectives.starts[collectives.sizes == size][:, None] + np.arange(size)
        result[index] = median(values[index])[:, None]
    return result


def _even(rank: Ints, call: Ints) -> Bools:
    """Per row: has every rank of its call as many of them as the others?"""
    cell = dense(np.stack((call, rank)))
    counts, of_cell = np.bincount(cell), call[one_of_each(cell)]
    fewest = np.full(int(call.max()) + 1, np.iinfo(np.int64).max)
    most = np.zeros_like(fewest)
    np.minimum.at(fewest, of_cell, counts)
    np.maximum.at(most, of_cell, counts)
    return np.asarray((fewest == most)[call])


def _complete(kind: SmallInts, instance: Ints, family: Ints, agreed: Bools) -> tuple[Bools, int]:
    """Return True for members of instances that are as large as most of their family; of a send, with its receive."""
    count = int(instance[-1]) + 1
    sizes = np.bincount(instance, minlength=count)
    first = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    of_family = family[first]
    cell = dense(np.stack((of_family, sizes)))
    one = one_of_each(cell)
    # The most frequent size of a family comes last of its sizes, among equally frequent ones the largest.
    one = one[order_by(of_family[one], np.bincount(cell), sizes[one])]
    last = one[np.flatnonzero(np.diff(of_family[one], append=NONE))]
    usual = np.zeros(int(family.max()) + 1, dtype=np.int64)
    usual[of_family[last]] = sizes[last]
    good = (sizes == usual[of_family]) & (sizes > 1) & agreed[first]
    sends = np.bincount(instance[kind == SEND], minlength=count)
    good &= (kind[first] == COLLECTIVE) | ((sizes == 2) & (sends == 1))
    return good[instance], int(np.count_nonzero(~good & (sizes > 1)))


def _by_start(ops: Operations, rows: Ints, instance: Ints) -> tuple[Ints, Ints]:
    if not len(rows):
        return rows, instance
    starts = np.flatnonzero(np.concatenate(([True], np.diff(instance) != 0)))
    begin = _reduce(np.minimum, ops.start_ns[rows], starts)
    sizes = np.diff(np.concatenate((starts, [len(rows)])))
    place = np.empty(len(starts), dtype=np.int64)
    place[np.argsort(begin, kind="stable")] = np.arange(len(starts))
    number = np.repeat(place, sizes)
    order = np.argsort(number, kind="stable")
    return rows[order], number[order]


def ordinal(columns: Ints) -> Ints:
    """For each column its place among equal ones, in order."""
    code = dense(columns)
    order = np.argsort(code, kind="stable")
    ordered = code[order]
    starts = np.flatnonzero(np.concatenate(([True], np.diff(ordered) > 0)))
    sizes = np.diff(np.concatenate((starts, [len(ordered)])))
    result = np.empty(len(code), dtype=np.int64)
    result[order] = np.arange(len(code)) - np.repeat(starts, sizes)
    return result


def _reduce(function: np.ufunc, values: Ints, starts: Ints) -> Ints:
    return np.asarray(function.reduceat(values, starts)) if len(starts) else np.zeros(0, dtype=np.int64)


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
