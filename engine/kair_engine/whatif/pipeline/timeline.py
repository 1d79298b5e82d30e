"""Draws both timelines of pipeline stages, recorded and ideal, as trace events."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from kair_engine.arrays import NONE, Floats, Ints, dense
from kair_engine.trace.operations import SCOPE, Operations
from kair_engine.whatif.model import MovedStep
from kair_engine.whatif.pipeline.rows import COMMUNICATION, TRANSFERS, TYPES, PipelineRows, turns
from kair_engine.whatif.pipeline.times import PipelineTimes
from kair_engine.whatif.replay import Piece, critical_path, starts, waits
from kair_engine.whatif.trace_events import CRITICAL, Event, Slice, arrows, lane, process

_LANES = ("compute", "data-parallel communication", *TRANSFERS)


def _lane_of(name: str) -> int:
    """The number of a type's lane; above all of them is the critical path's."""
    return 1 + _LANES.index(name if name in TRANSFERS else _LANES[1] if name in COMMUNICATION else _LANES[0])


_LANE_OF_TYPE = np.array([_lane_of(name) for name in TYPES])


class _Args(msgspec.Struct, gc=False, frozen=True):
    step: int
    microbatch: int


def pipeline_timeline(times: PipelineTimes, rank_of: dict[tuple[int, int], int]) -> Iterator[Event | Slice]:
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


def moved_step(
    times: PipelineTimes, ops: Operations, rank_of: dict[tuple[int, int], int], durations: Floats
) -> MovedStep:
    """The one step of `times` with these durations of its rows; `ops` are the same step's operations.

    All ranks begin together, without launch delays, when the first of them began. Operations of types that the model
    does not know stay where they are.
    """
    rows, end = times.rows, times.ends(durations)
    begun = starts(times.graph, end)
    number = np.zeros((rows.dp_size, rows.pp_size), dtype=np.int64)
    for place, rank in rank_of.items():
        number[place] = rank
    known = np.full(max(ops.name_text, default=0) + 1, NONE)
    for code, text in ops.name_text.items():
        known[code] = TYPES.index(text) if text in TYPES else NONE
    kind = known[ops.name]
    shown = np.flatnonzero((kind != NONE) & (ops.kind != SCOPE))
    told = _in_turn(number[rows.dp, rows.stage], rows.type, rows.start_ns)
    asked = _in_turn(ops.ranks[ops.rank[shown]], kind[shown], ops.start_ns[shown])
    row_of = {key: row for row, key in enumerate(told)}
    of_row = np.array([row_of.get(key, NONE) for key in asked], dtype=np.int64)
    shown, of_row = shown[of_row != NONE], of_row[of_row != NONE]
    first = int(ops.start_ns[shown].min(initial=0)) if len(shown) else 0
    start, over = ops.start_ns.copy(), ops.end_ns.copy()
    start[shown], over[shown] = (np.rint(of[of_row]).astype(np.int64) + first for of in (begun, end))
    begin, last = ops.begin_ns.copy(), ops.begin_ns.copy()
    np.minimum.at(begin, ops.rank[shown], start[shown])
    np.maximum.at(last, ops.rank[shown], over[shown])
    return MovedStep(ops, start, over, begin, last - begin)


def _in_turn(rank: Ints, kind: Ints, start: Ints | Floats) -> list[tuple[int, int, int]]:
    """Of each row its rank, its type, and the how many-th of that type on that rank it is."""
    order = np.lexsort((start, kind, rank))
    family = dense(np.stack((rank, kind.astype(np.int64))))
    turn = np.empty(len(order), dtype=np.int64)
    turn[order] = turns(family[order])
    return list(zip(rank.tolist(), kind.tolist(), turn.tolist(), strict=True))


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

    def operations(self) -> Iterator[Slice]:
        at = np.flatnonzero(~np.isnan(self.end_ns))
        yield from self._events(at, _LANE_OF_TYPE[self.rows.type[at]], self.start_ns[at], self.end_ns[at])

    def critical(self, path: Sequence[Piece], offset: Floats) -> list[Event]:
        """The pieces of one step that take any time."""
        pieces = [piece for piece in path if piece.end > piece.begin]
        at = np.array([piece.node for piece in pieces], dtype=np.int64)
        begin, end = (np.array([getattr(piece, side) for piece in pieces]) for side in ("begin", "end"))
        shift = offset[self.rows.step[path[0].node]]
        events = self._events(at, np.zeros_like(at), shift + begin, shift + end)
        return [{**msgspec.structs.asdict(event), "cat": "critical"} for event in events]

    def _events(self, at: Ints, lanes: Ints, start_ns: Floats, end_ns: Floats) -> Iterator[Slice]:
        """Of these rows, in these lanes."""
        rows = self.rows
        begin = np.rint(start_ns)
        columns = (
            rows.type[at],
            self._process_of(at),
            lanes,
            begin / 1e3,
            (np.rint(end_ns) - begin) / 1e3,
            rows.step[at],
            rows.microbatch[at],
        )
        for kind, pid, tid, ts, took, step, microbatch in zip(*(column.tolist() for column in columns), strict=True):
            yield Slice("X", TYPES[kind], pid, tid, ts, took, _Args(rows.steps[step], microbatch))

    def _process_of(self, at: Ints) -> Ints:
        """The numbers of the processes that these rows are drawn in."""
        number = np.zeros((self.rows.dp_size, self.rows.pp_size), dtype=np.int64)
        for place, rank in self.rank_of.items():
            number[place] = self.first + rank
        return number[self.rows.dp[at], self.rows.stage[at]]
