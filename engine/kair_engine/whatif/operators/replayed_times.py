"""Moves a step's operations to where a replay has them begin and end."""

from collections.abc import Iterator

import numpy as np

from kair_engine.arrays import NONE, Floats, Ints
from kair_engine.frozen import dataclass
from kair_engine.whatif.operators.parts import own_times_of_devices, times_of_events
from kair_engine.whatif.operators.step_graph.graph import StepGraph


@dataclass(frozen=True)
class OperationTimes:
    """Per operation of a step, ns on the step's clock."""

    start: Floats
    end: Floats


@dataclass(frozen=True)
class _Moments:
    """Moments on lanes: when they were recorded, and when they are now."""

    lane: Ints
    was: Floats
    now: Floats


def recorded_times(graph: StepGraph) -> OperationTimes:
    """As recorded."""
    ops = graph.ops
    offset = graph.offset_ns[ops.rank]
    return OperationTimes(ops.start_ns - offset, ops.end_ns - offset)


def replayed_times(graph: StepGraph, value_ns: Floats, end: Floats) -> OperationTimes:
    """With other values of the step's parts, and the nodes' ends that follow from them.

    Device operations and communication move with their nodes. What threads do lies between their events, which keep
    their order: a moment between two keeps its place between them.
    """
    ops, recorded = graph.ops, recorded_times(graph)
    start, over = recorded.start.copy(), recorded.end.copy()
    rows = np.flatnonzero(graph.over != NONE)
    start[rows], over[rows] = end[graph.arrival[rows]], end[graph.over[rows]]
    alone, own = own_times_of_devices(graph, value_ns)
    start[alone] = over[alone] - own
    over = np.maximum(over, start)
    streams = rows[ops.on_stream[rows]]
    lanes = ops.lane_key[streams]
    known = [
        _Moments(lanes, recorded.start[streams], start[streams]),
        _Moments(lanes, recorded.end[streams], over[streams]),
        *_of_events(graph, value_ns, end),
    ]
    others = np.flatnonzero(graph.over == NONE)
    step = graph.time_ns[[graph.begin, graph.end]], end[[graph.begin, graph.end]]
    for rows, lane in _by_lane(graph, others, known):
        rank = ops.rank[rows[0]]
        was, now = np.concatenate((lane.was, step[0][:, rank])), np.concatenate((lane.now, step[1][:, rank]))
        order = np.argsort(was, kind="stable")
        was, now = was[order], np.maximum.accumulate(now[order])
        for times in (start, over):
            times[rows] = np.interp(times[rows], was, now) + np.maximum(times[rows] - was[-1], 0.0)
    return OperationTimes(start, over)


def _of_events(graph: StepGraph, value_ns: Floats, end: Floats) -> Iterator[_Moments]:
    """When operations on threads begin, and when they let go of what follows them."""
    ops, events = graph.ops, graph.events
    if not len(graph.host):
        return
    took = times_of_events(graph, value_ns)
    # Events that share a node follow one another: its end less what comes after.
    reached = np.cumsum(took.whole)
    last = np.flatnonzero(events.kept)[events.node]
    now = end[graph.host[events.node]] - (reached[last] - reached)
    was = events.time_ns - graph.offset_ns[ops.rank[events.row]]
    lanes = ops.lane_key[events.row]
    yield _Moments(lanes, was - events.own_ns, now - took.own)
    yield _Moments(lanes, was, now)


def _by_lane(graph: StepGraph, rows: Ints, known: list[_Moments]) -> Iterator[tuple[Ints, _Moments]]:
    """Per lane the rows on it, and its known moments."""
    lane, was, now = (np.concatenate([getattr(one, name) for one in known]) for name in ("lane", "was", "now"))
    order = np.argsort(lane, kind="stable")
    lane, was, now = lane[order], was[order], now[order]
    key = graph.ops.lane_key
    rows = rows[np.argsort(key[rows], kind="stable")]
    for part in np.split(rows, np.flatnonzero(np.diff(key[rows])) + 1):
        if len(part):
            of = slice(*np.searchsorted(lane, key[part[0]] + np.array([0, 1])))
            yield part, _Moments(lane[of], was[of], now[of])
