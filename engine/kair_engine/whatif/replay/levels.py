"""Sorts a dependency graph topologically: the nodes that can run at once, level by level."""

import numpy as np

from kair_engine.arrays import NONE, Ints, offsets, ranges
from kair_engine.frozen import dataclass

_FEW = 1 << 15
"""Nodes. A level costs arrays as much as some 50 nodes cost lists, and small graphs have few in each."""


@dataclass(frozen=True)
class Graph:
    """Nodes 0 … n-1, edges between them, and the communications they take part in."""

    nodes: int
    before: Ints
    """Per edge the node that ends first."""
    after: Ints
    """Per edge the node that waits for it."""
    group: Ints
    """Per node the number of its communication; NONE for a node of its own."""

    @property
    def members(self) -> Ints:
        """Per node how many members its communication has; 0 for a node of its own."""
        member = self.group != NONE
        return np.asarray(np.bincount(self.group[member], minlength=1)[self.group] * member)


@dataclass(frozen=True)
class Levels:
    """The levels at which nodes start and end, each as soon as it can."""

    count: int
    starts: Ints
    """Per node its level; `count` for those that never start."""
    ends: Ints
    """The same of its end: nodes end at once, members of communications when the last of them has started."""


def levels_of(graph: Graph) -> Levels:
    """Kahn's algorithm, a level at a time."""
    starts, ends = np.full(graph.nodes, NONE), np.full(graph.nodes, NONE)
    count = _few_by_level(graph, starts, ends) if graph.nodes <= _FEW else _many_by_level(graph, starts, ends)
    for of in (starts, ends):
        of[of == NONE] = count
    return Levels(count, starts, ends)


def _few_by_level(graph: Graph, starts: Ints, ends: Ints) -> int:
    """By lists, node by node."""
    following: list[list[int]] = [[] for _ in range(graph.nodes)]
    for before, after in zip(graph.before.tolist(), graph.after.tolist(), strict=True):
        following[before].append(after)
    group = graph.group.tolist()
    members: dict[int, list[int]] = {}
    for node in np.flatnonzero(graph.group != NONE).tolist():
        members.setdefault(group[node], []).append(node)
    waiting = np.bincount(graph.after, minlength=graph.nodes).tolist()
    absent = {of: len(nodes) for of, nodes in members.items()}
    ready, level = [node for node, number in enumerate(waiting) if not number], 0
    while ready:
        starts[ready] = level
        ended = []
        for node in ready:
            of = group[node]
            if of == NONE:
                ended.append(node)
                continue
            absent[of] -= 1
            if not absent[of]:
                ended += members[of]
        ends[ended] = level
        ready = []
        for node in ended:
            for after in following[node]:
                waiting[after] -= 1
                if not waiting[after]:
                    ready.append(after)
        level += 1
    return level


def _many_by_level(graph: Graph, starts: Ints, ends: Ints) -> int:
    """By arrays, a level at once."""
    by_before = np.argsort(graph.before, kind="stable")
    following, first_following = graph.after[by_before], offsets(graph.before, graph.nodes)
    by_group = np.argsort(graph.group, kind="stable")[np.count_nonzero(graph.group == NONE) :]
    first_member = offsets(graph.group[by_group], int(graph.group.max(initial=NONE)) + 1)
    waiting, absent = np.bincount(graph.after, minlength=graph.nodes), np.diff(first_member)
    of_node, of_group = np.empty_like(waiting), np.empty_like(absent)
    ready, level = np.flatnonzero(waiting == 0), 0
    while len(ready):
        starts[ready] = level
        of = graph.group[ready]
        came = of[of != NONE]
        np.subtract.at(absent, came, 1)
        complete = _each_once(came[absent[came] == 0], of_group)
        met = by_group[ranges(first_member[complete], first_member[complete + 1])]
        ended = np.concatenate((ready[of == NONE], met))
        ends[ended] = level
        freed = following[ranges(first_following[ended], first_following[ended + 1])]
        np.subtract.at(waiting, freed, 1)
        ready = _each_once(freed[waiting[freed] == 0], of_node)
        level += 1
    return level


def _each_once(numbers: Ints, room: Ints) -> Ints:
    """The numbers, each once and in no order, which `unique` takes longer for. `room` has a place for each."""
    places = np.arange(len(numbers))
    room[numbers] = places
    return np.asarray(numbers[room[numbers] == places])
