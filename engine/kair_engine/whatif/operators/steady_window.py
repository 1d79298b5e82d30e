"""Puts consecutive steps together as if they were one: what waits for what then crosses their ends.

Makes a graph of launches and kernels small: a stretch of both is as good as four nodes.

Between two moments at which something else takes part (another stream, another rank, a wait of the host) a host
launches kernels one after another, and a stream runs them in that order. With H the host's times and d the kernels',

    host out   = host in + Σ H
    stream out = max(stream in + Σ d, host in + max over i of (Σ up to i of H + Σ from i on of d))

which is exact for a graph of such edges. A replay takes a level for each node in a row, so that this makes it as much
shorter as stretches are long.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints, order_by
from kair_engine.frozen import dataclass
from kair_engine.timeline.clocks import Synchronisation, align
from kair_engine.timeline.collectives import Collectives
from kair_engine.trace.operations import HOST, Operations
from kair_engine.whatif.replay import Graph

_COLUMNS = ("lane", "name", "kind", "phase", "occurrence", "duration_ns", "group", "group_seq")


@dataclass(frozen=True)
class Window:
    """Some steps as one."""

    ops: Operations
    """Of all of them. What launches waited for a place in their queue is an operation of the host."""
    sync: Synchronisation
    step: Ints
    """Per operation the place of its step among the steps."""
    row: Ints
    """Per operation its place in its step."""
    place: tuple[Ints, ...]
    """Per step, of each rank of the window its place in the step; NONE where it has no such step."""
    queue_full: Bools
    """Per operation whether it is such a wait."""
    anew: Ints
    """The positions of steps that do not follow the one before: what their first operations awaited is unknown."""


def window_of(steps: Sequence[Operations], syncs: Sequence[Synchronisation]) -> Window:
    """Return the steps, whose operations share their codes, one after another."""
    ranks = np.unique(np.concatenate([ops.ranks for ops in steps]))
    rank = np.concatenate([np.searchsorted(ranks, ops.ranks)[ops.rank] for ops in steps])
    origin = min(ops.origin_ns for ops in steps)
    start = np.concatenate([ops.start_ns + (ops.origin_ns - origin) for ops in steps])
    columns: dict[str, Any] = {name: np.concatenate([getattr(ops, name) for ops in steps]) for name in _COLUMNS}
    order = order_by(rank, columns["lane"], start)
    columns = {name: values[order] for name, values in columns.items()}
    rank, start = rank[order], start[order]
    queue_full = np.concatenate([ops.queue_full for ops in steps])[order]
    columns["kind"] = np.where(queue_full, HOST, columns["kind"])
    begin = np.full(len(ranks), np.iinfo(np.int64).max)
    np.minimum.at(begin, rank, start)
    over = np.zeros(len(ranks), dtype=np.int64)
    np.maximum.at(over, rank, start + columns["duration_ns"])
    ops = replace(
        steps[0],
        origin_ns=origin,
        ranks=ranks,
        begin_ns=begin,
        length_ns=over - begin,
        main_lane=_of_ranks(steps, ranks, [ops.main_lane for ops in steps]),
        rank=rank,
        start_ns=start,
        peer=np.concatenate([_positions(ops, ranks) for ops in steps])[order],
        correlation=_apart([ops.correlation for ops in steps])[order],
        input_bytes=None,
        in_device_job=any(ops.has_device for ops in steps),
        remembered=None,
        lane_text=_merged([ops.lane_text for ops in steps]),
        name_text=_merged([ops.name_text for ops in steps]),
        group_text=_merged([ops.group_text for ops in steps]),
        **columns,
    )
    sizes = [len(of) for of in steps]
    row = np.concatenate([np.arange(size) for size in sizes])[order]
    now = np.empty(len(order), dtype=np.int64)
    now[order] = np.arange(len(order))
    numbers = np.array([of.step for of in steps])
    return Window(
        ops=ops,
        sync=_synchronisation(ops, syncs, sizes, now),
        step=np.repeat(np.arange(len(steps)), sizes)[order],
        row=row,
        place=tuple(_places(of.ranks, ranks) for of in steps),
        queue_full=queue_full,
        anew=np.flatnonzero(np.diff(numbers, prepend=numbers[0] - 2) != 1),
    )


def _synchronisation(
    ops: Operations, syncs: Sequence[Synchronisation], sizes: Sequence[int], now: Ints
) -> Synchronisation:
    """Return the steps' collectives as those of the window, on one clock."""
    first, instances = np.cumsum([0, *sizes]), np.cumsum([0, *(len(sync.collectives) for sync in syncs)])
    row = np.concatenate([now[sync.collectives.row + at] for sync, at in zip(syncs, first, strict=False)])
    instance = np.concatenate([sync.collectives.instance + at for sync, at in zip(syncs, instances, strict=False)])
    rejected = sum(sync.collectives.rejected for sync in syncs)
    collectives = Collectives(ops, row, instance, rejected)
    return Synchronisation(collectives, align(collectives, len(ops.ranks)))


