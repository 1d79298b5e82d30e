"""Ranks by number and by position: two kinds of whole number that must not be mixed up.

Numbers that follow one another, drawn together.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, NewType

if TYPE_CHECKING:
    from kair_engine.arrays import Ints


Rank = NewType("Rank", int)
"""A rank's number in the job, as people and traces call it."""
Position = NewType("Position", int)
"""A rank's place in the arrays of a job: 0 for the lowest number that was recorded."""


def rank_at(ranks: "Ints", position: Position) -> Rank:
    """Return the number of the rank at a position; `ranks` has every rank's, ascending."""
    return Rank(int(ranks[position]))


def ranks_at(ranks: "Ints", positions: Iterable[Position]) -> tuple[Rank, ...]:
    """Return the numbers of the ranks at some positions."""
    return tuple(rank_at(ranks, position) for position in positions)


def as_positions(indices: "Iterable[int] | Ints") -> tuple[Position, ...]:
    """Return indices that an array operation found."""
    return tuple(Position(int(index)) for index in indices)


def in_order(ranks: Iterable[int]) -> tuple[Rank, ...]:
    """Return numbers of ranks in ascending order."""
    return tuple(map(Rank, sorted(ranks)))


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the numbers in order as (first, last) of each stretch without a gap."""
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return found
