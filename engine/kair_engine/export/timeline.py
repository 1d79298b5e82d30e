"""One timeline of all ranks on the job's clock: a slice for every operation, marks, and arrows along blame."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

import numpy as np

from kair_engine.arrays import NONE, Floats, Ints
from kair_engine.results.blame import BlamePath, PathNode
from kair_engine.results.triage import Finding
from kair_engine.timeline.synchronisation import synchronise
from kair_engine.trace.hosts import host_of
from kair_engine.trace.model import Trace
from kair_engine.trace.operations import KIND_NAMES, PHASE_NAMES, SCOPE, STEP_SCOPE, Operations
from kair_engine.trace.steps.loading import each_step

CLOCK_STEPS: Final = 8
"""The clocks' offsets are medians over so many steps: one offset for a rank, or its steps would overlap."""

MarkKind = Literal["step", "finding"]


@dataclass(frozen=True)
class Track:
    """A row of a rank; sub-rows hold what overlaps without lying within."""

    number: int
    rank: int
    name: str
    order: int
    """Among the rows of its rank."""


@dataclass(frozen=True)
class Process:
    """A rank, with all its rows."""

    rank: int
    name: str


@dataclass(frozen=True)
class Slice:
    """One operation. Times in ns since the first step's begin; slices of a track nest."""

    track: int
    name: str
    kind: str
    start_ns: int
    duration_ns: int
    step: int
    phase: str | None
    leaves: tuple[int, ...] = ()
    """Numbers of the arrows that begin here."""
    enters: tuple[int, ...] = ()
    """Of those that end here."""


@dataclass(frozen=True)
class Mark:
    """A moment of a rank: where a step begins, or where a finding is seen."""

    rank: int
    kind: MarkKind
    name: str
    time_ns: int
    step: int


Item = Process | Track | Slice | Mark


def timeline(trace: Trace, findings: Sequence[Finding] = (), paths: Sequence[BlamePath] = ()) -> Iterator[Item]:
    """All ranks, then step by step their slices and marks; a track comes before its first slice.

    An arrow leads from each stop of a blame path to the next one that it made late.
    """
    for rank in trace.job.ranks:
        host = host_of(trace.job, rank)
        yield Process(rank, f"rank {rank}" + (f" ({host})" if host is not None else ""))
    offset = _offsets(trace)
    rows, arrows, origin = _Rows(), _Arrows(paths), None
    for ops in each_step(trace):
        shift = offset[np.searchsorted(np.array(trace.job.ranks), ops.ranks)]
        if origin is None:
            first = np.r_[ops.begin_ns - shift, ops.start_ns - shift[ops.rank]].min()
            origin = ops.origin_ns + int(np.floor(first))
        begins = np.rint(ops.begin_ns - shift).astype(np.int64) + (ops.origin_ns - origin)
        yield from _marks(ops, begins, findings)
        yield from _slices(ops, shift, ops.origin_ns - origin, rows, arrows)


