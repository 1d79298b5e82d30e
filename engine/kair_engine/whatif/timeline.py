"""The recorded and the ideal timeline side by side, in the JSON that Perfetto and chrome://tracing read."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints
from kair_engine.whatif.pipeline_rows import COMMUNICATION, OPTIMIZER, TRANSFERS, TYPES, PipelineRows
from kair_engine.whatif.pipeline_times import PipelineTimes
from kair_engine.whatif.replay import Graph, replay

_LANES = ("compute", "data-parallel communication", *TRANSFERS)
CRITICAL = "critical path"
"""A lane of its own, at the top of each timeline."""


def timeline(times: PipelineTimes, rank_of: dict[tuple[int, int], int]) -> dict[str, Any]:
    """Trace events, µs: processes are ranks, first the job as recorded (without launch delays), then the ideal one."""
    rows, graph = times.rows, times.model.graph
    events: list[dict[str, Any]] = []
    for number, (title, durations) in enumerate((("recorded", times.own_ns), ("ideal", times.ideal_ns))):
        end = replay(times.order, durations[:, None])[:, 0]
        start = starts(graph, end)
        offset = _step_offsets(rows, end)
        lanes = _Timeline(
            rows=rows,
            rank_of=rank_of,
            title=title,
            first=number * (max(rank_of.values(), default=0) + 2),
            start_ns=start + offset[rows.step],
            end_ns=end + offset[rows.step],
        )
        events += lanes.names()
        events += lanes.operations()
        events += lanes.critical(critical_path(times, start, end))
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def starts(graph: Graph, end: Floats) -> Floats:
    """When each node begins: when the last one before it ended."""
    result = np.full(graph.nodes, -np.inf)
    np.maximum.at(result, graph.after, end[graph.before])
    return np.where(np.isinf(result), 0.0, result)


def critical_path(times: PipelineTimes, start: Floats, end: Floats) -> Bools:
    """The operations that each step's length is made of: back from its last one, to what each waited for."""
    rows, graph = times.rows, times.model.graph
    order = np.lexsort((end[graph.before], graph.after))
    last_before = np.full(graph.nodes, NONE)
    last_before[graph.after[order]] = graph.before[order]
    latest = _latest_members(graph, start)
    critical = np.zeros(len(rows), dtype=bool)
    closing = rows.of_type(OPTIMIZER)
    closing = closing if len(closing) else np.arange(len(rows))
    for step in range(len(rows.steps)):
        own = closing[rows.step[closing] == step]
        node = int(own[np.argmax(np.nan_to_num(end[own], nan=-np.inf))]) if len(own) else NONE
        while node != NONE and not critical[node]:
            critical[node] = True
            if graph.group[node] != NONE:
                node = int(latest[graph.group[node]])
                critical[node] = True
            node = int(last_before[node])
    return critical


def _latest_members(graph: Graph, start: Floats) -> Ints:
    """Per communication the member that began last."""
    members = np.flatnonzero(graph.group != NONE)
    order = members[np.lexsort((start[members], graph.group[members]))]
    result = np.full(int(graph.group.max(initial=NONE)) + 1, NONE)
    result[graph.group[order]] = order
    return result


def _step_offsets(rows: PipelineRows, end: Floats) -> Floats:
    """When each step begins if one follows the other."""
    length = np.zeros(len(rows.steps))
    known = ~np.isnan(end)
    np.maximum.at(length, rows.step[known], end[known])
    return np.concatenate(([0.0], np.cumsum(length)))


@dataclass(frozen=True)
class _Timeline:
    rows: PipelineRows
    rank_of: dict[tuple[int, int], int]
    title: str
    first: int
    """The process number of rank 0."""
    start_ns: Floats
    end_ns: Floats

    def names(self) -> Iterator[dict[str, Any]]:
        for (dp, stage), rank in sorted(self.rank_of.items(), key=lambda item: item[1]):
            pid, name = self.first + rank, f"{self.title}: rank {rank} (dp {dp}, stage {stage})"
            yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
            yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
            for lane, text in enumerate((CRITICAL, *_LANES)):
                yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": lane, "args": {"name": text}}

    def operations(self) -> Iterator[dict[str, Any]]:
        for at in np.flatnonzero(~np.isnan(self.end_ns)).tolist():
            name = TYPES[self.rows.type[at]]
            lane = name if name in TRANSFERS else _LANES[1] if name in COMMUNICATION else _LANES[0]
            yield self._event(at, 1 + _LANES.index(lane))

    def critical(self, critical: Bools) -> Iterator[dict[str, Any]]:
        for at in np.flatnonzero(critical & ~np.isnan(self.end_ns)).tolist():
            yield self._event(at, 0)

    def _event(self, at: int, lane: int) -> dict[str, Any]:
        rows = self.rows
        return {
            "ph": "X",
            "name": TYPES[rows.type[at]],
            "pid": self.first + self.rank_of[int(rows.dp[at]), int(rows.stage[at])],
            "tid": lane,
            "ts": round(float(self.start_ns[at]) / 1e3, 3),
            "dur": round(float(self.end_ns[at] - self.start_ns[at]) / 1e3, 3),
            "args": {"step": rows.steps[rows.step[at]], "microbatch": int(rows.microbatch[at])},
        }
