"""Roles: ranks that run the same program, so that their times may be compared.

As in analyses, how ranks communicate tells them apart, and never how long they compute. Who sends to each other is a
pipeline, and the k-th ranks of all pipelines are one stage; what else tells is how often which groups are used.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from kair_capture.coordinator.step_table import MOST_RANKS, Ints
from kair_capture.wire.messages import Communication

SAME_PROGRAM: Final = 0.95
"""Share of calls that two ranks have in common when they count as running the same program."""
_Groups = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class _Place:
    """Of a rank in its pipeline."""

    stage: int
    stages: int


class Roles:
    """What the ranks' agents told. Ranks of which nothing was told have a role of their own together."""

    def __init__(self, told: Iterable[Communication] = ()) -> None:
        self._told = {one.rank: one for one in told}
        self._names: dict[int, str] | None = None

    @property
    def told(self) -> tuple[Communication, ...]:
        """Everything, for `__init__` after a restart."""
        return tuple(self._told.values())

    def tell(self, one: Communication) -> bool:
        """How a rank communicates; whether that was not known. A job of another size begins anew."""
        if one.rank >= MOST_RANKS or self._told.get(one.rank) == one:
            return False
        self._told = {rank: other for rank, other in self._told.items() if other.world_size == one.world_size}
        self._told[one.rank] = one
        self._names = None
        return True

    def name(self, rank: int) -> str:
        """`all` where all ranks are alike."""
        if self._names is None:
            self._names = role_names(self._told)
        return self._names.get(rank, "all")

    def codes(self, ranks: Ints) -> Ints:
        """For each rank a number, equal for those of one role."""
        return np.unique([self.name(rank) for rank in ranks.tolist()], return_inverse=True)[1].reshape(-1)


def role_names(told: Mapping[int, Communication]) -> dict[int, str]:
    """rank → the name of its role, of what all ranks told."""
    places = _places(told)
    programs = _programs({rank: one.groups for rank, one in told.items()})
    several: Counter[_Place | None] = Counter()
    for place, _ in {(places.get(rank), programs[rank]) for rank in told}:
        several[place] += 1
    names = {}
    for rank in told:
        place = places.get(rank)
        words = [] if place is None else [f"stage {place.stage} of {place.stages}"]
        if several[place] > 1:
            words.append(f"program {programs[rank]}")
        names[rank] = ", ".join(words) or "all"
    return names


def _programs(groups_of: Mapping[int, _Groups]) -> dict[int, int]:
    """rank → the number of its program: the first one that uses groups of the same sizes as often."""
    leaders: list[Counter[int]] = []
    known: dict[_Groups, int] = {}
    for groups in sorted(groups_of.values(), key=len, reverse=True):
        if groups in known:
            continue
        calls: Counter[int] = Counter()
        for size, often in groups:
            calls[size] += often
        match = next((at for at, other in enumerate(leaders) if _overlap(calls, other) >= SAME_PROGRAM), None)
        if match is None:
            match = len(leaders)
            leaders.append(calls)
        known[groups] = match
    return {rank: known[groups] for rank, groups in groups_of.items()}


def _overlap(one: Counter[int], other: Counter[int]) -> float:
    larger = (one | other).total()
    return (one & other).total() / larger if larger else 1.0


def _places(told: Mapping[int, Communication]) -> dict[int, _Place]:
    """rank → its place among those that send to each other, in the order of their numbers.

    Those that pass things round in one direction, or each to all, do alike: they have no places.
    """
    places: dict[int, _Place] = {}
    for members in _connected(told):
        if len(members) > 1 and not _do_alike(members, told):
            places |= {rank: _Place(at, len(members)) for at, rank in enumerate(members)}
    return places


def _connected(told: Mapping[int, Communication]) -> list[list[int]]:
    """Sets of ranks that are joined by sends, each in order."""
    leader: dict[int, int] = {}

    def found(rank: int) -> int:
        while (above := leader.setdefault(rank, rank)) != rank:
            leader[rank] = leader[above]
            rank = above
        return rank

    for rank, one in told.items():
        for other in (*one.sends, *one.receives):
            leader[found(rank)] = found(other)
    sets: dict[int, list[int]] = {}
    for rank in sorted(leader):
        sets.setdefault(found(rank), []).append(rank)
    return list(sets.values())


def _do_alike(members: list[int], told: Mapping[int, Communication]) -> bool:
    """Whether every member sends equally far, and receives from equally far, round the circle of them.

    A pipeline whose last stage sends to its first does so too, but both ways: who sends to whom it receives from is a
    stage, unless that is everybody.
    """
    place = {rank: at for at, rank in enumerate(members)}
    if not all(rank in told for rank in members):
        return False

    def steps(rank: int, others: Iterable[int]) -> frozenset[int]:
        return frozenset((place[other] - place[rank]) % len(members) for other in others if other in place)

    sends = {steps(rank, told[rank].sends) for rank in members}
    receives = {steps(rank, told[rank].receives) for rank in members}
    if len(sends) > 1 or len(receives) > 1:
        return False
    to_all = len(members) > _FEW and len(next(iter(sends))) == len(members) - 1
    return to_all or sends != receives


_FEW: Final = 3
"""In a circle of three, to both neighbours is to everybody."""
