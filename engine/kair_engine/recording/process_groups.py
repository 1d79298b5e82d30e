"""Finds the process groups of communication that states none, from the recordings of all ranks together.

gloo's recordings list a rank's groups, but not the group of an operation. Sends and receives number their peer within
their group: in the right one every send has its receive. Collectives are assigned by their threads and times:

Each of gloo's process groups has its own worker threads, so all operations of one thread are of one group, as is the
same call of every step. Collectives thus fall into sets, and the ranks that leave together show the group of a set.
Collectives of known groups put ranks on one clock.

Members of a collective leave it together, and none before the last one came. Clocks of two ranks can be off, and drift:
only unsteady differences count.

A family of process groups is one dimension of a mesh: every rank is in one of its groups.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints, order_by
from kair_engine.stats import known_median
from kair_engine.timeline.collectives import ordinal
from kair_engine.trace.columns import Columns
from kair_engine.trace.large_steps import read_chosen
from kair_engine.trace.model import DerivedGroups, Job, KairWarning, ProcessGroup, Trace, short_warning

# Sampled pairs of a large group, enough to distinguish its times from another's.
_MOST_PAIRS: Final = 2000


@dataclass(frozen=True)
class Family:
    """Per rank its group of one dimension, if any."""

    of_rank: dict[int, ProcessGroup]

    def pairs(self, ranks: Sequence[int]) -> set[tuple[int, int]]:
        """Return pairs of indices into `ranks` that share a group, the lower first."""
        place = {rank: at for at, rank in enumerate(ranks)}
        found: set[tuple[int, int]] = set()
        for group in {group.ranks: group for group in self.of_rank.values()}.values():
            members = sorted(place[rank] for rank in group.ranks if rank in place and self.of_rank.get(rank) == group)
            found.update(combinations(members, 2))
        return found

    def parts(self, ranks: Sequence[int]) -> Ints:
        """Return per rank a number, equal for those that share a group; a rank without a group is alone."""
        numbers: dict[object, int] = {}
        return np.array(
            [
                numbers.setdefault(self.of_rank[rank].ranks if rank in self.of_rank else rank, len(numbers))
                for rank in ranks
            ]
        )

    def divides(self, ranks: Collection[int], recorded: Collection[int]) -> bool:
        """Return whether each of `ranks` has a group of the family, all of whose recorded members are among them."""
        return all(
            rank in self.of_rank
            and all(
                member in ranks and self.of_rank.get(member) == self.of_rank[rank]
                for member in self.of_rank[rank].ranks
                if member in recorded
            )
            for rank in ranks
        )


def families(groups_of: Mapping[int, Sequence[ProcessGroup]]) -> list[Family]:
    """Return the families in the ranks' lists; of several with the same groups the first.

    The groups of a dimension share a description and a size; if a rank is in several such, the n-th on its list
    corresponds to the n-th on the others'.
    """
    found: dict[tuple[str, int, int], dict[int, ProcessGroup]] = {}
    for rank, groups in groups_of.items():
        met: Counter[tuple[str, int]] = Counter()
        for group in groups:
            kind = (group.description, len(group.ranks))
            found.setdefault((*kind, met[kind]), {})[rank] = group
            met[kind] += 1
    distinct: dict[tuple[tuple[int, tuple[int, ...]], ...], Family] = {}
    for of_rank in found.values():
        members = tuple(sorted((rank, group.ranks) for rank, group in of_rank.items()))
        distinct.setdefault(members, Family(of_rank))
    return list(distinct.values())


def as_columns(pairs: Collection[tuple[int, int]]) -> Ints:
    """Return (2 × pairs), an even sample if there are very many."""
    ordered = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2).T
    if ordered.shape[1] <= _MOST_PAIRS:
        return ordered
    return ordered[:, np.linspace(0, ordered.shape[1] - 1, _MOST_PAIRS).astype(np.int64)]


_AGREEING: Final = 0.9
"""Share of (step, sender, receiver) in which the sends and the receives must be the same."""


def derive(trace: Trace, groups_of: Mapping[int, Sequence[ProcessGroup]]) -> tuple[DerivedGroups, list[KairWarning]]:
    """Return the groups of operations without one on the ranks in `groups_of` (their lists), and warnings about unknown
    ones.
    """
    rows = _rows(trace, groups_of)
    known = families(groups_of)
    of_lane, undecided = groups_of_lanes(rows, known, trace.job)
    transfers, unsettled = _groups_of_transfers(rows, known, trace.job.ranks)
    found = []
    if undecided:
        text = (
            f"{undecided} collectives do not say in which of the job's process groups they ran, and their times do not"
        )
        found.append(short_warning("unknown_process_group", f"{text} either; they are matched by their order alone"))
    if unsettled:
        text = f"{unsettled} sends and receives do not say in which of the job's process groups they count their peer"
        found.append(short_warning("unknown_peers", f"{text}, and not just one fits; they count as without a peer"))
    of_transfers = {rank: transfers.of_rank.get(rank) if transfers else None for rank in groups_of}
    return DerivedGroups(of_lane, of_transfers), found


def _rows(trace: Trace, ranks: Collection[int]) -> Columns:
    """Return communication on threads without a group, in order of (rank, step, start)."""

    def chosen(rows: Columns) -> Bools:
        threads = [lane for lane in rows.texts["lane"] if lane.startswith("thread ")]
        communicates = rows.is_any("kind", ("collective", "send", "recv")) & rows.is_any("lane", threads)
        return np.asarray(communicates & (rows.of["group"] == NONE) & np.isin(rows.of["rank"], list(ranks)))

    rows = read_chosen(trace, ("kind", "lane", "name", "group", "start_ns", "duration_ns", "bytes", "peer"), chosen)
    return rows.chosen(order_by(rows.of["rank"], rows.of["step"], rows.of["start_ns"]))


def _groups_of_transfers(
    rows: Columns, known: Sequence[Family], recorded: Collection[int]
) -> tuple[Family | None, int]:
    """Return the family in whose groups sends and receives number their peers, and the number of unassigned ones."""
    rows = rows.chosen(rows.is_any("kind", ("send", "recv")))
    if not len(rows):
        return None, 0
    fitting = [family for family in known if _agree(rows, family, recorded)]
    return (fitting[0], 0) if len(fitting) == 1 else (None, len(rows))


def _agree(rows: Columns, family: Family, recorded: Collection[int]) -> bool:
    """Return whether every send has its receive within the family's groups: equal sizes in equal order."""
    sent: dict[tuple[int, int, int], list[int]] = {}
    received: dict[tuple[int, int, int], list[int]] = {}
    columns = (rows.of[name].tolist() for name in ("rank", "step", "bytes", "peer"))
    for rank, step, size, peer, kind in zip(*columns, rows.text("kind"), strict=True):
        group = family.of_rank.get(rank)
        other = _member(group, peer) if group is not None else None
        if other is None or other == rank:
            return False
        if other in recorded:
            ends = (rank, other) if kind == "send" else (other, rank)
            (sent if kind == "send" else received).setdefault((step, *ends), []).append(size)
    links = sent.keys() | received.keys()
    return bool(links) and sum(sent.get(link) == received.get(link) for link in links) >= _AGREEING * len(links)


