"""Replays a dependency graph with other durations, many scenarios at once [W §3].

A node starts when all nodes it depends on have ended. A node of its own ends its duration later; the nodes of a
communication end once all of them have started, each after its own transfer time.
"""

from dataclasses import dataclass, replace

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints


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


@dataclass(frozen=True)
class _Starts:
    """Nodes that can start together, those with most predecessors first."""

    count: int
    before: tuple[Ints, ...]
    """The places of the k-th predecessors of the first len(before[k]) of them."""


@dataclass(frozen=True)
class _Wave:
    """Nodes whose predecessors all ended in earlier waves, and the communications that are complete with them."""

    begin: int
    """The place of the first node without a communication; the others follow, then the members that end."""
    alone: _Starts
    joining: _Starts
    joins: Ints
    """The places of the nodes that join their communications."""
    members: tuple[Ints, ...]
    """(communications × members) of each size, that are complete now: the how many-th of all to join."""


@dataclass(frozen=True)
class Plan:
    """The order in which a graph is replayed."""

    order: Ints
    """Place → node, in the order of their ends, so that what ends together lies together."""
    waves: tuple[_Wave, ...]
    ended: int
    """Nodes that end; those at the places behind wait for one another in a circle, or for members that do."""
    stuck: Ints
    """Nodes that never start."""


def plan(graph: Graph) -> Plan:
    """Sorts the nodes into waves (Kahn's algorithm, a whole wave at a time)."""
    after_order = np.argsort(graph.after, kind="stable")
    before_of, first_before = graph.before[after_order], _offsets(graph.after, graph.nodes)
    before_order = np.argsort(graph.before, kind="stable")
    after_of, first_after = graph.after[before_order], _offsets(graph.before, graph.nodes)
    waiting = np.diff(first_before)
    groups = int(graph.group.max(initial=NONE)) + 1
    by_group = np.argsort(graph.group, kind="stable")
    first_member = _offsets(graph.group[graph.group != NONE], groups)
    by_group = by_group[len(by_group) - int(first_member[-1]) :]
    absent = np.diff(first_member)
    place, joined = np.full(graph.nodes, NONE), np.full(graph.nodes, NONE)
    waves: list[_Wave] = []
    order: list[Ints] = []
    ended = joined_before = 0
    ready = np.flatnonzero(waiting == 0)
    while len(ready):
        of = graph.group[ready]
        came = of[of != NONE]
        np.subtract.at(absent, came, 1)
        complete = np.unique(came[absent[came] == 0])
        sizes = first_member[complete + 1] - first_member[complete]
        members = [by_group[first_member[complete[sizes == size], None] + np.arange(size)] for size in np.unique(sizes)]
        alone, joins = (_most_first(nodes, first_before) for nodes in (ready[of == NONE], ready[of != NONE]))
        joined[joins] = joined_before + np.arange(len(joins))
        joined_before += len(joins)
        starts = [_Starts(len(nodes), _predecessors(nodes, before_of, first_before, place)) for nodes in (alone, joins)]
        waves.append(_Wave(ended, starts[0], starts[1], joins, tuple(joined[of_size] for of_size in members)))
        order.append(now := np.concatenate((alone, *(of_size.ravel() for of_size in members))))
        place[now] = ended + np.arange(len(now))
        ended += len(now)
        freed = after_of[_ranges(first_after[now], first_after[now + 1] - first_after[now])]
        np.subtract.at(waiting, freed, 1)
        ready = np.unique(freed[waiting[freed] == 0])
    endless = np.flatnonzero(place == NONE)
    place[endless] = ended + np.arange(len(endless))
    waves = [replace(wave, joins=place[wave.joins]) for wave in waves]
    started = joined[endless] != NONE
    return Plan(np.concatenate((*order, endless)), tuple(waves), ended, endless[~started])


def replay(order: Plan, durations: Floats, *, delays: Floats | None = None, begin: Floats | None = None) -> Floats:
    """When every node ends, in the unit of `durations` (nodes × scenarios: transfer times where nodes communicate).

    `delays` (nodes × scenarios, or × 1) come between the last predecessor's end and a node's start; nodes without
    predecessors start at `begin` (nodes; 0 where it is None). Nodes that are stuck end at NaN.
    """
    places = order.order
    ends = durations[places]
    replay_in_place(
        order,
        ends,
        delays=None if delays is None else delays[places],
        begin=None if begin is None else begin[places],
    )
    result = np.empty_like(ends)
    result[places] = ends
    return result


def replay_in_place(
    order: Plan,
    durations: Floats,
    *,
    delays: Floats | None = None,
    begin: Floats | None = None,
    lanes: int = 1,
    across: Bools | None = None,
) -> None:
    """The same with all arrays in the order of the plan's places; the ends take the place of the durations.

    Of several `lanes` (the scenarios are those of the first, then of the second …) all run the graph, each with its
    own durations; the communications of the nodes `across` begin when the members of all lanes have come.
    """
    ends, joined = durations, 0
    came = np.empty((sum(wave.joining.count for wave in order.waves), durations.shape[1]))

    def ready(starts: _Starts, places: Ints | slice) -> Floats:
        at = _last_end(starts, ends)
        if begin is not None and not starts.before:
            at += begin[places, None]
        if delays is not None:
            at += delays[places]
        return at

    for wave in order.waves:
        until = wave.begin + wave.alone.count
        if wave.alone.count:
            ends[wave.begin : until] += ready(wave.alone, slice(wave.begin, until))
        if wave.joining.count:
            came[joined : joined + wave.joining.count] = ready(wave.joining, wave.joins)
            joined += wave.joining.count
        for members in wave.members:
            begins, until = until, until + members.size
            # Not reduceat, which takes ten times as long.
            arrived = came[members].max(axis=1)
            if across is not None:
                _meet(arrived.reshape(len(members), lanes, -1), across[begins : until : members.shape[1]])
            ends[begins:until].reshape(*members.shape, -1)[:] += arrived[:, None]
    ends[order.ended :] = np.nan


def _last_end(starts: _Starts, ends: Floats) -> Floats:
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


def _most_first(nodes: Ints, first_before: Ints) -> Ints:
    return nodes[np.argsort(first_before[nodes] - first_before[nodes + 1], kind="stable")]


def _predecessors(nodes: Ints, before_of: Ints, first_before: Ints, place: Ints) -> tuple[Ints, ...]:
    """The place of the k-th predecessor of all that have so many; of nodes with most predecessors first."""
    count = first_before[nodes + 1] - first_before[nodes]
    having = [nodes[: np.count_nonzero(count > k)] for k in range(int(count.max(initial=0)))]
    return tuple(place[before_of[first_before[of] + k]] for k, of in enumerate(having))


def _offsets(values: Ints, count: int) -> Ints:
    """Where each of 0 … count-1 begins among the sorted values, and where the last ends."""
    return np.concatenate(([0], np.cumsum(np.bincount(values, minlength=count))))


def _ranges(first: Ints, sizes: Ints) -> Ints:
    """first[0] … first[0]+sizes[0]-1, first[1] …, one after another."""
    return np.repeat(first - (np.cumsum(sizes) - sizes), sizes) + np.arange(int(sizes.sum()))
