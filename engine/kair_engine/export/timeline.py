"""One timeline of all ranks on the job's clock: a slice for every operation, marks, and arrows along blame.

A timeline as Perfetto's own trace format, in protocol buffers: smaller than JSON, and times stay in ns.

Six small messages are written (perfetto/protos/perfetto/trace), which needs no library: Perfetto's own classes are
several MB and bring protobuf along. A test reads what is written with them.

A timeline as trace events in JSON, which Perfetto and chrome://tracing read.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Literal

import numpy as np

from kair_engine.arrays import NONE, Floats, Ints
from kair_engine.export.trace_events import Event, lane, process
from kair_engine.results.blame import BlamePath, PathNode
from kair_engine.results.triage import Finding
from kair_engine.timeline.clocks import synchronise
from kair_engine.trace.large_steps import each_part, large_steps, of_steps
from kair_engine.trace.model import Job, Trace, host_of
from kair_engine.trace.operations import KIND_NAMES, PHASE_NAMES, SCOPE, STEP_SCOPE, Operations
from kair_engine.whatif.model import TITLES, DrawnStep

CLOCK_STEPS: Final = 8
"""The clocks' offsets are medians over so many steps: one offset for a rank, or its steps would overlap."""

_CRITICAL: Final = "critical"
_PATH_ROW: Final = "critical path"
"""The first row of each process of what-if's timelines."""

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
    microbatch: int | None = None
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

    An arrow leads from each stop of a blame path to the next one that it made late. Of a step that is too large to be
    held some ranks come at a time.
    """
    for rank in trace.job.ranks:
        host = host_of(trace.job, rank)
        yield Process(rank, f"rank {rank}" + (f" ({host})" if host is not None else ""))
    offset, origin = _clock(trace)
    rows, arrows, large = _Rows(), _Arrows(paths), set(large_steps(trace))
    step, ends = None, _Ends({}, {})
    for ops in each_part(trace):
        if ops.step != step:
            step = ops.step
            ends = arrows.of(step, arrows.around(trace, step) if step in large else [ops])
        shift = offset[np.searchsorted(np.array(trace.job.ranks), ops.ranks)]
        begins = np.rint(ops.begin_ns - shift).astype(np.int64) + (ops.origin_ns - origin)
        yield from _marks(ops, begins, findings)
        yield from _slices(ops, shift, ops.origin_ns - origin, rows, ends)


def replayed_timelines(job: Job, steps: Iterable[DrawnStep]) -> Iterator[Item]:
    """Draw the timelines of what-if: a process for each rank in each of them, its critical path in a separate row.

    Arrows lead along the path from one rank to the next.
    """
    ranks, rows, arrows = np.array(job.ranks), _Rows(), 0
    first = {title: len(ranks) * number for number, title in enumerate(TITLES)}
    for title, number in first.items():
        for at, rank in enumerate(job.ranks):
            yield Process(number + at, f"{title}: rank {rank}{_where(job, rank)}")
    for one in steps:
        ops, process_of = one.ops, (first[one.title] + np.searchsorted(ranks, one.ops.ranks)).tolist()
        length = one.end_ns - one.start_ns
        for at in np.lexsort((-length, one.start_ns, ops.lane_key[one.rows])).tolist():
            row = int(one.rows[at])
            kind = KIND_NAMES[ops.kind[row]]
            yield from rows.slices(
                process_of[ops.rank[row]],
                ops.lane_text[int(ops.lane[row])],
                name=ops.operator(row),
                kind=f"{kind},{_CRITICAL}" if one.on_path[at] else kind,
                start_ns=int(one.start_ns[at]),
                duration_ns=int(length[at]),
                step=ops.step,
                phase=None if ops.phase[row] == NONE else PHASE_NAMES[ops.phase[row]],
                microbatch=None if one.microbatch is None or (of := int(one.microbatch[at])) == NONE else of,
            )
        leaps = [before.rank != after.rank for before, after in pairwise(one.path)]
        for at, (piece, enters, leaves) in enumerate(zip(one.path, [False, *leaps], [*leaps, False], strict=False)):
            yield from rows.slices(
                first[one.title] + int(np.searchsorted(ranks, piece.rank)),
                _PATH_ROW,
                name=piece.name,
                kind=_CRITICAL,
                start_ns=piece.begin_ns,
                duration_ns=piece.end_ns - piece.begin_ns,
                step=ops.step,
                phase=None,
                leaves=(arrows + at + 1,) if leaves else (),
                enters=(arrows + at,) if enters else (),
            )
        arrows += len(one.path)


def _where(job: Job, rank: int) -> str:
    host, layout = host_of(job, rank), job.layout
    known = [] if host is None else [host]
    if layout is not None and rank in layout.pipeline_stage and rank in layout.dp_rank:
        known += [f"dp {layout.dp_rank[rank]}", f"stage {layout.pipeline_stage[rank]}"]
    return f" ({', '.join(known)})" if known else ""


def _clock(trace: Trace) -> tuple[Floats, int]:
    """Per rank of the job, how far its clock is ahead, in ns; and when the first step begins, on the job's clock."""
    some = trace.steps[:: max(len(trace.steps) // CLOCK_STEPS, 1)][:CLOCK_STEPS]
    ranks = np.array(trace.job.ranks)
    seen = np.full((len(some), len(ranks)), np.nan)
    earliest: list[tuple[Ints, Ints]] = []
    steps = of_steps(
        trace.select(some),
        lambda ops: (ops.ranks, synchronise(ops), [_earliest(ops)]),
        _earliest,
        lambda step, looked: ((ops := step.operations()).ranks, synchronise(ops), looked),
    )
    for at, (of_step, found, begins) in enumerate(steps):
        seen[at, np.searchsorted(ranks, of_step)] = found.clocks.offset_ns
        earliest = earliest or begins
    known = ~np.isnan(seen).all(axis=0)
    offset = np.zeros(len(ranks))
    offset[known] = np.nanmedian(seen[:, known], axis=0)
    places, begin = (np.concatenate(of) for of in zip(*earliest, strict=True))
    low = int(begin.min())
    return offset, low + int(np.floor(((begin - low) - offset[np.searchsorted(ranks, places)]).min()))


def _earliest(ops: Operations) -> tuple[Ints, Ints]:
    """Return the ranks, and when the first operation of each begins, or its step, on its own clock."""
    begin = ops.begin_ns.copy()
    np.minimum.at(begin, ops.rank, ops.start_ns)
    return ops.ranks, begin + ops.origin_ns


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
        """Return (the track of a slice, the same if it is new); slices of a lane come by their begin, longer ones
        first.
        """
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
        order = 0 if lane == _PATH_ROW else of_streams + self.tracks
        return self.tracks, Track(self.tracks, rank, name, order)

    def slices(self, rank: int, lane: str, *, start_ns: int, duration_ns: int, **rest: Any) -> Iterator[Item]:  # noqa: ANN401
        """Draw a slice, behind its track where that is new."""
        track, new = self.place(rank, lane, start_ns, start_ns + duration_ns)
        if new is not None:
            yield new
        yield Slice(track, start_ns=start_ns, duration_ns=duration_ns, **rest)


class _Arrows:
    """Arrows along blame paths, by the operations between which they lead."""

    def __init__(self, paths: Iterable[BlamePath]) -> None:
        self._of_step: dict[int, list[tuple[PathNode, PathNode, int]]] = {}
        number = 0
        for path in paths:
            stops = (path.symptom, *path.chain)
            # A path runs from the symptom back, against time.
            for later, earlier in pairwise(stops):
                if (later.rank, later.operator, later.start_us) != (earlier.rank, earlier.operator, earlier.start_us):
                    number += 1
                    self._of_step.setdefault(path.step, []).append((earlier, later, number))

    def around(self, trace: Trace, step: int) -> Iterator[Operations]:
        """Return the step's operations on the ranks that the paths of the step lead through."""
        ranks = {node.rank for earlier, later, _ in self._of_step.get(step, ()) for node in (earlier, later)}
        return each_part(trace.select([step]).of_ranks(ranks)) if ranks else iter(())

    def of(self, step: int, parts: Iterable[Operations]) -> "_Ends":
        """Where the step's arrows begin and end; both ends have to be operations in `parts`."""
        arrows = self._of_step.get(step, ())
        nodes = [node for earlier, later, _ in arrows for node in (earlier, later)]
        places: list[_Place | None] = [None] * len(nodes)
        for ops in parts if nodes else ():
            places = [known or _place(ops, node) for known, node in zip(places, nodes, strict=True)]
        ends = _Ends({}, {})
        for source, target, (_, _, number) in zip(places[::2], places[1::2], arrows, strict=True):
            if source is not None and target is not None and source != target:
                ends.leaves.setdefault(source, []).append(number)
                ends.enters.setdefault(target, []).append(number)
        return ends


_Place = tuple[int, int]
"""A rank, and which of its operations of a step."""


@dataclass(frozen=True)
class _Ends:
    """The numbers of the arrows that begin at an operation, and of those that end there."""

    leaves: dict[_Place, list[int]]
    enters: dict[_Place, list[int]]


def _place(ops: Operations, node: PathNode) -> _Place | None:
    """Return the operation that a stop of a path stands for; a path counts from the rank's own begin of the step."""
    codes = [code for code, name in ops.name_text.items() if name == node.operator]
    for rank in np.flatnonzero(ops.ranks == node.rank).tolist():
        first, end = np.searchsorted(ops.rank, [rank, rank + 1]).tolist()
        rows = np.flatnonzero(np.isin(ops.name[first:end], codes))
        if len(rows):
            off = np.abs(ops.start_ns[first:end][rows] - ops.begin_ns[rank] - node.start_us * 1e3)
            return int(node.rank), int(rows[off.argmin()])
    return None


def _slices(ops: Operations, shift: Floats, since: int, rows: _Rows, ends: _Ends) -> Iterator[Item]:
    """Of every operation but the steps themselves, lane by lane; parents before what lies in them."""
    steps = [code for code, name in ops.name_text.items() if name == STEP_SCOPE]
    shown = np.flatnonzero(~((ops.kind == SCOPE) & np.isin(ops.name, steps)))
    start = np.rint(ops.start_ns - shift[ops.rank]).astype(np.int64) + since
    order = shown[np.lexsort((-ops.duration_ns[shown], start[shown], ops.lane_key[shown]))]
    first = np.searchsorted(ops.rank, np.arange(len(ops.ranks))).tolist()
    for row in order.tolist():
        at = int(ops.rank[row])
        rank = int(ops.ranks[at])
        place = (rank, row - first[at])
        yield from rows.slices(
            rank,
            ops.lane_text[int(ops.lane[row])],
            name=ops.operator(row),
            kind=KIND_NAMES[ops.kind[row]],
            start_ns=int(start[row]),
            duration_ns=int(ops.duration_ns[row]),
            step=ops.step,
            phase=None if ops.phase[row] == NONE else PHASE_NAMES[ops.phase[row]],
            leaves=tuple(ends.leaves.get(place, ())),
            enters=tuple(ends.enters.get(place, ())),
        )


_SEQUENCE: Final = 1
_CLEARED, _NEEDED = 1, 2
_BEGIN, _END, _INSTANT = 1, 2, 3
_EXPLICIT_ORDER: Final = 3
_RANKS, _TRACKS = 1, 1 << 32
"""Where the numbers of ranks' tracks begin, and those of their rows."""

_Opened = dict[int, list[tuple[int, tuple[int, ...]]]]
"""Track → of its slices under way the end, and the arrows that end there; the innermost last."""


def perfetto_packets(items: Iterable[Item]) -> Iterator[bytes]:
    """Packets of a trace one after another: concatenated they are the file."""
    names = _Names()
    yield _packet(_number(13, _CLEARED))
    opened: _Opened = {}
    for item in items:
        if isinstance(item, Process):
            of_process = _number(1, item.rank + 1) + _text(6, item.name)
            described = _number(1, _RANKS + item.rank) + _text(2, item.name) + _nested(3, of_process)
            yield _packet(_nested(60, described + _number(11, _EXPLICIT_ORDER) + _number(12, item.rank)))
        elif isinstance(item, Track):
            described = _number(1, _TRACKS + item.number) + _text(2, item.name) + _number(5, _RANKS + item.rank)
            yield _packet(_nested(60, described + _number(12, item.order)))
        elif isinstance(item, Mark):
            yield names.instant(item)
        else:
            yield from _ended(opened, item.track, item.start_ns)
            yield names.begin(item)
            opened.setdefault(item.track, []).append((item.start_ns + item.duration_ns, item.enters))
    for track in opened:
        yield from _ended(opened, track, None)


def _ended(opened: _Opened, track: int, by: int | None) -> Iterator[bytes]:
    """Yield the ends of a track's slices that are over by then, the innermost first."""
    ends = opened.get(track, [])
    while ends and (by is None or ends[-1][0] <= by):
        end, enters = ends.pop()
        # A member that waits begins before the one that it waits for: an arrow that ends with it leads on in time.
        event = _number(9, _END) + _number(11, _TRACKS + track) + b"".join(_fixed(48, number) for number in enters)
        yield _packet(_time(end) + _nested(11, event))


class _Names:
    """Names that repeat, written once each."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], int] = {}

    def begin(self, one: Slice) -> bytes:
        """Return the begin of a slice, with the arrows that leave it."""
        arrows = b"".join(_fixed(47, number) for number in one.leaves)
        event = _number(9, _BEGIN) + _number(11, _TRACKS + one.track) + arrows
        known = {"phase": one.phase, "microbatch": one.microbatch}
        return self._named(event, one.start_ns, one.kind, one.name, {"step": one.step, **known})

    def instant(self, one: Mark) -> bytes:
        """Return a mark, on the rank's own track."""
        event = _number(9, _INSTANT) + _number(11, _RANKS + one.rank)
        return self._named(event, one.time_ns, one.kind, one.name, {"step": one.step})

    def _named(self, event: bytes, time_ns: int, category: str, name: str, values: dict[str, Any]) -> bytes:
        """Write one event with its known values, after the names that it needs and that were not written yet."""
        values = {key: value for key, value in values.items() if value is not None}
        new = b""
        for field, text in ((1, category), (2, name), *((3, key) for key in values)):
            if (field, text) not in self._known:
                self._known[field, text] = len(self._known) + 1
                new += _nested(field, _number(1, self._known[field, text]) + _text(2, text))
        event += _number(3, self._known[1, category]) + _number(10, self._known[2, name])
        for key, value in values.items():
            written = _text(6, value) if isinstance(value, str) else _number(4, value)
            event += _nested(4, _number(1, self._known[3, key]) + written)
        interned = _nested(12, new) if new else b""
        return _packet(_time(time_ns) + _number(13, _NEEDED) + interned + _nested(11, event))


def _packet(content: bytes) -> bytes:
    return _nested(1, content + _number(10, _SEQUENCE))


def _time(value_ns: int) -> bytes:
    """Return the format knows no time before zero, where the first step begins: a clock that jumps back stays there."""
    return _number(8, max(value_ns, 0))


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _fixed(field: int, value: int) -> bytes:
    return _varint(field << 3 | 1) + value.to_bytes(8, "little")


def _text(field: int, value: str) -> bytes:
    return _nested(field, value.encode("utf-8", "replace"))


def _nested(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    result = bytearray()
    while value > 0x7F:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    result.append(value)
    return bytes(result)


def chrome_events(items: Iterable[Item]) -> Iterator[Event]:
    """Events one after another; times in µs."""
    rank_of: dict[int, int] = {}
    for item in items:
        if isinstance(item, Process):
            # Process 0 is the browser's own in chrome://tracing.
            yield from process(item.rank + 1, item.name)
        elif isinstance(item, Track):
            rank_of[item.number] = item.rank
            yield from _row(item)
        elif isinstance(item, Mark):
            place = {"pid": item.rank + 1, "tid": 0, "ts": item.time_ns / 1e3, "s": "p"}
            yield {"ph": "i", "name": item.name, "cat": item.kind, **place, "args": {"step": item.step}}
        else:
            yield from _slice(item, rank_of[item.track] + 1)


def _row(track: Track) -> list[Event]:
    """Names it, and puts streams below threads."""
    name, place = lane(track.rank + 1, track.number, track.name)
    return [name, place | {"args": {"sort_index": track.order}}]


def _slice(one: Slice, pid: int) -> Iterator[Event]:
    known = {"step": one.step, "phase": one.phase, "microbatch": one.microbatch}
    args = {name: value for name, value in known.items() if value is not None}
    place = {"pid": pid, "tid": one.track, "ts": one.start_ns / 1e3}
    marked = {"cname": "terrible"} if one.kind.endswith(f",{_CRITICAL}") else {}
    yield {"ph": "X", "name": one.name, "cat": one.kind, **place, "dur": one.duration_ns / 1e3, "args": args, **marked}
    arrow = dict.fromkeys(("name", "cat"), _CRITICAL if one.kind == _CRITICAL else "blame")
    for number in one.leaves:
        yield {"ph": "s", "id": number, **arrow, **place}
    for number in one.enters:
        # A member that waits begins before the one that it waits for: an arrow that ends with it leads on in time.
        over = {"ts": (one.start_ns + max(one.duration_ns - 1, 0)) / 1e3}
        yield {"ph": "f", "bp": "e", "id": number, **arrow, **place, **over}