def _member(group: ProcessGroup, place: int) -> int | None:
    """Return the rank at `place` in the group; None if there is no such place."""
    return group.ranks[place] if 0 <= place < len(group.ranks) else None


FEWEST: Final = 8
"""Collectives that two ranks must have in common before their times count."""
MARGIN: Final = 3.0
"""A family is chosen if ranks of other groups leave this many times further apart than members of its own."""
_OVERLAPPING: Final = 0.9
_OF_EACH_PAIR: Final = 0.7
"""Share of collectives that members must spend together. (Events may be closed milliseconds late or early.)"""
FEWEST_APART: Final = 4
"""Collectives in which ranks must never meet, to exclude chance."""
_BY_CHANCE: Final = 0.25
"""Share of collectives in which ranks of two groups may still meet."""
_TOLERANCE_NS: Final = 50_000.0


@dataclass(frozen=True)
class Visits:
    """When ranks came to collectives, in order, and left: (collectives × ranks), NaN where a rank took no part."""

    ranks: tuple[int, ...]
    clock: Ints
    """Per rank a number, equal for those that share a clock."""
    start_ns: Floats
    end_ns: Floats
    resolution_ns: float = 20_000.0
    """Times closer than this count as simultaneous."""


def choose(visits: Visits, candidates: Sequence[Family], rivals: Sequence[Family]) -> Family | None:
    """Return the one of `candidates` that the times support against all other `rivals`, or None."""
    for candidate in candidates:
        others = [rival for rival in rivals if rival is not candidate]
        if not others or (
            _is_possible(visits, candidate) and all(_beats(visits, candidate, other) for other in others)
        ):
            return candidate
    return None