def _of_ranks(steps: Sequence[Operations], ranks: Ints, values: Sequence[Ints]) -> Ints:
    """Per rank of the window what the first step that it has says of it."""
    result = np.zeros(len(ranks), dtype=np.int64)
    for ops, of_step in zip(reversed(steps), reversed(values), strict=True):
        result[np.searchsorted(ranks, ops.ranks)] = of_step
    return result


def _places(of_step: Ints, ranks: Ints) -> Ints:
    place = np.full(len(ranks), NONE)
    place[np.searchsorted(ranks, of_step)] = np.arange(len(of_step))
    return place


def _positions(ops: Operations, ranks: Ints) -> Ints:
    """Return the peers, as places among the window's ranks."""
    return np.where(ops.peer == NONE, NONE, np.searchsorted(ranks, ops.ranks)[ops.peer])


def _apart(correlations: Sequence[Ints]) -> Ints:
    """Numbers of launches, which steps can number alike."""
    most = np.int64(max(int(of.max(initial=0)) for of in correlations) + 1)
    return np.concatenate([np.where(of == NONE, NONE, of + at * most) for at, of in enumerate(correlations)])


def _merged(texts: Sequence[Mapping[int, str]]) -> dict[int, str]:
    return {code: text for of_step in texts for code, text in of_step.items()}


SHORTEST = 4
"""Kernels of a stretch: fewer are not worth four nodes."""


@dataclass(frozen=True)
class Edges:
    """From the nodes that end first to those that wait for them."""

    before: Ints
    after: Ints


@dataclass(frozen=True)
class Contraction:
    """A smaller graph with the same ends."""

    graph: Graph
    place: Ints
    """Per node of the whole graph its number in the smaller one; NONE for those that are within a stretch."""
    waiting: Edges
    """Between laps, in the smaller graph's numbers."""
    kept: Ints
    """Per node of the smaller graph the one it stands for."""
    kernel: Ints
    """Of all stretches, one after another, their kernels; the hosts' nodes that launched them, or NONE."""
    host: Ints
    starts: Ints
    """Where each stretch begins."""
    through: Ints
    """Per stretch its nodes in the smaller graph: through the stream, through the host, both ends."""
    launched: Ints
    stream_end: Ints
    host_end: Ints

    def durations(self, of: Floats) -> Floats:
        """Those of the smaller graph's nodes, given those of all nodes."""
        result = of[self.kept]
        if not len(self.starts):
            return result
        own, issued = of[self.kernel], np.where(self.host == NONE, 0.0, of[self.host])
        total, hosts = np.add.reduceat(own, self.starts), np.add.reduceat(issued, self.starts)
        size = np.diff(np.concatenate((self.starts, [len(own)])))
        until = np.cumsum(issued) - np.repeat(np.cumsum(hosts) - hosts, size)
        since = np.repeat(np.cumsum(total), size) - (np.cumsum(own) - own)
        late = np.where(self.host == NONE, -np.inf, until + since)
        result[self.through] = total
        result[self.launched] = np.maximum.reduceat(late, self.starts)
        result[self.stream_end] = 0.0
        result[self.host_end] = hosts
        return result


def contracted(graph: Graph, waiting: Edges, in_order: Ints, is_host: Bools) -> Contraction:
    """`in_order` are the streams' operations, stream after stream; `waiting` are edges from one lap to the next.

    What takes part in communication, or in edges between laps, stays.
    """
    launch = _Launches.of(graph, waiting, is_host)
    stretch = _stretches(graph, launch, in_order, is_host)
    if stretch is None:
        everything = np.arange(graph.nodes)
        none = np.zeros(0, dtype=np.int64)
        return Contraction(graph, everything, waiting, everything, none, none, none, none, none, none, none)
    return _smaller(graph, waiting, stretch)


@dataclass(frozen=True)
class _Launches:
    """The edges of a graph as nodes see them."""

    launched_by: Ints
    """Per operation on a device a host's node that launched it, per host's node the one before; else NONE."""
    from_host: Ints
    """Per node how many of the host's nodes it waits for, and of devices'."""
    from_device: Ints
    to_host: Ints
    to_device: Ints
    between_laps: Bools

    @classmethod
    def of(cls, graph: Graph, waiting: Edges, is_host: Bools) -> "_Launches":
        before, after, nodes = graph.before, graph.after, graph.nodes
        of_host = is_host[before]
        to_host = is_host[after]
        single = np.full(nodes, NONE)
        single[after[of_host]] = before[of_host]
        between = np.zeros(nodes, dtype=bool)
        between[waiting.before] = between[waiting.after] = True
        return cls(
            launched_by=single,
            from_host=np.bincount(after[of_host], minlength=nodes),
            from_device=np.bincount(after[~of_host], minlength=nodes),
            to_host=np.bincount(before[to_host], minlength=nodes),
            to_device=np.bincount(before[~to_host], minlength=nodes),
            between_laps=between,
        )


