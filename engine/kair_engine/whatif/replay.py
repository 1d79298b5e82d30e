"""Replays a dependency graph with other durations, many scenarios at once [W §3].

A node starts when all nodes it depends on have ended. A node of its own ends its duration later; the nodes of a
communication end once all of them have started, each after its own transfer time.
"""

from dataclasses import dataclass

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
class _Wave:
    """Nodes that can start together: all that they depend on ended in earlier waves."""

    starts: Ints
    """Those with most predecessors first."""
    before: tuple[Ints, ...]
    """The k-th predecessor of the first len(before[k]) of them."""
    alone: Ints
    """Of `starts`, the nodes without a communication."""
    members: Ints
    """Nodes of the communications that are complete now, communication by communication."""
    bounds: Ints
    """Where each communication's members begin."""
    sizes: Ints


@dataclass(frozen=True)
class Plan:
    """The order in which a graph is replayed."""

    nodes: int
    waves: tuple[_Wave, ...]
    stuck: Ints
    """Nodes that never start: they wait for one another in a circle."""


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
    waves, started = [], np.zeros(graph.nodes, dtype=bool)
    ready = np.flatnonzero(waiting == 0)
    while len(ready):
        started[ready] = True
        of = graph.group[ready]
        joined, count = np.unique(of[of != NONE], return_counts=True)
        absent[joined] -= count
        complete = joined[absent[joined] == 0]
        sizes = first_member[complete + 1] - first_member[complete]
        members = by_group[_ranges(first_member[complete], sizes)]
        alone = ready[of == NONE]
        starts, before = _predecessors(ready, before_of, first_before)
        waves.append(_Wave(starts, before, alone, members, np.cumsum(sizes) - sizes, sizes))
        ended = np.concatenate((alone, members))
        freed = after_of[_ranges(first_after[ended], first_after[ended + 1] - first_after[ended])]
        freed, count = np.unique(freed, return_counts=True)
        waiting[freed] -= count
        ready = freed[waiting[freed] == 0]
    return Plan(graph.nodes, tuple(waves), np.flatnonzero(~started))


def replay(
    order: Plan,
    durations: Floats,
    *,
    delays: Floats | None = None,
    begin: Floats | None = None,
    meeting: Bools | None = None,
) -> Floats:
    """When every node ends, in the unit of `durations` (nodes × scenarios: transfer times where nodes communicate).

    `delays` (nodes × scenarios, or × 1) come between the last predecessor's end and a node's start; nodes without
    predecessors start at `begin` (nodes; 0 where it is None). Nodes that are stuck end at NaN.
    Where `meeting` (nodes) is given, the second half of the scenarios are counterparts of the first: such a node
    begins when both have come to it.
    """
    end = np.full_like(durations, np.nan)
    start = np.empty_like(durations)
    for wave in order.waves:
        at = np.zeros((len(wave.starts), durations.shape[1]))
        if begin is not None:
            at += begin[wave.starts, None]
        for k, before in enumerate(wave.before):
            part = at[: len(before)]
            if k == 0:
                part[:] = end[before]
            else:
                np.maximum(part, end[before], out=part)
        if delays is not None:
            at += delays[wave.starts]
        if meeting is not None:
            _meet(at, meeting[wave.starts])
        start[wave.starts] = at
        end[wave.alone] = start[wave.alone] + durations[wave.alone]
        if len(wave.members):
            together = np.maximum.reduceat(start[wave.members], wave.bounds, axis=0)
            end[wave.members] = np.repeat(together, wave.sizes, axis=0) + durations[wave.members]
    return end


def _meet(at: Floats, meeting: Bools) -> None:
    half = at.shape[1] // 2
    both = np.maximum(at[meeting, :half], at[meeting, half:])
    at[meeting, :half], at[meeting, half:] = both, both


def _predecessors(starts: Ints, before_of: Ints, first_before: Ints) -> tuple[Ints, tuple[Ints, ...]]:
    """The nodes, those with most predecessors first; and the k-th predecessor of all that have so many."""
    count = first_before[starts + 1] - first_before[starts]
    order = np.argsort(-count, kind="stable")
    starts, count = starts[order], count[order]
    having = [starts[: np.count_nonzero(count > k)] for k in range(int(count.max(initial=0)))]
    return starts, tuple(before_of[first_before[nodes] + k] for k, nodes in enumerate(having))


def _offsets(values: Ints, count: int) -> Ints:
    """Where each of 0 … count-1 begins among the sorted values, and where the last ends."""
    return np.concatenate(([0], np.cumsum(np.bincount(values, minlength=count))))


def _ranges(first: Ints, sizes: Ints) -> Ints:
    """first[0] … first[0]+sizes[0]-1, first[1] …, one after another."""
    return np.repeat(first - (np.cumsum(sizes) - sizes), sizes) + np.arange(int(sizes.sum()))