def _beats(visits: Visits, family: Family, rival: Family) -> bool:
    """Return whether `family` explains the times and `rival` does not.

    If `rival` joins ranks that `family` separates, these leave at different times, and not because groups of `family`
    wait for one another. If it only splits the groups of `family` further, the parts come separately and leave
    together.
    """
    mine, theirs = family.pairs(visits.ranks), rival.pairs(visits.ranks)
    if theirs - mine:
        between = as_columns(theirs - mine)
        if _never_meet(visits, between):
            return True
        apart, together = _leave_apart(visits, between), _leave_apart(visits, as_columns(mine))
        return apart >= MARGIN * max(together, visits.resolution_ns) and not _wait_for_one_another(
            visits, family, between
        )
    return _wait_for_one_another(visits, rival, as_columns(mine - theirs))


def _leave_apart(visits: Visits, pairs: Ints) -> float:
    return _spread(visits.end_ns, visits.clock, pairs)


def _is_possible(visits: Visits, family: Family) -> bool:
    """Return whether members of the family's groups overlap in nearly all collectives, on clocks that align ends."""
    overlapping = _overlapping(visits, as_columns(family.pairs(visits.ranks)))
    return len(overlapping) > 0 and bool(overlapping.mean() >= _OVERLAPPING and overlapping.min() >= _OF_EACH_PAIR)


def _never_meet(visits: Visits, pairs: Ints) -> bool:
    """Return whether the two ranks of each pair are hardly ever in a collective together, and so do not share it."""
    overlapping = _overlapping(visits, pairs)
    return len(visits.end_ns) >= FEWEST_APART and len(overlapping) > 0 and bool(overlapping.max() <= _BY_CHANCE)


def _overlapping(visits: Visits, pairs: Ints) -> Floats:
    """Return the share of collectives in which the ranks of each pair overlapped, for pairs with common ones."""
    first, second = pairs
    ends = visits.end_ns[:, first] - visits.end_ns[:, second]
    offset = ends - _apart(ends, visits.clock[pairs])
    early = visits.end_ns[:, first] - visits.start_ns[:, second] - offset
    late = visits.end_ns[:, second] - visits.start_ns[:, first] + offset
    slack = np.minimum(early, late)
    taken = ~np.isnan(slack)
    overlapping = np.count_nonzero(slack > -_TOLERANCE_NS, axis=0) / np.maximum(np.count_nonzero(taken, axis=0), 1)
    return np.asarray(overlapping[taken.any(axis=0)])


def _wait_for_one_another(visits: Visits, family: Family, pairs: Ints) -> bool:
    """Return whether the groups of `family` that `pairs` (of ranks) connect come separately but leave together."""
    part = family.parts(visits.ranks)
    members = [part == group for group in range(int(part.max()) + 1)]
    ahead = [_ahead_of_first(visits.end_ns[:, group], visits.clock[group]) for group in members]
    parts = list(zip(members, ahead, strict=True))
    came = np.stack([np.fmax.reduce(visits.start_ns[:, group] - of, axis=1) for group, of in parts], axis=1)
    left = np.stack([np.fmin.reduce(visits.end_ns[:, group] - of, axis=1) for group, of in parts], axis=1)
    # A group on several clocks gets one that no other shares.
    clocks = [np.unique(visits.clock[group]) for group in members]
    clock = np.array([one[0] if len(one) == 1 else -1 - at for at, one in enumerate(clocks)])
    connected = as_columns({(min(a, b), max(a, b)) for a, b in part[pairs].T.tolist() if a != b})
    # Groups that always come at the same time, by aligned clocks, do not come separately.
    return MARGIN * max(_spread(left, clock, connected), visits.resolution_ns) <= _spread(came, clock, connected)


def _ahead_of_first(end_ns: Floats, clock: Ints) -> Floats:
    """Return how far the clocks of a group's members are ahead of its first one's, given that they leave together."""
    ahead = known_median(end_ns - end_ns[:, :1])
    return np.where(np.isnan(ahead) | (clock == clock[0]), 0.0, ahead)


