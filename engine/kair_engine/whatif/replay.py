"""Replays a dependency graph with other durations, many scenarios at once [W §3].

A node starts when all nodes it depends on have ended. A single node ends its duration later; the nodes of a
communication end once all of them have started, each after its own transfer time.

Lays a dependency graph out for its replay: what ends together lies together.

Sorts a dependency graph topologically: the nodes that can run at once, level by level.

Traces the critical path of a step: back from its last node, each time to what it waited for last.
"""

from collections.abc import Sequence

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints, narrow, offsets, order_by, ranges
from kair_engine.cancelling import checkpoint
from kair_engine.frozen import dataclass

_FEW = 1 << 15
"""Nodes. A level costs arrays as much as some 50 nodes cost lists, and small graphs have few in each."""
_NARROW = 50
"""Unless more nodes than these wait for nothing, as every rank's first one: so many go side by side."""


@dataclass(frozen=True)
class Graph:
    """Nodes 0 … n-1, edges between them, and the communications they take part in."""

    nodes: int
    before: Ints
    """Per edge the node that ends first."""
    after: Ints
    """Per edge the node that waits for it."""
    group: Ints
    """Per node the number of its communication; NONE for a single node."""

    @property
    def members(self) -> Ints:
        """Per node how many members its communication has; 0 for a single node."""
        member = self.group != NONE
        return np.asarray(np.bincount(self.group[member], minlength=1)[self.group] * member)


def side_by_side(graphs: Sequence[Graph]) -> Graph:
    """Join graphs: the nodes and communications of each are numbered on from those of the one before."""
    if len(graphs) == 1:
        return graphs[0]
    nodes = np.cumsum([0, *(one.nodes for one in graphs)]).tolist()
    return Graph(
        nodes[-1],
        np.concatenate([one.before + at for one, at in zip(graphs, nodes, strict=False)]),
        np.concatenate([one.after + at for one, at in zip(graphs, nodes, strict=False)]),
        groups_numbered_on(graphs),
    )


def groups_numbered_on(graphs: Sequence[Graph]) -> Ints:
    """Return per node of all graphs its communication, or NONE; each graph's follow those of the one before."""
    result, first = [], 0
    for one in graphs:
        result.append(np.where(one.group == NONE, NONE, one.group + first))
        first += int(one.group.max(initial=NONE)) + 1
    return np.concatenate(result)


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
    waiting = np.bincount(graph.after, minlength=graph.nodes)
    few = graph.nodes <= _FEW and np.count_nonzero(waiting == 0) <= _NARROW
    count = (_few_by_level if few else _many_by_level)(graph, waiting, starts, ends)
    for of in (starts, ends):
        of[of == NONE] = count
    return Levels(count, starts, ends)


def _few_by_level(graph: Graph, waits: Ints, starts: Ints, ends: Ints) -> int:
    """By lists, node by node."""
    following: list[list[int]] = [[] for _ in range(graph.nodes)]
    for before, after in zip(graph.before.tolist(), graph.after.tolist(), strict=True):
        following[before].append(after)
    group = graph.group.tolist()
    members: dict[int, list[int]] = {}
    for node in np.flatnonzero(graph.group != NONE).tolist():
        members.setdefault(group[node], []).append(node)
    waiting = waits.tolist()
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


def _many_by_level(graph: Graph, waiting: Ints, starts: Ints, ends: Ints) -> int:
    """By arrays, a level at once."""
    by_before = np.argsort(graph.before, kind="stable")
    following, first_following = graph.after[by_before], offsets(graph.before, graph.nodes)
    by_group = np.argsort(graph.group, kind="stable")[np.count_nonzero(graph.group == NONE) :]
    first_member = offsets(graph.group[by_group], int(graph.group.max(initial=NONE)) + 1)
    absent = np.diff(first_member)
    of_node, of_group = np.empty_like(waiting), np.empty_like(absent)
    ready: Ints = np.flatnonzero(waiting == 0)
    level = 0
    while len(ready):
        checkpoint()
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
    """Return the numbers, each once and in no order, which `unique` takes longer for. `room` has a place for each."""
    places = np.arange(len(numbers))
    room[numbers] = places
    return np.asarray(numbers[room[numbers] == places])


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
    earlier = graph.before[order_by(graph.after)[ranges(first[starting], first[starting + 1])]]
    count = np.diff(first)[starting]
    turn, of = narrow(ranges(np.zeros_like(count), count)), np.repeat(narrow(kind), count)
    by_turn = order_by(of, turn)
    return _runs(place[earlier[by_turn]], of[by_turn], turn[by_turn], kinds)


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


