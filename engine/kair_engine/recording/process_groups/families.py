"""Process groups that belong together: one dimension of a mesh, by which every rank is in one of its groups."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np

from kair_engine.arrays import Ints
from kair_engine.trace.model import ProcessGroup

# Of the pairs of a large group as many as tell its times from another's.
_MOST_PAIRS: Final = 2000


@dataclass(frozen=True)
class Family:
    """Per rank its group of one dimension; a rank can lack one."""

    of_rank: dict[int, ProcessGroup]

    def pairs(self, ranks: Sequence[int]) -> set[tuple[int, int]]:
        """Positions among `ranks` that share a group, the lower first."""
        place = {rank: at for at, rank in enumerate(ranks)}
        found: set[tuple[int, int]] = set()
        for group in {group.ranks: group for group in self.of_rank.values()}.values():
            members = sorted(place[rank] for rank in group.ranks if rank in place and self.of_rank.get(rank) == group)
            found.update(combinations(members, 2))
        return found

    def parts(self, ranks: Sequence[int]) -> Ints:
        """Per rank a number, equal for those that share a group; a rank without one is alone."""
        numbers: dict[object, int] = {}
        return np.array(
            [
                numbers.setdefault(self.of_rank[rank].ranks if rank in self.of_rank else rank, len(numbers))
                for rank in ranks
            ]
        )

    def divides(self, ranks: Collection[int], recorded: Collection[int]) -> bool:
        """Whether each of `ranks` has a group of the family, all of whose recorded members are among them."""
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
    """The families that the ranks' lists make up; of several with the same ranks in their groups the first.

    The groups of a dimension carry one description and have one size; where a rank is in several such, the n-th
    on its list stands for the n-th on the others'.
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
    """(2 × pairs), evenly chosen where there are very many."""
    ordered = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2).T
    if ordered.shape[1] <= _MOST_PAIRS:
        return ordered
    return ordered[:, np.linspace(0, ordered.shape[1] - 1, _MOST_PAIRS).astype(np.int64)]