def _spread(times: Floats, clock: Ints, pairs: Ints) -> float:
    """Return how far apart two columns' times typically are: the median over collectives and pairs; NaN: unknown."""
    difference = times[:, pairs[0]] - times[:, pairs[1]]
    enough = np.count_nonzero(~np.isnan(difference), axis=0) >= FEWEST
    apart = _apart(difference[:, enough], clock[pairs[:, enough]])
    return float(known_median(np.abs(apart).reshape(-1, 1))[0]) if apart.size else float("nan")


def _apart(difference: Floats, clock: Ints) -> Floats:
    """Return differences of times (collectives × pairs) as on one clock, without steady differences of clocks.

    Steady is a straight line through the medians of the recording's two halves. `clock` is (2 × pairs).
    """
    result = difference.copy()
    foreign = clock[0] != clock[1]
    if not foreign.any() or len(difference) < 2:
        return result
    half = len(difference) // 2
    first, second = known_median(difference[:half, foreign]), known_median(difference[half:, foreign])
    # From the middle of one half to that of the other.
    along = (np.arange(len(difference)) - (half - 1) / 2) / (len(difference) / 2)
    result[:, foreign] -= first + along[:, None] * (second - first)
    return result


# In the others a root or a leaf may leave early.
_LEFT_TOGETHER: Final = re.compile(r"(?i)all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|barrier")
_OF_ONE_SIZE: Final = re.compile(r"(?i)all_?reduce|barrier")
"""Collectives to which every member contributes equally."""
_MOST_COLLECTIVES: Final = 400
"""Collectives of a set that are examined."""

_Key = tuple[int, int, int]
"""A call of a step: name, bytes, and index among equal ones."""


def groups_of_lanes(rows: Columns, known: Sequence[Family], job: Job) -> tuple[dict[int, dict[str, str]], int]:
    """Return rank → lane → group, for the lanes of the collectives in `rows`; and the number without a known group.

    `rows` are in order of (rank, step, start).
    """
    rows = rows.chosen(rows.is_any("kind", ("collective",)))
    if not len(rows):
        return {}, 0
    keys = _keys(rows)
    rank, lane = rows.of["rank"].tolist(), rows.text("lane")
    sets = _sets(list(zip(rank, lane, strict=True)), keys)
    of_lane: dict[int, dict[str, str]] = {}
    unknown = 0
    for of_set, family in zip(sets, _families_of(rows, sets, keys, known, job), strict=True):
        members = of_set.tolist()
        if family is None:
            unknown += len(members) if len({rank[row] for row in members}) > 1 else 0
            continue
        for row in members:
            of_lane.setdefault(rank[row], {})[lane[row]] = family.of_rank[rank[row]].name
    return of_lane, unknown


def _keys(rows: Columns) -> list[_Key]:
    rank, step, name, size = (rows.of[column].astype(np.int64) for column in ("rank", "step", "name", "bytes"))
    turn = ordinal(np.stack((rank, step, name, size)))
    return list(zip(name.tolist(), size.tolist(), turn.tolist(), strict=True))


def _sets(lanes: Sequence[tuple[int, str]], keys: Sequence[_Key]) -> list[Ints]:
    """Return the rows that ran in one group each: on one lane of a rank, or as the same call of a step."""
    leader: dict[_Key, _Key] = {key: key for key in keys}

    def first(key: _Key) -> _Key:
        while leader[key] != key:
            leader[key] = key = leader[leader[key]]
        return key

    of_lane: dict[tuple[int, str], _Key] = {}
    for lane, key in zip(lanes, keys, strict=True):
        leader[first(key)] = first(of_lane.setdefault(lane, key))
    sets: dict[_Key, list[int]] = {}
    for row, key in enumerate(keys):
        sets.setdefault(first(key), []).append(row)
    return [np.array(rows, dtype=np.int64) for rows in sets.values()]


def _families_of(
    rows: Columns, sets: Sequence[Ints], keys: Sequence[_Key], known: Sequence[Family], job: Job
) -> list[Family | None]:
    """Return the family of each set, if the times show it.

    Families found first put ranks on one clock, on which more can be found.
    """
    comparable = rows.is_any("name", [name for name in rows.texts["name"] if _LEFT_TOGETHER.search(name)])
    alike = rows.is_any("name", [name for name in rows.texts["name"] if _OF_ONE_SIZE.search(name)])
    visits = [_visits(rows, of_set[comparable[of_set]], keys) for of_set in sets]
    whole = [bool(alike[of_set].all()) for of_set in sets]
    found = [_family_of(one, known, job.ranks, whole=of) for one, of in zip(visits, whole, strict=True)]
    decided = [(one, family) for one, family in zip(visits, found, strict=True) if family is not None]
    if not decided or None not in found:
        return found
    return [
        family or _family_of(one, known, job.ranks, whole=of)
        for one, family, of in zip(aligned(visits, decided), found, whole, strict=True)
    ]


