"""Slow communicators: process groups whose collectives take longer than those of their siblings.

Within one ring every member sees the same duration, so a slow link names the group, not a rank.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kair_engine.arrays import NONE, Ints
from kair_engine.operations import COLLECTIVE
from kair_engine.stats import degrees_of_freedom, peer_spread, student_t_tail
from kair_engine.synchronisation import Synchronisation

FEWEST_SIBLINGS = 4
"""Groups that do the same collective, the scored one among them."""
SLOWER_BY = 0.15
_FLOOR = 0.01


@dataclass(frozen=True)
class Communicator:
    """A process group: its text in the trace, and its members' ranks."""

    group: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class OwnTime:
    """One group's collectives in one step: own time τ summed, its siblings' medians summed, the slowest operator."""

    own_ns: float
    expected_ns: float
    siblings: int
    operator: str


@dataclass(frozen=True)
class SlowCommunicator:
    """A group that is slower than its siblings beyond chance; times are means per step."""

    communicator: Communicator
    operator: str
    own_ns: float
    expected_ns: float
    siblings: int
    p_value: float
    """Family-wise over the groups."""


def own_times(sync: Synchronisation, role: Ints) -> dict[Communicator, OwnTime]:
    """What every group with siblings spent in collectives itself in one step.

    Siblings of a collective are the n-th of that operator in other groups of the same size and the same roles
    (`role`: a code per rank of the step); pipeline stages reduce gradients of different sizes.
    """
    collectives, ops = sync.collectives, sync.collectives.ops
    first = collectives.row[collectives.starts] if len(collectives) else np.zeros(0, dtype=np.int64)
    chosen = np.flatnonzero((ops.kind[first] == COLLECTIVE) & (ops.group[first] != NONE))
    members = _members(sync, first)
    calls: dict[tuple[object, ...], list[int]] = defaultdict(list)
    turn: dict[tuple[int, int], int] = defaultdict(int)
    for instance in chosen.tolist():
        name, group = int(ops.name[first[instance]]), int(ops.group[first[instance]])
        roles = tuple(sorted({int(role[place]) for place in members[group]}))
        calls[name, int(collectives.sizes[instance]), roles, turn[name, group]].append(instance)
        turn[name, group] += 1
    own: dict[int, dict[int, list[tuple[float, float, int]]]] = defaultdict(lambda: defaultdict(list))
    for instances in calls.values():
        if len(instances) >= FEWEST_SIBLINGS:
            taken = collectives.own_ns[instances]
            for instance, time in zip(instances, taken.tolist(), strict=True):
                row = first[instance]
                own[int(ops.group[row])][int(ops.name[row])].append((time, float(np.median(taken)), len(instances)))
    return {
        Communicator(ops.group_text[group], tuple(ops.ranks[list(members[group])].tolist())): _summed(
            by_name, ops.name_text
        )
        for group, by_name in own.items()
    }


def slow_communicators(
    steps: Sequence[Mapping[Communicator, OwnTime]], step_time_ns: float, false_alarm_rate: float, smallest: float
) -> list[SlowCommunicator]:
    """Groups whose own time is over 15 % above their siblings' in the mean, beyond chance, and worth the step."""
    of: dict[Communicator, list[OwnTime]] = defaultdict(list)
    for step in steps:
        for communicator, time in step.items():
            of[communicator].append(time)
    ratio = {one: _total(times, "own_ns") / max(_total(times, "expected_ns"), 1.0) for one, times in of.items()}
    found = []
    for one, times in of.items():
        others = np.array([ratio[other] for other in of if other != one and len(other.ranks) == len(one.ranks)])
        if len(others) < FEWEST_SIBLINGS - 1:
            continue
        t = (ratio[one] - float(np.median(others))) / max(peer_spread(others), _FLOOR)
        p = min(1.0, len(of) * student_t_tail(t, degrees_of_freedom(len(others) + 1)))
        own, expected = (_total(times, name) / len(steps) for name in ("own_ns", "expected_ns"))
        if p < false_alarm_rate and ratio[one] > 1 + SLOWER_BY and own - expected > smallest * step_time_ns:
            operator = max(times, key=lambda time: time.own_ns - time.expected_ns).operator
            found.append(SlowCommunicator(one, operator, own, expected, times[0].siblings, p))
    return sorted(found, key=lambda slow: slow.expected_ns - slow.own_ns)


def _members(sync: Synchronisation, first: Ints) -> dict[int, tuple[int, ...]]:
    """Group code → its members' positions among the step's ranks."""
    collectives, ops = sync.collectives, sync.collectives.ops
    if not len(collectives):
        return {}
    pairs = np.unique(np.stack((ops.group[first[collectives.instance]], ops.rank[collectives.row])), axis=1)
    result: dict[int, list[int]] = defaultdict(list)
    for group, place in pairs.T.tolist():
        result[group].append(place)
    return {group: tuple(places) for group, places in result.items()}


def _summed(by_name: Mapping[int, list[tuple[float, float, int]]], names: Mapping[int, str]) -> OwnTime:
    calls = [call for of_name in by_name.values() for call in of_name]
    worst = max(by_name, key=lambda name: sum(own - expected for own, expected, _ in by_name[name]))
    return OwnTime(
        own_ns=sum(own for own, _, _ in calls),
        expected_ns=sum(expected for _, expected, _ in calls),
        siblings=max(siblings for _, _, siblings in calls) - 1,
        operator=names[worst],
    )


def _total(times: Sequence[OwnTime], name: str) -> float:
    return float(sum(getattr(time, name) for time in times))
