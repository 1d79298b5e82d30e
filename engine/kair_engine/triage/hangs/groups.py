"""Each process group as its members recorded it: who has called which number, and in which of them each is held.

A collective is known by its process group and its number in it, the same on all members. A member is held in the first
call that is open; or, where calls are said to be over or to have returned, in the first that another member has not
made and that cannot end without it: after an abort everything is over, and some backends say nothing of completion.

Members of a process group that called something else than the others under one number.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property
from operator import attrgetter, itemgetter
from typing import Final

from kair_engine.frozen import dataclass
from kair_engine.trace.calls import DEFAULT_GROUP, NOT_NUMBERED, UNKNOWN, UNNAMED_GROUP, CollectiveCall, GroupProgress
from kair_engine.trace.model import Job

Progress = Mapping[int, tuple[GroupProgress, ...]]
ENDS_ALONE: Final = frozenset(
    ("broadcast", "_broadcast_oop", "reduce", "_reduce_oop", "gather", "scatter", "coalesced", "send", "recv")
)
"""Operations that some members are through with before others have called them; coalesced ones may consist of these."""


@dataclass(frozen=True)
class Group:
    """A process group according to the ranks that left a recording; only its members are in it."""

    name: str
    words: str
    """`2 (dp)`."""
    members: tuple[int, ...]
    """Empty if no recording lists them."""
    of_rank: Mapping[int, GroupProgress]
    unread: frozenset[int]
    """Members whose recording does not show how far they came."""
    is_whole: bool = True
    """Whether it has no more members than these."""

    @cached_property
    def silent(self) -> tuple[int, ...]:
        """Members that left no recording."""
        return tuple(rank for rank in self.members if rank not in self.of_rank and rank not in self.unread)

    @cached_property
    def lacking(self) -> frozenset[int]:
        """Members of whom it is not known whether they called anything."""
        return frozenset((*self.silent, *self.unread))

    @cached_property
    def lowest(self) -> int:
        """The number of the last call that all made of whom it is known."""
        return min((one.enqueued for one in self.of_rank.values()), default=NOT_NUMBERED)

    def held(self, level: int) -> dict[int, int]:
        """rank → the number of the call it is held in, of those that are held in one.

        At level 0 calls that are open or only known to have returned hold a rank. At level 1, where all are over, those
        that cannot have ended without a member that has not made them, as after an abort. At level 2 any that a member
        has not made.
        """
        found = ((rank, self._held_in(one, level)) for rank, one in self.of_rank.items())
        return {rank: number for rank, number in found if number is not None}

    def _held_in(self, one: GroupProgress, level: int) -> int | None:
        if one.open_calls:
            return one.open_calls[0].sequence
        if one.tells_completion and not one.calls and 0 <= one.completed < one.enqueued:
            # Called and not over by the group's own count, and dropped from the ring of calls.
            return one.completed + 1
        for number in range(self.lowest + 1, one.enqueued + 1):
            call = one.call(number)
            is_over = call.state == "done" if call is not None else one.tells_completion
            ends_alone = call is not None and call.operation in ENDS_ALONE
            if not is_over or level == 2 or (level == 1 and not ends_alone):
                return number
        return None

    def missing(self, sequence: int) -> tuple[int, ...]:
        """Of those known, who has not called that number."""
        return tuple(rank for rank, one in self.of_rank.items() if one.enqueued < sequence)

    def calls(self, sequence: int, ranks: Collection[int] | None = None) -> dict[int, CollectiveCall]:
        """rank → its call of that number, of those that made it and still have it; of `ranks` where these are given."""
        found = ((rank, one.call(sequence)) for rank, one in self.of_rank.items() if ranks is None or rank in ranks)
        return {rank: call for rank, call in found if call is not None}

    def operation(self, sequence: int, ranks: Collection[int] | None = None) -> str:
        """Return what most of them called under that number."""
        names = Counter(call.operation for call in self.calls(sequence, ranks).values() if call.operation)
        return max(names, key=lambda name: names[name], default="a collective")

    @cached_property
    def through(self) -> tuple[int, str | None] | None:
        """The last collective that all are through with of whom it is known, and its operation where that is held."""
        number = min((one.completed for one in self.of_rank.values()), default=NOT_NUMBERED)
        if number < 0 or not all(one.tells_completion for one in self.of_rank.values()):
            return None
        return number, self.operation(number) if self.calls(number) else None


def groups_of(job: Job, progress: Progress, unread: Collection[int]) -> list[Group]:
    """Return the process groups, in the order of their names; one name may be several sets of ranks.

    `progress` is that of the ranks whose recordings are of this hang; `unread` ranks left one that shows some of their
    groups at most.
    """
    sets: dict[str, set[tuple[int, ...]]] = {}
    for one in (one for groups in progress.values() for one in groups if one.ranks):
        sets.setdefault(one.name, set()).add(one.ranks)
    found: dict[tuple[str, tuple[int, ...]], dict[int, GroupProgress]] = {}
    for rank, groups in progress.items():
        for group in groups:
            ranks = group.ranks or _listed_by_others(rank, sets.get(group.name, ()))
            if not ranks or rank in ranks:
                found.setdefault((group.name, ranks), {})[rank] = group
    sure = ((key, of_rank) for key, of_rank in sorted(found.items(), key=itemgetter(0)) if _is_one(key[0], of_rank))
    return [_group(job, key, of_rank, progress, unread) for key, of_rank in sure]


def _listed_by_others(rank: int, sets: Collection[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the members of a group that lists none, as others list them: logs have a group's name only."""
    fitting = [ranks for ranks in sets if rank in ranks]
    return fitting[0] if len(fitting) == 1 else ()


