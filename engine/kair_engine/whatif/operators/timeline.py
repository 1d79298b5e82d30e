"""Draws both timelines of operators, recorded and ideal: a process per rank in each, the critical path on top."""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats
from kair_engine.results.fix import Fix
from kair_engine.trace.hosts import host_of
from kair_engine.trace.model import Trace
from kair_engine.trace.operations import KIND_NAMES, PHASE_NAMES, Operations
from kair_engine.whatif.model import Baseline
from kair_engine.whatif.operators.batches import Batch, step_batches
from kair_engine.whatif.operators.dependencies import step_graphs
from kair_engine.whatif.operators.parts import GAP, REST
from kair_engine.whatif.operators.replayed_times import OperationTimes, recorded_times, replayed_times
from kair_engine.whatif.operators.step_graph.graph import StepGraph
from kair_engine.whatif.replay.critical_path import Piece, critical_path, waits
from kair_engine.whatif.replay.trace_events import CRITICAL, Event, arrows, lane, process

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
                times = replayed_times(graph, batch.values_ns(at, Fix()), of_step) if number else recorded_times(graph)
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