@dataclass(frozen=True)
class _Stretches:
    kernel: Ints
    host: Ints
    starts: Ints


def _stretches(graph: Graph, launch: _Launches, in_order: Ints, is_host: Bools) -> _Stretches | None:
    """Run of operations on a stream, each launched right after the one before, that nothing else takes part in."""
    node = in_order
    alone = graph.group[node] == NONE
    by = launch.launched_by[node]
    launched = alone & (launch.from_host[node] == 1) & (by != NONE)
    together = alone & (launch.from_host[node] == 0)
    one, other = node[:-1], node[1:]
    follows = _has_edge(graph, one, other)
    follows &= alone[:-1] & alone[1:] & (launch.from_device[other] == 1)
    follows &= (launch.to_device[one] == 1) & (launch.to_host[one] == 0)
    follows &= ~launch.between_laps[one] & ~launch.between_laps[other]
    # The launches as well: one after the other, and for nothing else.
    last = _last_known(by, launched)
    h_one, h_other = last[:-1], by[1:]
    known = launched[1:] & (h_one != NONE)
    h_one, h_other = np.where(known, h_one, 0), np.where(known, h_other, 0)
    chained = known & (launch.launched_by[h_other] == h_one) & (launch.from_host[h_other] == 1)
    chained &= (launch.from_device[h_other] == 0) & (launch.to_host[h_one] == 1) & (launch.to_device[h_one] == 1)
    chained &= ~launch.between_laps[h_one] & ~launch.between_laps[h_other] & is_host[h_one]
    follows &= chained | (together[1:] & (last[:-1] != NONE))
    run = np.concatenate(([0], np.cumsum(~follows)))
    first = np.flatnonzero(np.concatenate(([True], ~follows)))
    # A stretch begins with what was launched, by a call that waits for nothing in another lap.
    size = np.bincount(run)
    good = (size >= SHORTEST) & launched[first] & ~launch.between_laps[np.where(launched[first], by[first], 0)]
    chosen = good[run]
    if not chosen.any():
        return None
    host = np.where(launched, by, NONE)[chosen]
    number = run[chosen]
    starts = np.flatnonzero(np.concatenate(([True], np.diff(number) != 0)))
    return _Stretches(node[chosen], host, starts)


def _has_edge(graph: Graph, before: Ints, after: Ints) -> Bools:
    """Which pairs have an edge between them."""
    nodes = np.int64(graph.nodes)
    wanted, known = before * nodes + after, np.sort(graph.before * nodes + graph.after)
    at = np.minimum(np.searchsorted(known, wanted), max(len(known) - 1, 0))
    return np.asarray(known[at] == wanted) if len(known) else np.zeros(len(before), dtype=bool)


def _last_known(values: Ints, known: Bools) -> Ints:
    """Per place the latest known value by then, or NONE."""
    at = np.maximum.accumulate(np.where(known, np.arange(len(values)), NONE))
    return np.where(at == NONE, NONE, values[at])


def _smaller(graph: Graph, waiting: Edges, of: _Stretches) -> Contraction:
    ends = np.concatenate((of.starts[1:], [len(of.kernel)])) - 1
    first, last = of.kernel[of.starts], of.kernel[ends]
    second = of.kernel[of.starts + 1]
    number = np.repeat(np.arange(len(of.starts)), np.diff(np.concatenate((of.starts, [len(of.kernel)]))))
    hosts = of.host != NONE
    first_host, last_host = of.host[of.starts], _last_known(of.host, hosts)[ends]
    inside = np.zeros(graph.nodes, dtype=bool)
    inside[of.kernel] = inside[of.host[hosts]] = True
    stretch = np.full(graph.nodes, NONE)
    stretch[of.kernel], stretch[of.host[hosts]] = number, number[hosts]
    before, after = graph.before, graph.after
    within = (stretch[before] != NONE) & (stretch[before] == stretch[after])
    before, after = before[~within], after[~within]
    # What the first launch waits for, the whole stretch does: through its host, and by its launches.
    enters = np.full(graph.nodes, NONE)
    enters[first_host] = np.arange(len(first_host))
    entering = enters[after] != NONE
    through_host = np.where(entering, last_host[enters[after]], after)
    before = np.concatenate((before, before[entering], first, second))
    after = np.concatenate((through_host, second[enters[after[entering]]], last, last))
    kept = ~inside
    for nodes in (first, second, last, last_host):
        kept[nodes] = True
    place = np.where(kept, np.cumsum(kept) - 1, NONE)
    smaller = Graph(int(kept.sum()), place[before], place[after], graph.group[kept])
    return Contraction(
        graph=smaller,
        place=place,
        waiting=Edges(place[waiting.before], place[waiting.after]),
        kept=np.flatnonzero(kept),
        kernel=of.kernel,
        host=of.host,
        starts=of.starts,
        through=place[first],
        launched=place[second],
        stream_end=place[last],
        host_end=place[last_host],
    )
