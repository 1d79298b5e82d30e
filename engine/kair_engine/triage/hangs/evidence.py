"""What speaks for a finding on a hang: who has not called what, what was called instead, and where in the program."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import TypeVar

from kair_engine.ranks import in_order
from kair_engine.results import evidence_kinds as kinds
from kair_engine.results.evidence_kinds import Evidence
from kair_engine.trace.calls import NOT_NUMBERED, UNKNOWN, CollectiveCall, GroupProgress
from kair_engine.triage.hangs.groups import Group, Mismatch, Progress
from kair_engine.triage.hangs.waits import Place, TransferWait

_Said = TypeVar("_Said")
Lacking = type[kinds.NotArrived | kinds.HeldUp | kinds.NoDump | kinds.NoReport]
_MOST_LOCATIONS = 4
"""Different calls, of as many ranks as make them: more are no list that one reads."""


def of_place(kind: Lacking, place: Place, ranks: Collection[int]) -> Evidence:
    """Return who has not called what others are held in, as it waits itself, or left nothing."""
    return kind(
        sequence=float(place.sequence),
        waiting=float(len(place.waiting)),
        members=members_of(place.group),
        ranks=in_order(ranks),
        about=about(place.group, place.sequence),
    )


def members_of(group: Group) -> float:
    """Return how many members a group has, as far as that is known."""
    return float(len(group.members or group.of_rank))


def other_calls(found: Mismatch) -> Iterator[Evidence]:
    """Yield what each of those called who differ from most members."""
    others = float(len(found.said) - len(found.odd))
    for said, ranks in _by({rank: found.said[rank] for rank in found.odd}):
        text = f"{said} where the others called {found.usual}, in process group {found.group.words}"
        yield kinds.OtherCall(float(found.sequence), others, ranks=in_order(ranks), about=text)


def differing_calls(found: Mismatch) -> Iterator[Evidence]:
    """Yield what everyone called, where no call is that of most members."""
    for said, ranks in _by(found.said):
        text = f"{said} of process group {found.group.words}"
        yield kinds.Called(float(found.sequence), ranks=in_order(ranks), about=text)


def waits_for(waits: Collection[TransferWait]) -> Iterator[Evidence]:
    """Who is held in a send or receive, and where that was called; the first ones."""
    for one in [*waits][: 2 * _MOST_LOCATIONS]:
        number, ranks = _number(one.call.sequence), in_order((one.rank,))
        text = f"{one.call.operation} of process group {one.words}"
        yield kinds.WaitsFor(sequence=number, peer=float(one.call.peer), ranks=ranks, about=text)
        if one.call.location:
            yield kinds.CalledAt(number, ranks=ranks, about=one.call.location)


def last_completed(group: Group) -> Iterator[Evidence]:
    """Yield the last collective that all are through with of whom it is known."""
    if group.through is not None:
        number, operation = group.through
        yield kinds.LastCompleted(float(number), about=operation)


def called_at(group: Group, sequence: int, ranks: Collection[int]) -> Iterator[Evidence]:
    """Where in the program ranks made a call, where that is recorded."""
    told = {rank: call.location for rank, call in group.calls(sequence, ranks).items() if call.location}
    for location, some in _by(told)[:_MOST_LOCATIONS]:
        yield kinds.CalledAt(float(sequence), ranks=in_order(some), about=location)


def in_no_call(ranks: Collection[int], progress: Progress) -> Iterator[Evidence]:
    """Of those that are waited for: that they wait for nothing, and what they called last."""
    last = {rank: call for rank in ranks if (call := _last_call(progress.get(rank, ()))) is not None}
    for (what, sequence), some in _by({rank: _told(call) for rank, call in last.items()})[:_MOST_LOCATIONS]:
        yield kinds.InNoCall(_number(sequence), ranks=in_order(some), about=what)


def _number(sequence: int) -> float | None:
    return None if sequence == NOT_NUMBERED else float(sequence)


def _told(call: CollectiveCall) -> tuple[str, int]:
    """Return what was called and where, and its number."""
    return f"{_operation(call)} at {call.location}" if call.location else _operation(call), call.sequence


def _operation(call: CollectiveCall) -> str:
    direction = {"send": "to", "recv": "from"}.get(call.operation)
    return f"{call.operation} {direction} rank {call.peer}" if direction and call.peer != UNKNOWN else call.operation


def about(group: Group, sequence: int) -> str:
    """Return the operation that is waited in, and its process group."""
    return f"{group.operation(sequence)} of process group {group.words}"


def _last_call(groups: Collection[GroupProgress]) -> CollectiveCall | None:
    calls = [one.latest for one in groups if one.latest is not None]
    return max(calls, key=lambda call: call.created_ns, default=None)


def _by(told: Mapping[int, _Said]) -> list[tuple[_Said, tuple[int, ...]]]:
    """Return (what is said, the ranks of whom), of most ranks first."""
    found: dict[_Said, list[int]] = defaultdict(list)
    for rank, said in sorted(told.items()):
        found[said].append(rank)
    return sorted(((said, tuple(ranks)) for said, ranks in found.items()), key=lambda pair: -len(pair[1]))
