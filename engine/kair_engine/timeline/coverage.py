"""Coverage: which ranks could not be compared, as they lack peers, common steps, or part of what peers recorded.

No test shows this: a rank whose recording lacks half looks idle, one whose steps nobody shares looks punctual.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints, zero_for_nan
from kair_engine.ranks import Rank, as_positions, rank_at, ranks_at
from kair_engine.results.warning_kinds import FewerRecorded, NoCommonStep, NoPeer
from kair_engine.stats import MAD_TO_SIGMA, known_median
from kair_engine.timeline.clocks import Synchronisation
from kair_engine.timeline.self_time import ByOperator, by_operator
from kair_engine.trace.model import KairWarning
from kair_engine.trace.operations import SCOPE, Operations

_LESS = ("computed_less", "idle_longer", "waited_longer")
COUNTED = ("operations", "communication", "matched", "of_most_operators", *_LESS)
"""What is kept of each rank and step: how many operations on its device (without one, on its threads), communication,
that of which the other members were found; operations again, those of most operators as a share of what is usual; and,
as shares of the step, for how much less long than usual the rank computed, and was idle and waited longer: on threads,
of which what is lost leaves holes; a device is idle for many reasons.
"""
FEWER: Final[Mapping[str, float]] = {"operations": 0.05, "communication": 0.03, "matched": 0.5}
"""Less than a role's ranks usually have by this share: ranks that run one program differ by less."""
UNEVEN_OPERATORS: Final = 0.25
"""The part of all operators that ranks may run more or less often than peers (experts, packed sequences, a search):
what is lost from a recording is missing from nearly all."""
DID_LESS: Final = 0.05
"""Of the step: who computes for so much less long without holes in its time, and waits for it, has less to do."""
NOT_COMPARED = frozenset({"no_common_step", "no_peer", "fewer_recorded"})
"""Codes of warnings about ranks that leave a verdict open."""


def calls(ops: Operations) -> ByOperator:
    """How often each operator was called, of those that show how much was recorded of a rank."""
    # How often hosts allocate and look something up differs between healthy ranks; what they launch does not.
    return by_operator(ops, np.flatnonzero(ops.on_stream if ops.has_device else ops.kind != SCOPE))


def recorded(called: ByOperator, sync: Synchronisation, role: Ints, *, computed_ns: Floats, idle_ns: Floats) -> Floats:
    """Return (COUNTED × ranks of the step): how many of each a step holds; `called` is what its `calls` are.

    `role` has a code per rank of the step. Each computed, and was idle for no other reason than its host, for so long.
    """
    ops = sync.collectives.ops
    others = (ops.rank[ops.communication], ops.rank[sync.collectives.row])
    of_others = (np.bincount(of, minlength=len(ops.ranks)) for of in others)
    of_most = _of_most_operators(called.values, role)
    less = np.zeros((len(_LESS), len(role)))
    if not ops.has_device:
        waited = _waited_ns(sync)
        told = np.stack([computed_ns, -idle_ns, -waited])
        less = (_upper_medians(told, role) - told) / max(ops.step_time_ns, 1.0)
    return np.stack([called.values.sum(axis=0), *of_others, of_most, *less])


def _waited_ns(sync: Synchronisation) -> Floats:
    """Per rank, in collectives, sends and receives; all of those whose other members were not found may be waiting."""
    ops, rows = sync.collectives.ops, sync.collectives.row
    waited = np.where(ops.communication, ops.duration_ns, 0.0)
    waited[rows] = sync.collectives.wait_ns
    return np.bincount(ops.rank, weights=waited, minlength=len(ops.ranks)).astype(float)


def _of_most_operators(calls: Floats, role: Ints) -> Floats:
    """Per rank, without the operators of which it lacks the largest part: calls over what is usual in its role."""
    usual = _upper_medians(calls, role)
    lacking = np.maximum(usual - calls, 0.0) / np.maximum(usual, 1.0)
    most = np.argsort(lacking, axis=0, kind="stable")[: len(calls) - int(UNEVEN_OPERATORS * len(calls))]
    had, expected = (np.take_along_axis(of, most, axis=0).sum(axis=0) for of in (calls, usual))
    return np.asarray(had / np.maximum(expected, 1.0))