def _family_of(visits: Visits, known: Sequence[Family], recorded: Collection[int], *, whole: bool) -> Family | None:
    """Return the family of visits; `whole` if members of a group cannot call with different sizes, so that all are
    present.
    """
    rivals = [family for family in known if family.pairs(visits.ranks)]
    candidates = [family for family in rivals if family.divides(visits.ranks, recorded)]
    return choose(visits, candidates, candidates if whole else rivals)


def _visits(rows: Columns, of_set: Ints, keys: Sequence[_Key]) -> Visits:
    """Return the rows `of_set` as a table of calls, in order, and ranks.

    Every rank has its own clock, even with equal host names: containers are all called `localhost`.
    """
    rank, step, duration = (rows.of[name][of_set] for name in ("rank", "step", "duration_ns"))
    since = rows.of["start_ns"] - rows.of["start_ns"].min()
    ranks, place = np.unique(rank, return_inverse=True)
    calls = [(int(number), keys[row]) for number, row in zip(step, of_set.tolist(), strict=True)]
    order = {call: at for at, call in enumerate(dict.fromkeys(sorted(calls, key=lambda call: call[0])))}
    at = np.array([order[call] for call in calls], dtype=np.int64)
    start = np.full((len(order), len(ranks)), np.nan)
    end = np.full_like(start, np.nan)
    start[at, place.reshape(-1)] = since[of_set]
    end[at, place.reshape(-1)] = since[of_set] + duration
    clock = ranks.astype(np.int64)
    return Visits(tuple(ranks.tolist()), clock, start[:_MOST_COLLECTIVES], end[:_MOST_COLLECTIVES])


def aligned(visits: Sequence[Visits], decided: Sequence[tuple[Visits, Family]]) -> list[Visits]:
    """Return `visits` on one clock for the ranks that groups of `decided` connect: members leave together."""
    ahead: dict[int, dict[int, list[float]]] = {}
    resolution = 0.0
    for one, family in decided:
        first, second = pairs = as_columns(family.pairs(one.ranks))
        for here, there, clocks in zip(first.tolist(), second.tolist(), one.clock[pairs].T.tolist(), strict=True):
            difference = one.end_ns[:, here] - one.end_ns[:, there]
            if clocks[0] == clocks[1] or np.isnan(difference).all():
                continue
            usual = float(np.nanmedian(difference))
            resolution = max(resolution, float(np.nanmedian(np.abs(difference - usual))))
            ahead.setdefault(clocks[0], {}).setdefault(clocks[1], []).append(usual)
            ahead.setdefault(clocks[1], {}).setdefault(clocks[0], []).append(-usual)
    reference, offset = _offsets(ahead)
    return [_moved(one, reference, offset, resolution) for one in visits]


def _offsets(ahead: dict[int, dict[int, list[float]]]) -> tuple[dict[int, int], dict[int, float]]:
    """Return per clock its reference, compared directly or through others, and how far it is ahead of that."""
    reference: dict[int, int] = {}
    offset: dict[int, float] = {}
    for root in sorted(ahead):
        if root in reference:
            continue
        reference[root], offset[root] = root, 0.0
        waiting = [root]
        for clock in waiting:
            for other, differences in ahead[clock].items():
                if other not in reference:
                    reference[other] = root
                    offset[other] = offset[clock] - float(np.median(differences))
                    waiting.append(other)
    return reference, offset


def _moved(visits: Visits, reference: dict[int, int], offset: dict[int, float], resolution: float) -> Visits:
    clocks = visits.clock.tolist()
    shift = np.array([offset.get(clock, 0.0) for clock in clocks])
    clock = np.array([reference.get(clock, clock) for clock in clocks], dtype=np.int64)
    return replace(
        visits,
        clock=clock,
        start_ns=visits.start_ns - shift,
        end_ns=visits.end_ns - shift,
        resolution_ns=max(resolution, visits.resolution_ns),
    )
