"""Draws both timelines of pipeline stages, recorded and ideal, as trace events."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kair_engine.arrays import Floats
from kair_engine.whatif.pipeline.rows import COMMUNICATION, TRANSFERS, TYPES, PipelineRows
from kair_engine.whatif.pipeline.times import PipelineTimes
from kair_engine.whatif.replay.critical_path import Piece, critical_path, starts, waits
from kair_engine.whatif.replay.trace_events import CRITICAL, Event, arrows, lane, process

_LANES = ("compute", "data-parallel communication", *TRANSFERS)


def pipeline_timeline(times: PipelineTimes, rank_of: dict[tuple[int, int], int]) -> Iterator[Event]:
    """Trace events, µs: processes are ranks, first the job as recorded (without launch delays), then the ideal one."""
    rows, graph = times.rows, times.graph
    drawn = 0
    for number, (title, durations) in enumerate((("recorded", times.own_ns), ("ideal", times.ideal_ns))):
        end = times.ends(durations)
        offset = _step_offsets(rows, end)
        lanes = _Timeline(
            rows=rows,
            rank_of=rank_of,
            title=title,
            first=number * (max(rank_of.values(), default=0) + 2),
            start_ns=starts(graph, end) + offset[rows.step],
            end_ns=end + offset[rows.step],
        )
        yield from lanes.names()
        yield from lanes.operations()
        for path in _critical(times, end):
            pieces = lanes.critical(path, offset)
            yield from pieces
            yield from arrows(pieces, first=drawn)
            drawn += len(pieces)


def _critical(times: PipelineTimes, end: Floats) -> Iterator[list[Piece]]:
    """Per step what its length is made of."""
    rows, graph = times.rows, times.graph
    of = waits(graph, end)
    closing = rows.closing()
    for step in range(len(rows.steps)):
        own = closing[(rows.step[closing] == step) & ~np.isnan(end[closing])]
        if len(own):
            yield critical_path(graph, of, end, int(own[np.argmax(end[own])]))


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

    def names(self) -> Iterator[Event]:
        for (dp, stage), rank in sorted(self.rank_of.items(), key=lambda item: item[1]):
            pid, name = self.first + rank, f"{self.title}: rank {rank} (dp {dp}, stage {stage})"
            yield from process(pid, name)
            for tid, text in enumerate((CRITICAL, *_LANES)):
                yield from lane(pid, tid, text)

    def operations(self) -> Iterator[Event]:
        for at in np.flatnonzero(~np.isnan(self.end_ns)).tolist():
            name = TYPES[self.rows.type[at]]
            row = name if name in TRANSFERS else _LANES[1] if name in COMMUNICATION else _LANES[0]
            yield self._event(at, 1 + _LANES.index(row), self.start_ns[at], self.end_ns[at])

    def critical(self, path: Sequence[Piece], offset: Floats) -> list[Event]:
        """The pieces of one step that take any time."""
        shift = offset[self.rows.step[path[0].node]]
        return [
            {**self._event(piece.node, 0, shift + piece.begin, shift + piece.end), "cat": "critical"}
            for piece in path
            if piece.end > piece.begin
        ]

    def _event(self, at: int, tid: int, start_ns: float, end_ns: float) -> Event:
        rows, begin = self.rows, round(float(start_ns) / 1e3, 3)
        return {
            "ph": "X",
            "name": TYPES[rows.type[at]],
            "pid": self.first + self.rank_of[int(rows.dp[at]), int(rows.stage[at])],
            "tid": tid,
            "ts": begin,
            "dur": round(round(float(end_ns) / 1e3, 3) - begin, 3),
            "args": {"step": rows.steps[rows.step[at]], "microbatch": int(rows.microbatch[at])},
        }
