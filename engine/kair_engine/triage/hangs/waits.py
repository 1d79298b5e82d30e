"""Who waits for whom: from the calls that ranks are held in to those that have not made theirs, and on to the roots.

A rank is held in a collective that others have not called, or in a send or receive whose other end has none that
answers it. Whoever is waited for and is held in nothing is a root; where every chain comes back to itself, the ranks
of such a circle wait for each other.

If it cannot be said who is missing, each reason is a warning, the strongest first.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from kair_engine.frozen import dataclass
from kair_engine.trace.calls import NOT_NUMBERED, UNKNOWN, UNNAMED_GROUP, CollectiveCall
from kair_engine.trace.model import Job, KairWarning, listed, short_warning
from kair_engine.triage.hangs.groups import Group, Progress, words_of
from kair_engine.triage.hangs.recordings import Sound

if TYPE_CHECKING:
    import networkx as nx

_ANSWER: Final = {"send": "recv", "recv": "send"}


@dataclass(frozen=True)
class Place:
    """A call of a process group that ranks are held in."""

    group: Group
    sequence: int
    waiting: tuple[int, ...]
    """Who is held in it."""

    @cached_property
    def missing(self) -> tuple[int, ...]:
        """Who has not called it, of those that are known."""
        return self.group.missing(self.sequence)


@dataclass(frozen=True)
class TransferWait:
    """A rank that is held in a send or receive."""

    rank: int
    words: str
    """Its process group."""
    call: CollectiveCall
    answered: bool
    """Whether the other end is at that moment in the call that answers it."""


@dataclass(frozen=True)
class Waits:
    """All that ranks are held in."""

    ranks: tuple[int, ...]
    """The ranks whose recording shows how far they came."""
    unknown: frozenset[int]
    """All other ranks of the job."""
    places: tuple[Place, ...]
    """Those that hold up most ranks first."""
    transfers: tuple[TransferWait, ...]
    unread: frozenset[int]
    """The ranks whose recording does not show how far they came."""

    @cached_property
    def held(self) -> frozenset[int]:
        """Who waits in anything."""
        return frozenset(rank for place in self.places for rank in place.waiting) | {one.rank for one in self.transfers}

    @cached_property
    def waited_for(self) -> frozenset[int]:
        """Who has not made a call that others are held in."""
        missing = {rank for place in self.places for rank in place.missing}
        return frozenset(missing | {one.call.peer for one in self.transfers if not one.answered} - {UNKNOWN})

    @cached_property
    def roots(self) -> frozenset[int]:
        """Who is waited for, and is known to wait for nothing."""
        return (self.waited_for - self.held) & frozenset(self.ranks)

    @cached_property
    def lacking(self) -> frozenset[int]:
        """Who may hold up others: of whom it is not known whether they made a call that nobody else lacks."""
        places = {rank for place in self.places if not place.missing for rank in place.group.lacking}
        return frozenset(places | {one.call.peer for one in self.transfers} - {UNKNOWN, *self.ranks})

    @property
    def only_suspect(self) -> int | None:
        """The one rank that left no recording, where all others did, and all of them are held.

        Then it is what they are held by. Were there others, known to be held in nothing or not known, it might wait for
        one of them itself.
        """
        is_sure = len(self.unknown) == 1 and self.unknown <= self.lacking - self.unread and self.held >= {*self.ranks}
        return next(iter(self.unknown)) if is_sure else None

    def leads_to(self, ranks: Collection[int], roots: Collection[int]) -> bool:
        """Return whether any of `ranks` waits for one of `roots`, directly or by others."""
        import networkx as nx  # 0.17 s that answers without a hang do without

        graph = self._graph
        return any(not nx.descendants(graph, rank).isdisjoint(roots) for rank in ranks if rank in graph)

    @cached_property
    def _graph(self) -> "nx.DiGraph[int]":
        """Whom each rank waits for, known or not."""
        import networkx as nx

        graph = nx.DiGraph((rank, peer) for one in self.places for rank in one.waiting for peer in one.missing)
        unanswered = ((one.rank, one.call.peer) for one in self.transfers if not one.answered)
        graph.add_edges_from(edge for edge in unanswered if UNKNOWN not in edge and edge[0] != edge[1])
        return graph

    @cached_property
    def circles(self) -> tuple[tuple[int, ...], ...]:
        """Ranks that wait for each other and for nobody else."""
        import networkx as nx

        ends = nx.attracting_components(self._graph)
        return tuple(sorted(tuple(sorted(circle)) for circle in ends if len(circle) > 1))


def waits_of(job: Job, sound: Sound) -> Waits:
    """Return what the ranks are held in, of all groups, in the strictest sense in which anybody is held in anything."""
    transfers = tuple(_transfer_waits(sound.progress))
    places: list[Place] = []
    for level in range(3):
        if not places and not (level and transfers):
            places = [place for group in sound.groups for place in _places(group, group.held(level))]
    places.sort(key=lambda place: (-len(place.waiting), place.group.words))
    unread = {rank for group in sound.groups for rank in group.unread} | (sound.unread - sound.progress.keys())
    for rank, groups in sound.progress.items():
        if all(one.latest is None for one in groups) and any(one.is_counted_alone for one in groups):
            unread.add(rank)
    # Of whoever is held anywhere it is known what it waits for, though not what else it called.
    unread -= {rank for place in places for rank in place.waiting} | {one.rank for one in transfers}
    known = tuple(rank for rank in sound.progress if rank not in unread)
    everybody = {*range(job.world_size), *(rank for group in sound.groups for rank in group.members)}
    return Waits(known, frozenset(everybody.difference(known)), tuple(places), transfers, frozenset(unread))


def _places(group: Group, held: Mapping[int, int]) -> Iterator[Place]:
    for number in sorted(set(held.values())):
        yield Place(group, number, tuple(rank for rank, one in held.items() if one == number))


def _transfer_waits(progress: Progress) -> Iterator[TransferWait]:
    """Yield the first open sends and receives of each rank in each group: what stands behind them in the queue waits
    too.
    """
    heads = {
        (rank, group.name, group.ranks): (words_of(group.name, group.description), _first_batch(group.transfers))
        for rank, groups in progress.items()
        for group in groups
        if group.transfers
    }
    for (rank, name, ranks), (words, calls) in heads.items():
        for call in calls:
            _, there = heads.get((call.peer, name, ranks), ("", ()))
            answered = any(one.peer == rank and one.operation == _ANSWER.get(call.operation) for one in there)
            yield TransferWait(rank, words, call, answered)


def _first_batch(calls: Sequence[CollectiveCall]) -> tuple[CollectiveCall, ...]:
    """Return the first call, with those of its batch."""
    number = calls[0].sequence
    return tuple(takewhile(lambda call: call.sequence == number, calls)) if number != NOT_NUMBERED else (calls[0],)


def open_questions(job: Job, sound: Sound, waits: Waits) -> Iterator[KairWarning]:
    """Yield what is not recorded, of a job of which nothing can be found.

    Nothing where all are through with all calls.
    """
    unread = waits.unread
    if untranslated := next((one for one in job.warnings if one.code == "ranks_untold"), None):
        yield untranslated
        return
    lacking = waits.lacking | (waits.waited_for & unread)
    if lacking:
        yield short_warning("who_is_missing", _who_is_missing(waits, lacking), lacking)
    untold = {one.rank for one in waits.transfers if one.call.peer == UNKNOWN}
    if untold:
        text = "only sends and receives are under way: the dumps do not say whom they wait for"
        yield short_warning("transfers_open", text, untold)
    if lacking or untold:
        return
    if any(one.name == UNNAMED_GROUP for groups in sound.progress.values() for one in groups) and not waits.places:
        text = "calls of different numbers timed out, and the log does not say of which process groups they are"
        yield KairWarning("group_untold", text)
        return
    part = next((place for place in waits.places if not place.group.is_whole), None)
    if part is not None:
        text = f"all that are known wait in number {part.sequence} of process group {part.group.words}, "
        yield short_warning("members_untold", f"{text}and it is unknown whether it has more members", part.waiting)
    elif job.missing_ranks:
        text = "nobody who left a dump waits for anything: of ranks without one nothing is known"
        yield KairWarning("dumps_missing", text)
    elif unread:
        text = "nobody whose dump is whole waits for anything: what is lost of the others is not known"
        yield short_warning("dumps_missing", text, unread)
    elif job.format == "ras":
        text = "RAS lists no rank that has launched fewer operations, and does not say whether they are over"
        yield KairWarning("completion_untold", text)
    elif any(one.calls and not one.tells_completion for group in sound.groups for one in group.of_rank.values()):
        text = "all have made the same calls; their backend does not say whether these are over"
        yield KairWarning("completion_untold", text)


def _who_is_missing(waits: Waits, lacking: frozenset[int]) -> str:
    """Who waits where, and of whom it is not known whether they have called it."""
    ranks = listed(sorted(lacking))
    one = len(lacking) == 1
    where = next((place for place in waits.places if {*place.missing, *place.group.lacking} & lacking), None)
    if where is None:
        held = sorted({one.rank for one in waits.transfers})
        return f"rank {listed(held)} waits in sends and receives, and what rank {ranks} called is not recorded"
    call = f"{where.group.operation(where.sequence)} number {where.sequence} of process group {where.group.words}"
    who = f"of rank {ranks} there is no whole recording" if one else f"of ranks {ranks} there are no whole recordings"
    waiting = len(where.waiting)
    return f"{waiting} {'rank waits' if waiting == 1 else 'ranks wait'} in {call}; {who}, and nobody else is missing"
