"""Coverage: which ranks could not be compared, as they lack peers, common steps, or part of what peers recorded.

Nothing that is tested shows it: a rank of whom half is missing looks idle, one with steps of its own looks punctual.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints
from kair_engine.ranks import Rank, as_positions, rank_at, ranks_at
from kair_engine.trace.model import KairWarning

COUNTED = ("operations", "communication", "matched")
"""What is counted of each rank and step: operations on its device (without one, on its threads), communication, and
that of which the other members were found."""
FEWER: Final[Mapping[str, float]] = {"operations": 0.05, "communication": 0.03, "matched": 0.5}
"""Less than a role's ranks usually have by this share: ranks that run one program differ by less."""
NOT_COMPARED = frozenset({"no_common_step", "no_peer", "fewer_recorded"})
"""Codes of warnings about ranks that leave a verdict open."""


def coverage(ranks: Ints, role: Ints, counts: Floats) -> list[KairWarning]:
    """What keeps ranks from being compared, as warnings that name them.

    `counts` is (COUNTED × steps × ranks), NaN where a rank has no such step; `role` has a code per rank.
    """
    recorded: Bools = np.asarray(~np.isnan(counts[0]).all(axis=0))
    found = []
    if not recorded.all():
        found.append(KairWarning("no_common_step", figures=_of(~recorded), ranks=_named(ranks, ~recorded)))
    alone = _alone(role, recorded)
    if alone.any():
        found.append(KairWarning("no_peer", figures=_of(alone), ranks=_named(ranks, alone)))
    return found + list(_fewer(ranks, role, counts))


def fewer_than_peers(role: Ints, counts: Floats) -> tuple[Floats, Floats]:
    """Per rank (what it has in the median step, what its role has): the upper median of the role's ranks.

    `counts` is (steps × ranks). Steps that a rank lacks are none of either.
    """
    usual = np.full_like(counts, np.nan)
    for code in np.unique(role):
        members = np.flatnonzero(role == code)
        ordered = np.sort(counts[:, members], axis=1)  # NaN comes last
        known = np.count_nonzero(~np.isnan(ordered), axis=1)
        upper = ordered[np.arange(len(ordered)), np.minimum(known // 2, np.maximum(known - 1, 0))]
        usual[:, members] = upper[:, None]
    usual[np.isnan(counts)] = np.nan
    return _median(counts), _median(usual)


def _fewer(ranks: Ints, role: Ints, counts: Floats) -> Iterator[KairWarning]:
    told = np.zeros(len(ranks), dtype=bool)
    for about in ("communication", "operations", "matched"):
        own, usual = fewer_than_peers(role, counts[COUNTED.index(about)])
        fewer = (own < (1 - FEWER[about]) * usual) & ~told
        for place in as_positions(np.flatnonzero(fewer)):
            figures = {"recorded": float(own[place]), "peers": float(usual[place])}
            yield KairWarning("fewer_recorded", figures=figures, ranks=(rank_at(ranks, place),), about=about)
        told |= fewer


def _alone(role: Ints, recorded: Bools) -> Bools:
    """Ranks of which no other runs the program, where others have such peers."""
    sizes = np.bincount(role[recorded], minlength=int(role.max(initial=0)) + 1)
    return np.asarray(recorded & (sizes[role] == 1) & (sizes.max(initial=0) > 1))


def _of(some: Bools) -> dict[str, float]:
    return {"ranks": float(np.count_nonzero(some)), "of_ranks": float(len(some))}


def _named(ranks: Ints, some: Bools) -> tuple[Rank, ...]:
    return ranks_at(ranks, as_positions(np.flatnonzero(some)))


def _median(counts: Floats) -> Floats:
    """Over steps, 0 for a rank without any."""
    known = ~np.isnan(counts).all(axis=0)
    result = np.zeros(counts.shape[1])
    result[known] = np.nanmedian(counts[:, known], axis=0)
    return result
