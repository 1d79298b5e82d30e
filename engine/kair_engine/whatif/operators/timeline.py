"""Draws both timelines of operators, recorded and ideal: a process per rank in each, the critical path on top.

Moves a step's operations to where a replay has them begin and end.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints
from kair_engine.errors import InputError
from kair_engine.frozen import dataclass
from kair_engine.results.whatif import Fix
from kair_engine.trace.model import Trace
from kair_engine.trace.operations import Operations
from kair_engine.whatif.model import TITLES, Baseline, DrawnStep, MovedStep, PathPiece
from kair_engine.whatif.operators.batches import Batch, step_batches
from kair_engine.whatif.operators.dependencies import GAP, REST, own_times_of_devices, step_graphs, times_of_events
from kair_engine.whatif.operators.step_graph import StepGraph
from kair_engine.whatif.replay import critical_path, waits

if TYPE_CHECKING:
    from kair_engine.whatif.operators.steady_state import SteadyBatch


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
    step = graph.time_ns[[graph.begin, graph.end]], end[[graph.begin, graph.end]]
    for of_lane, moments in _by_lane(graph, np.flatnonzero(graph.over == NONE), known):
        rank = ops.rank[of_lane[0]]
        was, now = np.concatenate((moments.was, step[0][:, rank])), np.concatenate((moments.now, step[1][:, rank]))
        order = np.argsort(was, kind="stable")
        was, now = was[order], np.maximum.accumulate(now[order])
        for times in (start, over):
            times[of_lane] = np.interp(times[of_lane], was, now) + np.maximum(times[of_lane] - was[-1], 0.0)
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


def moved_step(batch: Batch, fixes: Sequence[Fix]) -> MovedStep:
    """Return the one step of a batch with all of `fixes` made.

    Raises InputError where it waits for itself in a circle.
    """
    ((graph, _),) = step_graphs(batch.steps, batch.syncs, batch.role)
    end = batch.replayed([tuple(fixes)], None).end[:, 0]
    if np.isnan(end).any():
        raise InputError(f"step {graph.ops.step} cannot be replayed: its operations wait for one another in a circle")
    ops, ahead = graph.ops, graph.offset_ns[graph.ops.rank]
    times = replayed_times(graph, batch.values_ns(0, fixes), end)
    begin, over = (np.rint(end[nodes] + graph.offset_ns).astype(np.int64) for nodes in (graph.begin, graph.end))
    start, ended = (np.rint(of + ahead).astype(np.int64) for of in (times.start, times.end))
    return MovedStep(ops, start, ended, begin, over - begin)


def moved_steady_step(batch: "SteadyBatch", fixes: Sequence[Fix]) -> MovedStep:
    """Return the same of a job whose hosts run ahead, as the step is where it comes again and again.

    The lap is laid where the recorded step is: the median rank begins it when it began that. Raises InputError as
    `moved_step` does.
    """
    lap, (ops,) = batch.last_lap(tuple(fixes)), batch.steps
    if np.isnan(lap.end_ns).any():
        raise InputError(f"step {ops.step} cannot be replayed: its operations wait for one another in a circle")
    graph, window = lap.whole.graph, lap.whole.window
    offset = graph.offset_ns
    over = lap.end_ns[lap.whole.steady.step_end[-1]]
    # A rank that recorded no device shows no step of it.
    told = over > lap.begin_ns
    # Times of a window count from its first step's origin, which is this one's.
    shift = float(np.median((ops.begin_ns - offset - lap.begin_ns)[told])) if told.any() else 0.0
    end = lap.end_ns[: len(graph.time_ns)] + shift
    times = _moved_window(graph, lap.own_ns[: len(end)], end)
    ahead = offset[window.ops.rank]
    start, ended = ops.start_ns.copy(), ops.end_ns.copy()
    start[window.row] = np.rint(times.start + ahead).astype(np.int64)
    ended[window.row] = np.rint(times.end + ahead).astype(np.int64)
    begin = np.where(told, np.rint(lap.begin_ns + shift + offset).astype(np.int64), ops.begin_ns)
    length = np.where(told, np.rint(over - lap.begin_ns).astype(np.int64), ops.length_ns)
    return MovedStep(ops, start, ended, begin, length)


def _moved_window(graph: StepGraph, own_ns: Floats, end: Floats) -> OperationTimes:
    """With other ends of the nodes: as `replayed_times`, where each node's own time is known."""
    ops, recorded = graph.ops, recorded_times(graph)
    start, over = recorded.start.copy(), recorded.end.copy()
    rows = np.flatnonzero(graph.over != NONE)
    start[rows], over[rows] = end[graph.arrival[rows]], end[graph.over[rows]]
    alone = rows[graph.arrival[rows] == graph.over[rows]]
    start[alone] = over[alone] - own_ns[graph.over[alone]]
    over = np.maximum(over, start)
    events = graph.events
    kept = np.flatnonzero(events.kept)
    known = [_Moments(ops.lane_key[events.row[kept]], graph.time_ns[graph.host], end[graph.host])]
    for of_lane, moments in _by_lane(graph, np.flatnonzero(graph.over == NONE), known):
        if not len(moments.was):
            continue
        was, now = moments.was, np.maximum.accumulate(moments.now)
        for times in (start, over):
            before, after = np.minimum(times[of_lane] - was[0], 0.0), np.maximum(times[of_lane] - was[-1], 0.0)
            times[of_lane] = np.interp(times[of_lane], was, now) + before + after
    return OperationTimes(start, over)


