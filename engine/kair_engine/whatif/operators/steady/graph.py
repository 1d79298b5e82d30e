"""The graph of a window of steps that comes again and again: what waits for what in it, and in the windows before.

In their steady state the steps of a job whose hosts run ahead are like those before them. So the window is replayed
several times in a row (laps), and the last lap counts: nothing need be known of what was in flight when the recording
began. Besides what a single step shows, a launch waits for the kernel that was launched a queue's depth before it.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from kair_engine.arrays import NONE, Floats, Ints
from kair_engine.frozen import dataclass
from kair_engine.timeline.peers import main_lane_rows
from kair_engine.trace.model import LaunchQueue, usual_queue
from kair_engine.trace.nesting import lane_order
from kair_engine.trace.operations import MEMORY, SCOPE, Operations
from kair_engine.whatif.operators.steady.contraction import Edges
from kair_engine.whatif.operators.steady.window import Window
from kair_engine.whatif.operators.step_graph.graph import StepGraph
from kair_engine.whatif.replay.levels import Graph

PAUSE_NS = 200_000
"""After so long a time of its own a host may meet a queue that is no longer full: there it is looked at."""
LOOKS = 4
"""In each queue's depth the host is held to the queue so often, and after pauses."""
MOST_LAPS = 6


@dataclass(frozen=True)
class SteadyGraph:
    """One lap, and what its nodes wait for in laps before."""

    graph: Graph
    step_end: Ints
    """(steps × ranks): the nodes at which devices have done each step's operations."""
    waiting: tuple[tuple[int, Edges], ...]
    """(so many laps before, edges from nodes there)."""
    in_order: Ints
    """The nodes of the streams' operations, stream after stream."""


def steady_graph(
    of: StepGraph, window: Window, earlier: tuple[Ints, Ints], queues: Mapping[int, LaunchQueue], took_ns: Floats
) -> SteadyGraph:
    """`queues` are by the number of the rank; `earlier` are waits of streams for others in the window before.

    `took_ns` is what each node takes that waits for nothing.
    """
    ops = window.ops
    streams = np.flatnonzero(ops.on_stream & (ops.kind != SCOPE))
    ordered = lane_order(ops.lane_key, ops.start_ns, ops.duration_ns, streams)
    nodes = len(of.time_ns)
    steps, ranks = len(window.place), len(ops.ranks)
    step_end = nodes + np.arange(steps * ranks).reshape(steps, ranks)
    before, after = _without_repeated_launches(of, ops, ordered)
    ends = _step_ends(of, window, ordered, step_end)
    within, waiting = _queue_edges(of, ops, queues, took_ns)
    laps = [(1, _continued(of, ops, ordered, earlier, step_end)), *waiting]
    graph = Graph(
        nodes + steps * ranks,
        np.concatenate((before, ends.before, within.before)),
        np.concatenate((after, ends.after, within.after)),
        np.concatenate((of.group, np.full(steps * ranks, NONE))),
    )
    return SteadyGraph(graph, step_end, tuple(laps), of.over[ordered])


def _without_repeated_launches(of: StepGraph, ops: Operations, ordered: Ints) -> tuple[Ints, Ints]:
    """The edges, but those from one launch to more than the first of its operations on a stream (of a CUDA graph)."""
    launch, lane = ops.launch[ordered], ops.lane_key[ordered]
    again = np.flatnonzero((launch[1:] != NONE) & (launch[1:] == launch[:-1]) & (lane[1:] == lane[:-1])) + 1
    repeated = np.zeros(len(of.time_ns), dtype=bool)
    repeated[of.arrival[ordered[again]]] = True
    is_host = np.zeros(len(of.time_ns), dtype=bool)
    is_host[of.host] = True
    kept = ~(is_host[of.before] & repeated[of.after])
    return of.before[kept], of.after[kept]


def _step_ends(of: StepGraph, window: Window, ordered: Ints, step_end: Ints) -> Edges:
    """From the last operation of each step on each stream to its end, and from one step's end to the next one's."""
    ops = window.ops
    works = ordered[ops.kind[ordered] != MEMORY]
    step = window.step[works]
    lane = ops.lane_key[works]
    last = np.concatenate(((np.diff(lane) != 0) | (np.diff(step) != 0), [True])) if len(works) else works
    works = works[last]
    before = [of.over[works], step_end[:-1].ravel()]
    after = [step_end[window.step[works], ops.rank[works]], step_end[1:].ravel()]
    return Edges(np.concatenate(before), np.concatenate(after))


