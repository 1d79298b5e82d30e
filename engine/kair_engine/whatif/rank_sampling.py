"""Chooses the ranks whose replay stands for all, of steps that are too large to be replayed whole.

Ranks that meet most often, as those of one model replica do, are taken together or not at all. Of groups that span
these, as the data-parallel ones do, some members wait for one another in place of all.
"""

from collections.abc import Collection, Sequence
from typing import Final

import numpy as np

from kair_engine.arrays import NONE, Floats, Ints
from kair_engine.timeline.synchronisation import Synchronisation, synchronise
from kair_engine.trace.model import Trace
from kair_engine.trace.steps.large_steps import LargeStep, large_steps, most_operations

OPERATIONS: Final = 1_000_000
"""Of the ranks that are replayed, in the largest step."""
_ACCUSED, _AWAITED = 1 / 3, 1 / 3
"""Of the replayed ranks these parts are those that are accused, with whom they meet, and others that come late. The
rest is spread."""
_FEWEST_UNITS = 3
_FEWEST_MEMBERS = 3
"""This many members of every group that spans units must be replayed in the mean: one alone waits for nobody."""


def standing_for_all(trace: Trace, named: Collection[int] = ()) -> Trace:
    """The trace as of the ranks that are replayed for all where steps are too large, those of `named` first.

    As it is where they are not, or where ranks meet so much that no part of them can stand for all.
    """
    large = large_steps(trace)
    if not large:
        return trace
    sync = synchronise(LargeStep.met(trace, large[0]).operations())
    ranks, found = np.array(trace.job.ranks, dtype=np.int64), sync.collectives
    unit = units(sync, ranks, share_replayed(trace))
    if unit is None:
        return trace
    late = np.searchsorted(ranks, found.ops.ranks[found.ops.rank[found.row[found.last]]])
    awaited = np.bincount(late, weights=found.total_wait_ns, minlength=len(ranks)).astype(float)
    return as_replayed(trace, unit, np.flatnonzero(np.isin(ranks, list(named))).tolist(), awaited)


def units(sync: Synchronisation, ranks: Ints, share: float) -> Ints | None:
    """Per rank of the job (`ranks`) a number, equal for those that are replayed together; NONE for who met nobody.

    `share` of the ranks can be replayed. None where ranks meet so much that no such part can stand for all.
    """
    collectives, ops = sync.collectives, sync.collectives.ops
    if not len(collectives):
        return None
    # One instance shows who meets in all of the same ranks.
    _, instance, often = np.unique(collectives.community, return_index=True, return_counts=True)
    groups = [collectives.members(one) for one in instance.tolist()]
    label, most = np.arange(len(ops.ranks)), max(share * len(ops.ranks) / _FEWEST_UNITS, 1.0)
    # Those of one model replica meet more often than its copies do.
    for times in np.unique(often)[::-1].tolist():
        wider = _connected(label, [group for group, meets in zip(groups, often, strict=True) if meets >= times])
        if np.bincount(wider).max() > most:
            break
        label = wider
    spanning = [len(group) for group in groups if len(np.unique(label[group])) > 1]
    if spanning and share * min(spanning) < _FEWEST_MEMBERS:
        return None
    of_job = np.full(len(ranks), NONE, dtype=np.int64)
    of_job[np.searchsorted(ranks, ops.ranks)] = label
    return of_job


def _connected(label: Ints, groups: Sequence[Ints]) -> Ints:
    """The labels, made equal within every group."""
    label, changed = label.copy(), True
    while changed:
        before = label.copy()
        for group in groups:
            label[group] = label[group].min()
        changed = bool((label != before).any())
    return label


def share_replayed(trace: Trace) -> float:
    """Which part of the ranks has as many operations as are replayed."""
    return min(OPERATIONS / max(sum(most_operations(trace).values()), 1), 1.0)


def as_replayed(trace: Trace, unit: Ints, accused: Sequence[int], awaited_ns: Floats) -> Trace:
    """The trace as of the ranks that are replayed: of the places `accused` first; `awaited_ns` is per rank.

    Those that are accused stay few beside the others, however many they are: their peers' ideal is what they miss.
    """
    ranks, most = np.array(trace.job.ranks, dtype=np.int64), most_operations(trace)
    operations = np.array([most.get(rank, 0) for rank in ranks.tolist()])
    others = ~np.isin(unit, unit[list(accused)])
    late = [place for place in np.argsort(-awaited_ns, kind="stable").tolist() if others[place]]
    spread = [place for place in _spread(unit) if others[place]]
    chosen, held = np.zeros(len(ranks), dtype=bool), 0
    for places, share in ((accused, _ACCUSED), (late, _ACCUSED + _AWAITED), (spread, 1.0)):
        for number in dict.fromkeys(unit[list(places)].tolist()):
            members = (unit == number) & (number != NONE) & ~chosen
            more = int(operations[members].sum())
            if chosen.any() and held + more > share * OPERATIONS:
                break
            chosen |= members
            held += more
    return trace.of_ranks(ranks[chosen].tolist())


def _spread(unit: Ints) -> list[int]:
    """A place of every unit; the first ones lie far apart."""
    _, first = np.unique(unit, return_index=True)
    return list(np.random.default_rng(0).permutation(first).tolist())
