"""Draws both timelines of operators, recorded and ideal: a process per rank in each, the critical path on top.

Moves a step's operations to where a replay has them begin and end.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints
from kair_engine.errors import InputError
from kair_engine.frozen import dataclass
from kair_engine.results.whatif import Fix
from kair_engine.trace.model import Trace, host_of
from kair_engine.trace.operations import KIND_NAMES, PHASE_NAMES, Operations
from kair_engine.whatif.model import Baseline, MovedStep
from kair_engine.whatif.operators.batches import Batch, step_batches
from kair_engine.whatif.operators.dependencies import GAP, REST, own_times_of_devices, step_graphs, times_of_events
from kair_engine.whatif.operators.step_graph import StepGraph
from kair_engine.whatif.replay import Piece, critical_path, waits
from kair_engine.whatif.trace_events import CRITICAL, Event, arrows, lane, process

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
    others = np.flatnonzero(graph.over == NONE)
    step = graph.time_ns[[graph.begin, graph.end]], end[[graph.begin, graph.end]]
    for rows, moments in _by_lane(graph, others, known):
        rank = ops.rank[rows[0]]
        was, now = np.concatenate((moments.was, step[0][:, rank])), np.concatenate((moments.now, step[1][:, rank]))
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


def moved_step(batch: Batch, fixes: Sequence[Fix]) -> MovedStep:
    """The one step of a batch with all of `fixes` made. Raises InputError where it waits for itself in a circle."""
    ((graph, _),) = step_graphs(batch.steps, batch.syncs, batch.role)
    end = batch.replayed([tuple(fixes)], None).end[batch.plan.place, 0]
    if np.isnan(end).any():
        raise InputError(f"step {graph.ops.step} cannot be replayed: its operations wait for one another in a circle")
    ops, ahead = graph.ops, graph.offset_ns[graph.ops.rank]
    times = replayed_times(graph, batch.values_ns(0, fixes), end)
    begin, over = (np.rint(end[nodes] + graph.offset_ns).astype(np.int64) for nodes in (graph.begin, graph.end))
    start, ended = (np.rint(of + ahead).astype(np.int64) for of in (times.start, times.end))
    return MovedStep(ops, start, ended, begin, over - begin)


def moved_steady_step(batch: "SteadyBatch", fixes: Sequence[Fix]) -> MovedStep:
    """The same of a job whose hosts run ahead, as the step is where it comes again and again.

    The lap is laid where the recorded step is: the median rank begins it when it began that. Raises InputError as
    `moved_step` does.
    """
    lap, (ops,) = batch.last_lap(tuple(fixes)), batch.steps
    if np.isnan(lap.end_ns).any():
        raise InputError(f"step {ops.step} cannot be replayed: its operations wait for one another in a circle")
    graph, window = lap.whole.graph, lap.whole.window
    offset = graph.offset_ns
    over = lap.end_ns[lap.whole.steady.step_end[-1]]
    # Who recorded no device tells of no step of it.
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
    for rows, moments in _by_lane(graph, np.flatnonzero(graph.over == NONE), known):
        if not len(moments.was):
            continue
        was, now = moments.was, np.maximum.accumulate(moments.now)
        for times in (start, over):
            before, after = np.minimum(times[rows] - was[0], 0.0), np.maximum(times[rows] - was[-1], 0.0)
            times[rows] = np.interp(times[rows], was, now) + before + after
    return OperationTimes(start, over)


_TITLES: Final = ("recorded", "ideal")
_STREAMS: Final = 1000
"""Streams' rows come below those of threads."""


def operator_timeline(trace: Trace) -> Iterator[Event]:
    """Trace events, µs since the first step's begin, on the job's clock; a few steps in memory at a time.

    Steps whose operations wait for one another in a circle are only in the recorded timeline, without critical path.
    """
    timelines = [_Lanes(trace, number) for number in range(len(_TITLES))]
    origin, carried, drawn = None, None, 0
    for title, lanes in zip(_TITLES, timelines, strict=True):
        for rank in trace.job.ranks:
            host = host_of(trace.job, rank)
            name = f"{title}: rank {rank}" + (f" ({host})" if host is not None else "")
            yield from process(lanes.process_of(rank), name)
            yield from lane(lanes.process_of(rank), 0, CRITICAL)
    for batch in step_batches(trace, 2):
        done = batch.replayed([Baseline.RECORDED, Baseline.IDEAL], carried)
        carried = done.shift
        graphs = [graph for graph, _ in step_graphs(batch.steps, batch.syncs, batch.role)]
        first = np.cumsum([0, *(len(graph.time_ns) for graph in graphs)]).tolist()
        origin = batch.steps[0].origin_ns if origin is None else origin
        for number, lanes in enumerate(timelines):
            end = done.end[batch.plan.place, number]
            paths = _Paths(batch, end, lanes)
            for at, graph in enumerate(graphs):
                of_step = end[first[at] : first[at + 1]]
                known = not np.isnan(of_step).any()
                if number and not known:
                    continue
                shift = (graph.ops.origin_ns - origin) / 1e3
                path = paths.of(at) if known else []
                times = (
                    replayed_times(graph, batch.values_ns(at, [Fix()]), of_step) if number else recorded_times(graph)
                )
                critical = _on_path(graph, [piece.node - first[at] for piece in path])
                yield from _operations(graph.ops, times, critical, shift, lanes)
                pieces = list(paths.events(at, path, shift))
                yield from pieces
                yield from arrows(pieces, first=drawn)
                drawn += len(pieces)