def _continued(of: StepGraph, ops: Operations, ordered: Ints, earlier: tuple[Ints, Ints], step_end: Ints) -> Edges:
    """What goes on from one lap to the next: streams, threads, what streams waited for, the steps' ends."""
    lane = ops.lane_key[ordered]
    first = np.flatnonzero(np.concatenate(([True], np.diff(lane) != 0))) if len(lane) else lane
    last = np.concatenate((first[1:], [len(lane)])) - 1 if len(lane) else lane
    parts = [(of.over[ordered[last]], of.arrival[ordered[first]]), (step_end[-1], step_end[0])]
    events = of.events
    if len(of.host):
        ends = events.last_of_lane
        lanes = ops.lane_key[events.row]
        opens = np.flatnonzero(events.before == NONE)
        begins = opens[np.argsort(lanes[opens], kind="stable")]
        ends = ends[np.argsort(lanes[ends], kind="stable")]
        parts.append((of.host[events.node[ends]], of.host[events.node[begins]]))
        main = ends[main_lane_rows(ops)[events.row[ends]]]
        parts.append((of.host[events.node[main]], of.begin[ops.rank[events.row[main]]]))
    waited_for, waited = earlier
    parts.append((of.over[waited_for], of.arrival[waited]))
    before, after = (np.concatenate(side) for side in zip(*parts, strict=True))
    return Edges(before, after)


def _queue_edges(
    of: StepGraph, ops: Operations, queues: Mapping[int, LaunchQueue], took_ns: Floats
) -> tuple[Edges, list[tuple[int, Edges]]]:
    """(edges within a lap, those from laps before): from the end of a kernel to the launch a queue's depth later.

    Every launch waits so; the host is held to it now and then, which is enough: in between it can run ahead by no more
    than the queue is deep anyway, and what it launches too early waits for its stream.
    """
    empty = Edges(*(np.zeros(0, dtype=np.int64),) * 2)
    found: list[tuple[Ints, Ints, Ints]] = []
    for launches, over, depth in _in_queues(of, ops, queues):
        count = len(launches)
        looks = _looks(took_ns[launches], depth)
        source = looks - depth
        laps = np.maximum(-(source // count), 0)
        chosen = laps < MOST_LAPS
        looks, source, laps = looks[chosen], source[chosen], laps[chosen]
        found.append((over[source + laps * count], launches[looks], laps))
    if not found:
        return empty, []
    before, after, laps = (np.concatenate(column) for column in zip(*found, strict=True))
    by_lap = [(lap, Edges(before[laps == lap], after[laps == lap])) for lap in np.unique(laps).tolist()]
    within = next((edges for lap, edges in by_lap if lap == 0), empty)
    return within, [(lap, edges) for lap, edges in by_lap if lap]


def _in_queues(of: StepGraph, ops: Operations, queues: Mapping[int, LaunchQueue]) -> Iterator[tuple[Ints, Ints, int]]:
    """Per queue the host's nodes of its launches in their order, the nodes at which these were over, its depth."""
    if not queues or not len(of.host):
        return
    usual = usual_queue(queues.values())
    rows = np.flatnonzero(ops.on_stream & (ops.launch != NONE) & (of.over != NONE))
    for place, number in enumerate(ops.ranks.tolist()):
        queue = queues.get(number, usual)
        queue = queue if queue.per_stream == usual.per_stream else usual
        mine = rows[ops.rank[rows] == place]
        for lane in np.unique(ops.lane[mine]) if queue.per_stream else (NONE,):
            some = mine if lane == NONE else mine[ops.lane[mine] == lane]
            # Of what one call launched, the last to end.
            order = np.lexsort((ops.end_ns[some], ops.start_ns[ops.launch[some]]))
            some = some[order]
            launch = ops.launch[some]
            last = np.concatenate((launch[1:] != launch[:-1], [True])) if len(launch) else launch
            event = of.events.last_of_row[launch[last]]
            known = event != NONE
            if known.any():
                yield of.host[of.events.node[event[known]]], of.over[some[last][known]], queue.depth


def _looks(took_ns: Floats, depth: int) -> Ints:
    """At which launches the host is held to the queue: some in each depth of it, and after pauses."""
    every = np.arange(0, len(took_ns), max(depth // LOOKS, 1))
    return np.union1d(every, np.flatnonzero(took_ns > PAUSE_NS))