def _is_one(name: str, of_rank: Mapping[int, GroupProgress]) -> bool:
    """Return whether calls without a recorded group are one call: of one number, and one operation."""
    told = {(call.sequence, call.operation) for one in of_rank.values() for call in one.open_calls}
    return name != UNNAMED_GROUP or len(told) == 1


def words_of(name: str, description: str) -> str:
    """`2 (dp)`."""
    if name == UNNAMED_GROUP:
        return "that is not named"
    return f"{name} ({description})" if description and description != name else name


def _group(
    job: Job,
    key: tuple[str, tuple[int, ...]],
    of_rank: dict[int, GroupProgress],
    progress: Progress,
    unread: Collection[int],
) -> Group:
    name, ranks = key
    description = next((one.description for one in of_rank.values() if one.description), "")
    words = words_of(name, description)
    # Gloo and logs do not list members; the default group is everybody.
    of_all = description == DEFAULT_GROUP or (name == UNNAMED_GROUP and len(progress) == len(of_rank))
    members = ranks or (tuple(range(job.world_size)) if of_all else ())
    known = dict(_sure(of_rank))
    lacking = [rank for rank in members if rank in progress and rank not in known and rank not in unread]
    # A group is listed from its first call on: who does not list one that nobody is through with has called nothing.
    if lacking and all((one.completed if one.tells_completion else one.enqueued - 1) <= 0 for one in known.values()):
        nothing = GroupProgress(name, description, ranks, NOT_NUMBERED, NOT_NUMBERED)
        known |= dict.fromkeys(lacking, nothing)
    untold = frozenset(rank for rank in members if rank not in known and (rank in unread or rank in progress))
    # The largest rank of a log may not be the job's.
    is_whole = bool(members) and (bool(ranks) or job.format != "job_log")
    return Group(name, words, members, dict(sorted(known.items())), untold, is_whole)


def _sure(of_rank: Mapping[int, GroupProgress]) -> Iterator[tuple[int, GroupProgress]]:
    """Return those that have a number of collectives: in a group of sends and receives some numbers include these."""
    mixed = any(one.has_transfers for one in of_rank.values())
    for rank, one in of_rank.items():
        if not (mixed and one.counts_transfers):
            yield rank, one