class _Lanes:
    """Numbers of one timeline's processes and of their rows."""

    def __init__(self, trace: Trace, number: int) -> None:
        self._process: dict[int, int] = {
            rank: 1 + number * len(trace.job.ranks) + at for at, rank in enumerate(trace.job.ranks)
        }
        self._rows: dict[tuple[int, str], int] = {}

    def process_of(self, rank: int) -> int:
        """Of a rank; 0 is nobody's."""
        return self._process[rank]

    def row(self, pid: int, text: str) -> tuple[int, bool]:
        """(the number of a lane, whether it is new)."""
        if (pid, text) in self._rows:
            return self._rows[pid, text], False
        number = len(self._rows) + 1 + (_STREAMS * len(self._process) if text.startswith("stream ") else 0)
        self._rows[pid, text] = number
        return number, True


class _Paths:
    """The critical paths of a batch's steps, in one scenario."""

    def __init__(self, batch: Batch, end: Floats, lanes: _Lanes) -> None:
        self._batch, self._end, self._lanes = batch, end, lanes
        self._waits = waits(batch.dependencies.graph, end)
        parts = batch.dependencies.parts
        self._largest = np.full(batch.dependencies.graph.nodes, NONE)
        order = np.lexsort((parts.value_ns, parts.node))
        self._largest[parts.node[order]] = order
        self._rank = np.full(batch.dependencies.graph.nodes, NONE)
        self._rank[parts.node] = parts.rank
        for begin, end_nodes in zip(batch.dependencies.begin, batch.dependencies.end, strict=True):
            self._rank[begin] = self._rank[end_nodes] = np.arange(len(begin))

    def of(self, at: int) -> list[Piece]:
        """From a rank's begin of the step to the end of the rank that ends last."""
        last = self._batch.dependencies.end[at]
        latest = int(last[np.argmax(self._end[last])])
        # The first node is the step's begin, which takes no time.
        return critical_path(self._batch.dependencies.graph, self._waits, self._end, latest)[1:]

    def events(self, at: int, path: Sequence[Piece], shift: float) -> Iterator[Event]:
        """The pieces that take any time."""
        ops = self._batch.steps[at]
        for piece in path:
            if piece.end > piece.begin and self._largest[piece.node] != NONE:
                yield self._event(ops, piece.node, shift + piece.begin / 1e3, shift + piece.end / 1e3)

    def _event(self, ops: Operations, node: int, begin: float, end: float) -> Event:
        parts, part = self._batch.dependencies.parts, self._largest[node]
        name = ops.name_text.get(int(parts.name[part]), "end of the step")
        if int(parts.key[part]) % (REST + 1) == GAP and parts.name[part] != NONE:
            name = f"delay before {name}"
        begin, end = round(begin, 3), round(end, 3)
        return {
            "ph": "X",
            "name": name,
            "cat": "critical",
            "pid": self._lanes.process_of(int(ops.ranks[self._rank[node]])),
            "tid": 0,
            "ts": begin,
            "dur": round(end - begin, 3),
            "args": {"step": ops.step},
        }


def _on_path(graph: StepGraph, nodes: Sequence[int]) -> Bools:
    """The operations whose self time is on the path."""
    on_path = np.zeros(len(graph.time_ns), dtype=bool)
    on_path[list(nodes)] = True
    result = np.zeros(len(graph.ops), dtype=bool)
    rows = np.flatnonzero(graph.over != NONE)
    result[rows] = on_path[graph.over[rows]]
    if len(graph.host):
        result[graph.events.row[on_path[graph.host[graph.events.node]]]] = True
    return result


def _operations(
    ops: Operations, times: OperationTimes, critical: Bools, shift: float, lanes: _Lanes
) -> Iterator[Event]:
    for at in range(len(ops)):
        pid = lanes.process_of(int(ops.ranks[ops.rank[at]]))
        text = ops.lane_text[int(ops.lane[at])]
        tid, new = lanes.row(pid, text)
        if new:
            yield from lane(pid, tid, text)
        kind, begin = KIND_NAMES[ops.kind[at]], round(shift + float(times.start[at]) / 1e3, 3)
        event: Event = {
            "ph": "X",
            "name": ops.operator(at),
            "cat": f"{kind},critical" if critical[at] else kind,
            "pid": pid,
            "tid": tid,
            "ts": begin,
            "dur": round(round(shift + float(times.end[at]) / 1e3, 3) - begin, 3),
            "args": {"step": ops.step},
        }
        if ops.phase[at] != NONE:
            event["args"]["phase"] = PHASE_NAMES[ops.phase[at]]
        if critical[at]:
            event["cname"] = "terrible"
        yield event