def replay(
    order: Plan, durations: Floats, *, delays: Floats | None = None, lanes: int = 1, across: Bools | None = None
) -> None:
    """Put when every node ends into the place of the durations (transfer times where nodes communicate).

    All arrays are (the plan's places × scenarios), in one unit. `delays` come between the last predecessor's end and a
    node's start, which is 0 without predecessors; nodes that wait for one another in a circle end at NaN.

    Of several `lanes` (the scenarios are those of the first, then of the second …) all run the graph, each with its
    own durations; the communications of the nodes `across` begin when the members of all lanes have come.
    """
    ends, joined = durations, 0
    came = np.empty((sum(level.joining.count for level in order.levels), durations.shape[1]))

    def ready(starts: Starts, places: Ints | slice) -> Floats:
        at = _last_end(starts, ends)
        if delays is not None:
            at += delays[places]
        return at

    for level in order.levels:
        checkpoint()
        until = level.begin + level.alone.count
        if level.alone.count:
            ends[level.begin : until] += ready(level.alone, slice(level.begin, until))
        if level.joining.count:
            came[joined : joined + level.joining.count] = ready(level.joining, level.joins)
            joined += level.joining.count
        for members in level.members:
            begins, until = until, until + members.size
            # Not reduceat, which takes ten times as long.
            arrived = came[members].max(axis=1)
            if across is not None:
                _meet(arrived.reshape(len(members), lanes, -1), across[begins : until : members.shape[1]])
            ends[begins:until].reshape(*members.shape, -1)[:] += arrived[:, None]
    ends[order.ended :] = np.nan


def _last_end(starts: Starts, ends: Floats) -> Floats:
    """(nodes × scenarios): when the last of each node's predecessors ended; 0 without any."""
    if not starts.before:
        return np.zeros((starts.count, ends.shape[1]))
    at = ends[starts.before[0]]
    for before in starts.before[1:]:
        part = at[: len(before)]
        np.maximum(part, ends[before], out=part)
    return at


def _meet(arrived: Floats, across: Bools) -> None:
    """Communications (× lanes × scenarios) that are across lanes begin when the last lane has come."""
    if across.any():
        arrived[across] = arrived[across].max(axis=1, keepdims=True)


@dataclass(frozen=True)
class Waits:
    """What each node waited for last, given when all of them end."""

    start: Floats
    """When each node begins: when the last one before it ended."""
    last_before: Ints
    """NONE for those that waited for nothing."""
    latest_member: Ints
    """Per communication the member that began last."""


def waits(graph: Graph, end: Floats) -> Waits:
    """`end` per node, in any unit; NaN for nodes that never start."""
    start = starts(graph, end)
    order = np.lexsort((end[graph.before], graph.after))
    last_before = np.full(graph.nodes, NONE)
    last_before[graph.after[order]] = graph.before[order]
    return Waits(start, last_before, _latest_members(graph, start))


@dataclass(frozen=True)
class Piece:
    """A node, and the part of its time that others had to wait for."""

    node: int
    begin: float
    end: float


def critical_path(graph: Graph, of: Waits, end: Floats, last: int) -> list[Piece]:
    """From the first node to the `last`, one after another without gaps.

    A communication's piece begins when its latest member does, and what that waited for comes before it.
    """
    path: list[Piece] = []
    seen: set[int] = set()
    node, until = last, float(end[last])
    while node != NONE and node not in seen:
        seen.add(node)
        latest = int(of.latest_member[graph.group[node]]) if graph.group[node] != NONE else node
        # Clocks that differ can make what was waited for end after its follower.
        begin = min(float(of.start[latest]), until)
        path.append(Piece(node, begin, until))
        node, until = int(of.last_before[latest]), begin
    return path[::-1]


def starts(graph: Graph, end: Floats) -> Floats:
    """When each node begins: when the last one before it ended."""
    result = np.full(graph.nodes, -np.inf)
    np.maximum.at(result, graph.after, end[graph.before])
    return np.where(np.isinf(result), 0.0, result)


def _latest_members(graph: Graph, start: Floats) -> Ints:
    members = np.flatnonzero(graph.group != NONE)
    order = members[np.lexsort((start[members], graph.group[members]))]
    result = np.full(int(graph.group.max(initial=NONE)) + 1, NONE)
    result[graph.group[order]] = order
    return result