def coverage(ranks: Ints, role: Ints, counts: Floats) -> list[KairWarning]:
    """Return what keeps ranks from being compared, as warnings that name them.

    `counts` is (COUNTED × steps × ranks), NaN where a rank has no such step; `role` has a code per rank.
    """
    recorded: Bools = np.asarray(~np.isnan(counts[0]).all(axis=0))
    found: list[KairWarning] = []
    if not recorded.all():
        found.append(NoCommonStep(ranks=_named(ranks, ~recorded)))
    alone = _alone(role, recorded)
    if alone.any():
        found.append(NoPeer(ranks=_named(ranks, alone)))
    return found + list(_fewer(ranks, role, counts))


def fewer_than_peers(role: Ints, counts: Floats) -> tuple[Floats, Floats]:
    """Per rank (what it has in the median step, what its role has): the upper median of the role's ranks.

    `counts` is (steps × ranks). Steps that a rank lacks are none of either.
    """
    usual = _upper_medians(counts, role)
    usual[np.isnan(counts)] = np.nan
    return _median(counts), _median(usual)


def _upper_medians(counts: Floats, role: Ints) -> Floats:
    """Per row and rank the upper median of its role's ranks, without those that are NaN."""
    usual = np.full_like(counts, np.nan)
    for code in np.unique(role):
        members = np.flatnonzero(role == code)
        ordered = np.sort(counts[:, members], axis=1)  # NaN comes last
        known = np.count_nonzero(~np.isnan(ordered), axis=1)
        upper = ordered[np.arange(len(ordered)), np.minimum(known // 2, np.maximum(known - 1, 0))]
        usual[:, members] = upper[:, None]
    return usual


BEYOND_VARIATION = 3.0
"""Deviations of a rank's own counts from step to step, which its lack must exceed."""


def _fewer(ranks: Ints, role: Ints, counts: Floats) -> Iterator[KairWarning]:
    told = np.zeros(len(ranks), dtype=bool)
    for about in ("communication", "operations", "matched"):
        own, usual = fewer_than_peers(role, counts[COUNTED.index(about)])
        fewer = (own < (1 - FEWER[about]) * usual) & ~told
        if about == "operations":
            fewer &= _median(counts[COUNTED.index("of_most_operators")]) < 1 - FEWER[about]
            fewer &= _did_less(counts) <= DID_LESS
            # Whose work differs from step to step has fewer than its peers in many, and lacks nothing.
            fewer &= usual - own > BEYOND_VARIATION * _varies(counts[COUNTED.index(about)])
        for place in as_positions(np.flatnonzero(fewer)):
            fewest, peers = float(own[place]), float(usual[place])
            yield FewerRecorded(recorded=fewest, peers=peers, ranks=(rank_at(ranks, place),), about=about)
        told |= fewer


def _varies(counts: Floats) -> Floats:
    """Return per rank the deviation of its counts in single steps from its median one, no less than most ranks'."""
    of_rank = MAD_TO_SIGMA * zero_for_nan(known_median(np.abs(counts - known_median(counts))))
    return np.maximum(of_rank, np.median(of_rank))


def _did_less(counts: Floats) -> Floats:
    """Per rank, of the step: what it computed less than is usual, beyond twice what it was idle longer.

    No more than twice what it waited longer. Each in the median step: single ones of busy hosts differ by more.
    """
    computed_less, idle_longer, waited_longer = (_median(counts[COUNTED.index(name)]) for name in _LESS)
    return np.asarray(np.minimum(computed_less - 2 * np.maximum(idle_longer, 0.0), 2 * waited_longer))


def _alone(role: Ints, recorded: Bools) -> Bools:
    """Ranks of which no other runs the program, where others have such peers."""
    sizes = np.bincount(role[recorded], minlength=int(role.max(initial=0)) + 1)
    return np.asarray(recorded & (sizes[role] == 1) & (sizes.max(initial=0) > 1))


def _named(ranks: Ints, some: Bools) -> tuple[Rank, ...]:
    return ranks_at(ranks, as_positions(np.flatnonzero(some)))


def _median(counts: Floats) -> Floats:
    """Over steps, 0 for a rank without any."""
    return zero_for_nan(known_median(counts))