def drawn_steps(trace: Trace) -> Iterator[DrawnStep]:
    """Lay out every step as recorded, and with the peers' ideal, on the job's clock; a few in memory at a time.

    Steps whose operations wait for one another in a circle are only in the recorded timeline, without critical path.
    """
    origin, carried = None, None
    for batch in step_batches(trace):
        done = batch.replayed([Baseline.RECORDED, Baseline.IDEAL], carried)
        carried = done.shift
        graphs = [graph for graph, _ in step_graphs(batch.steps, batch.syncs, batch.role)]
        first = np.cumsum([0, *(len(graph.time_ns) for graph in graphs)]).tolist()
        origin = batch.steps[0].origin_ns if origin is None else origin
        for number, title in enumerate(TITLES):
            paths = _Paths(batch, done.end[:, number])
            for at, graph in enumerate(graphs):
                end = paths.end[first[at] : first[at + 1]]
                known = not np.isnan(end).any()
                if not known and title == "ideal":
                    continue
                since = graph.ops.origin_ns - origin
                nodes, path = paths.of(at, since) if known else ([], ())
                ideal = title == "ideal"
                times = replayed_times(graph, batch.values_ns(at, [Fix()]), end) if ideal else recorded_times(graph)
                yield DrawnStep(
                    title=title,
                    ops=graph.ops,
                    rows=np.arange(len(graph.ops)),
                    start_ns=np.rint(times.start).astype(np.int64) + since,
                    end_ns=np.rint(times.end).astype(np.int64) + since,
                    on_path=_on_path(graph, np.array(nodes, dtype=np.int64) - first[at]),
                    path=path,
                )


class _Paths:
    """The critical paths of a batch's steps, where its nodes end at these times."""

    def __init__(self, batch: Batch, end: Floats) -> None:
        self.end = end
        self._steps, self._of = batch.steps, batch.dependencies
        self._graph = self._of.graph
        self._waits = waits(self._graph, end)
        parts, nodes = self._of.parts, self._graph.nodes
        self._largest, self._rank = np.full(nodes, NONE), np.full(nodes, NONE)
        order = np.lexsort((parts.value_ns, parts.node))
        self._largest[parts.node[order]] = order
        self._rank[parts.node] = parts.rank
        for begin, end_nodes in zip(self._of.begin, self._of.end, strict=True):
            self._rank[begin] = self._rank[end_nodes] = np.arange(len(begin))

    def of(self, at: int, since: int) -> tuple[list[int], tuple[PathPiece, ...]]:
        """Trace the `at`-th step's, to the end of the rank that ends last: all nodes, and pieces of time."""
        ops, last = self._steps[at], self._of.end[at]
        # The first node is the step's begin, which takes no time.
        path = critical_path(self._graph, self._waits, self.end, int(last[np.argmax(self.end[last])]))[1:]
        return [piece.node for piece in path], tuple(
            PathPiece(
                int(ops.ranks[self._rank[piece.node]]),
                self._name(ops, self._largest[piece.node]),
                round(piece.begin) + since,
                round(piece.end) + since,
            )
            for piece in path
            if piece.end > piece.begin and self._largest[piece.node] != NONE
        )

    def _name(self, ops: Operations, part: int) -> str:
        parts = self._of.parts
        if parts.name[part] == NONE:
            return "end of the step"
        name = ops.name_text[int(parts.name[part])]
        return f"delay before {name}" if parts.key[part] % (REST + 1) == GAP else name


def _on_path(graph: StepGraph, nodes: Ints) -> Bools:
    """Return the operations whose self time is on the path."""
    on_path = np.zeros(len(graph.time_ns), dtype=bool)
    on_path[nodes] = True
    result = np.zeros(len(graph.ops), dtype=bool)
    rows = np.flatnonzero(graph.over != NONE)
    result[rows] = on_path[graph.over[rows]]
    if len(graph.host):
        result[graph.events.row[on_path[graph.host[graph.events.node]]]] = True
    return result
