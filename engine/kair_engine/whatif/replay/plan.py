"""Lays a dependency graph out for its replay: what ends together lies together."""

import numpy as np

from kair_engine.arrays import NONE, Ints, offsets, order_by, ranges
from kair_engine.frozen import dataclass
from kair_engine.whatif.replay.levels import Graph, levels_of

_NOTHING = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Starts:
    """Nodes that can start together, those with most predecessors first."""

    count: int
    before: tuple[Ints, ...]
    """The places of the k-th predecessors of the first len(before[k]) of them."""


@dataclass(frozen=True)
class Level:
    """Nodes whose predecessors all ended at earlier levels, and the communications that are complete with them."""

    begin: int
    """The place of the first node without a communication; the others follow, then the members that end."""
    alone: Starts
    joining: Starts
    joins: Ints
    """The places of the nodes that join their communications."""
    members: tuple[Ints, ...]
    """(communications × members) of each size, that are complete now: the how many-th of all to join."""


@dataclass(frozen=True)
class Plan:
    """The order in which a graph is replayed."""

    order: Ints
    """Place → node, in the order of their ends."""
    place: Ints
    """Node → place."""
    levels: tuple[Level, ...]
    ended: int
    """Nodes that end; those at the places behind wait for one another in a circle, or for members that do."""
    stuck: Ints
    """Nodes that never start."""


def plan(graph: Graph) -> Plan:
    """Sorts the nodes by their levels, and lays them out."""
    levels, member = levels_of(graph), graph.group != NONE
    predecessors = np.bincount(graph.after, minlength=graph.nodes)
    most_first = int(predecessors.max(initial=0)) - predecessors
    size = graph.members
    order = order_by(levels.ends, size, np.where(member, graph.group, most_first))
    place = _places(order, graph.nodes)
    begins = np.searchsorted(levels.ends[order], np.arange(levels.count + 1))
    started = np.count_nonzero(levels.starts < levels.count)
    starting = order_by(levels.starts, member, most_first)[:started]
    # At every level the nodes of their own, and those that join their communications.
    kind = (2 * levels.starts + member)[starting]
    before = _before(graph, starting, kind, place, 2 * levels.count)
    joining, ended = starting[member[starting]], order[: begins[-1]]
    joins = _runs(place[joining], levels.starts[joining], np.zeros_like(joining), levels.count)
    met = ended[member[ended]]
    members = _runs(_places(joining, graph.nodes)[met], levels.ends[met], size[met], levels.count)
    counts = np.bincount(kind, minlength=2 * levels.count).reshape(-1, 2)
    return Plan(
        order,
        place,
        tuple(
            Level(
                begin=begin,
                alone=Starts(alone, tuple(before[2 * level].values())),
                joining=Starts(join, tuple(before[2 * level + 1].values())),
                joins=joins[level].get(0, _NOTHING),
                members=tuple(joined.reshape(-1, of) for of, joined in members[level].items()),
            )
            for level, (begin, (alone, join)) in enumerate(zip(begins.tolist(), counts.tolist(), strict=False))
        ),
        len(ended),
        np.flatnonzero(levels.starts == levels.count),
    )


def _before(graph: Graph, starting: Ints, kind: Ints, place: Ints, kinds: int) -> list[dict[int, Ints]]:
    """Per kind of start the places of the first predecessors of its nodes, the second ones …."""
    first = offsets(graph.after, graph.nodes)
    edges = order_by(graph.after)[ranges(first[starting], first[starting + 1])]
    count = np.diff(first)[starting]
    turn, of = ranges(np.zeros_like(count), count), np.repeat(kind, count)
    by_turn = order_by(of, turn)
    return _runs(place[graph.before[edges[by_turn]]], of[by_turn], turn[by_turn], kinds)


def _runs(values: Ints, of: Ints, part: Ints, count: int) -> list[dict[int, Ints]]:
    """For each of 0 … count-1 its values, by their parts; they are sorted by both."""
    result: list[dict[int, Ints]] = [{} for _ in range(count)]
    begins = np.flatnonzero((np.diff(of, prepend=NONE) != 0) | (np.diff(part, prepend=NONE) != 0))
    keys = zip(of[begins].tolist(), part[begins].tolist(), strict=True)
    bounds = [*begins.tolist(), len(of)]
    for (number, key), begin, end in zip(keys, bounds, bounds[1:], strict=False):
        result[number][key] = values[begin:end]
    return result


def _places(order: Ints, nodes: int) -> Ints:
    """Per node its place in the order; NONE of those that are not in it."""
    result = np.full(nodes, NONE)
    result[order] = np.arange(len(order))
    return result