_BOTH: Final = ("input", "output")
_MUST_AGREE: Final[Mapping[str, tuple[str, ...]]] = {
    "all_reduce": _BOTH,
    "allreduce_coalesced": _BOTH,
    "broadcast": _BOTH,
    "_broadcast_oop": _BOTH,
    "reduce": ("input",),
    "_reduce_oop": ("input",),
    "all_gather": _BOTH,
    "all_gather_single": _BOTH,
    "_all_gather_base": _BOTH,
    "all_gather_into_tensor_coalesced": _BOTH,
    "reduce_scatter": _BOTH,
    "reduce_scatter_single": _BOTH,
    "_reduce_scatter_base": _BOTH,
    "reduce_scatter_tensor_coalesced": _BOTH,
    "gather": ("input",),
    "scatter": ("output",),
}
"""operation → the sides whose elements have to be as many, and of one type, on all members. Of others, as all-to-all
and what has `_v` in its name, every member may have its own. Shapes are not compared: NCCL counts elements."""

_UNKNOWN: Final = (UNKNOWN, "")
Said = Callable[[CollectiveCall], str]


@dataclass(frozen=True)
class Mismatch:
    """What differs under one number of a process group."""

    group: Group
    sequence: int
    said: Mapping[int, str]
    """rank → what it called, so far as it differs: `all_reduce`, `all_reduce of [[1025]]`, `all_reduce of Half`."""
    odd: tuple[int, ...]
    """Who differs from what more than half of all members called; empty where nobody knows which is right."""

    @property
    def usual(self) -> str:
        """What most of the others called."""
        counts = Counter(said for rank, said in self.said.items() if rank not in self.odd)
        return max(counts, key=lambda said: counts[said])


def mismatch_in(group: Group) -> Mismatch | None:
    """Return the first number that is not over on all members, or is the last one, and is not the same on them; else
    None.
    """
    first = min((_begin(group, rank) for rank in group.of_rank), default=0)
    numbers = {call.sequence for one in group.of_rank.values() for call in one.calls if call.sequence >= first}
    return next((found for number in sorted(numbers) if (found := _at(group, number)) is not None), None)


def _begin(group: Group, rank: int) -> int:
    one = group.of_rank[rank]
    return min(one.completed + 1 if one.tells_completion else one.enqueued, one.enqueued)


def _at(group: Group, sequence: int) -> Mismatch | None:
    calls = group.calls(sequence)
    voters = len(group.members or group.of_rank) - len(group.missing(sequence))
    for key, words in _comparisons(next(iter(calls.values()), None)):
        told = {rank: key(call) for rank, call in calls.items() if key(call) not in _UNKNOWN}
        if len(set(told.values())) < 2:
            continue
        (usual, count), *_ = Counter(told.values()).most_common(1)
        odd = tuple(rank for rank in told if told[rank] != usual) if 2 * count > voters else ()
        return Mismatch(group, sequence, {rank: words(calls[rank]) for rank in told}, odd)
    return None


def _comparisons(call: CollectiveCall | None) -> Iterator[tuple[Callable[[CollectiveCall], str | int], Said]]:
    """Yield what has to be the same, and its words: the operation, then of one operation the elements and their
    type.
    """
    if call is None:
        return
    yield lambda one: one.operation, lambda one: one.operation
    sides = _MUST_AGREE.get(call.operation, ())
    for side in sides:
        yield attrgetter(f"{side}_elements"), lambda one: f"{one.operation} of {one.sizes or one.input_elements}"
    for side in sides:
        yield attrgetter(f"{side}_dtypes"), lambda one: f"{one.operation} of {_dtypes(one)}"


def _dtypes(call: CollectiveCall) -> str:
    same = call.output_dtypes in ("", call.input_dtypes)
    return call.input_dtypes if same else f"{call.input_dtypes} → {call.output_dtypes}"