def _offsets(trace: Trace) -> Floats:
    """Per rank of the job, how far its clock is ahead, in ns."""
    some = trace.steps[:: max(len(trace.steps) // CLOCK_STEPS, 1)][:CLOCK_STEPS]
    seen = np.full((len(some), len(trace.job.ranks)), np.nan)
    for at, ops in enumerate(each_step(trace.select(some))):
        seen[at, np.searchsorted(np.array(trace.job.ranks), ops.ranks)] = synchronise(ops).clocks.offset_ns
    known = ~np.isnan(seen).all(axis=0)
    result = np.zeros(len(trace.job.ranks))
    result[known] = np.nanmedian(seen[:, known], axis=0)
    return result


def _marks(ops: Operations, begins: Ints, findings: Sequence[Finding]) -> Iterator[Mark]:
    for rank, begin in zip(ops.ranks.tolist(), begins.tolist(), strict=True):
        yield Mark(rank, "step", f"step {ops.step}", begin, ops.step)
        for finding in findings:
            if rank in (finding.ranks or finding.seen_on) and ops.step in finding.steps:
                operator = f" in {finding.operator}" if finding.operator else ""
                yield Mark(rank, "finding", f"finding: {finding.cause}{operator}", begin, ops.step)


class _Rows:
    """The tracks: each holds slices that nest. Where operations of a lane cross, the later one goes to a sub-row."""

    def __init__(self) -> None:
        self._open: dict[tuple[int, str], list[tuple[int, list[int]]]] = {}
        """(rank, lane) → of each of its tracks the number, and the ends of the slices under way, the innermost last."""
        self.tracks = 0

    def place(self, rank: int, lane: str, start: int, end: int) -> tuple[int, Track | None]:
        """(the track of a slice, the same if it is new); slices of a lane come by their begin, longer ones first."""
        known = self._open.setdefault((rank, lane), [])
        for number, ends in known:
            while ends and ends[-1] <= start:
                ends.pop()
            if not ends or end <= ends[-1]:
                ends.append(end)
                return number, None
        self.tracks += 1
        known.append((self.tracks, [end]))
        name = lane if len(known) == 1 else f"{lane} ({len(known)})"
        of_streams = 1_000_000 if lane.startswith("stream ") else 0
        return self.tracks, Track(self.tracks, rank, name, of_streams + self.tracks)


class _Arrows:
    """Arrows along blame paths, by the operations between which they lead."""

    def __init__(self, paths: Iterable[BlamePath]) -> None:
        self._of_step: dict[int, list[tuple[PathNode, PathNode, int]]] = {}
        number = 0
        for path in paths:
            stops = (path.symptom, *path.chain)
            # A path is told from the symptom back: time runs the other way.
            for later, earlier in pairwise(stops):
                if (later.rank, later.operator, later.start_us) != (earlier.rank, earlier.operator, earlier.start_us):
                    number += 1
                    self._of_step.setdefault(path.step, []).append((earlier, later, number))

    def of(self, ops: Operations) -> tuple[Mapping[int, list[int]], Mapping[int, list[int]]]:
        """(row → arrows that begin there, row → arrows that end there); both ends have to be operations."""
        leaves: dict[int, list[int]] = {}
        enters: dict[int, list[int]] = {}
        for earlier, later, number in self._of_step.get(ops.step, ()):
            source, target = _row_of(ops, earlier), _row_of(ops, later)
            if NONE not in (source, target) and source != target:
                leaves.setdefault(source, []).append(number)
                enters.setdefault(target, []).append(number)
        return leaves, enters


def _row_of(ops: Operations, node: PathNode) -> int:
    """The row that a stop of a path stands for; a path counts from the rank's own begin of the step."""
    rank = int(np.searchsorted(ops.ranks, node.rank))
    codes = [code for code, name in ops.name_text.items() if name == node.operator]
    rows = np.flatnonzero((ops.rank == rank) & np.isin(ops.name, codes))
    if not len(rows):
        return NONE
    return int(rows[np.abs(ops.start_ns[rows] - ops.begin_ns[rank] - node.start_us * 1e3).argmin()])


def _slices(ops: Operations, shift: Floats, since: int, rows: _Rows, arrows: _Arrows) -> Iterator[Item]:
    """Of every operation but the steps themselves, lane by lane; parents before what lies in them."""
    steps = [code for code, name in ops.name_text.items() if name == STEP_SCOPE]
    shown = np.flatnonzero(~((ops.kind == SCOPE) & np.isin(ops.name, steps)))
    start = np.rint(ops.start_ns - shift[ops.rank]).astype(np.int64) + since
    order = shown[np.lexsort((-ops.duration_ns[shown], start[shown], ops.lane_key[shown]))]
    leaves, enters = arrows.of(ops)
    for row in order.tolist():
        rank, begin, length = int(ops.ranks[ops.rank[row]]), int(start[row]), int(ops.duration_ns[row])
        track, new = rows.place(rank, ops.lane_text[int(ops.lane[row])], begin, begin + length)
        if new is not None:
            yield new
        yield Slice(
            track,
            ops.operator(row),
            KIND_NAMES[ops.kind[row]],
            begin,
            length,
            ops.step,
            None if ops.phase[row] == NONE else PHASE_NAMES[ops.phase[row]],
            tuple(leaves.get(row, ())),
            tuple(enters.get(row, ())),
        )
