"""Traces from small tables written by hand: one lane a line, its operations in order, times in µs.

    step 3: 0+100                                   every rank's step: begin and duration
    0-2 main | launch 1+2 ^7 | aten::mm 4+10        ranks 0, 1 and 2, their main thread
    2 gpu7   | gemm 5+30 ^7 | allreduce@dp#4 40+9   `^` correlation, `@` group, `#` its sequence number
    0 th2    | gc 50+5 :gc | fetch 60+5 :input /input       `:` kind, `/` phase
    1 step   | 2+98                                 this rank's own begin and duration

`=400` are the bytes that an operator is given. An operation's kind is, unless it is written: `collective` in a group,
`compute` on a stream (`gpu7`), and on a thread (`main`, `th2`) `host` where the trace has streams, else `compute`.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from kair_engine.trace.format import SCHEMA, STEP_SCOPE, write_fragment
from kair_engine.trace.loading import load_step
from kair_engine.trace.model import Job, Layout, StepTimes, Trace
from kair_engine.trace.operations import Operations

EPOCH_NS = 1_750_000_000_000_000_000
"""Times count from here, so that float64 would lose them if the engine let it."""

_LINE = re.compile(r"(?P<ranks>[\d,-]+) +(?P<lane>\w+) *\|(?P<operations>.*)")
_STEP = re.compile(r"step (\d+): (\S+)")
_OPERATION = re.compile(
    r"(?P<name>[^\s@#^]+)(@(?P<group>[^\s#]+))?(#(?P<seq>\d+))? (?P<start>[\d.]+)\+(?P<duration>[\d.]+)"
    r"(?P<marks>( [\^:/=]\S+)*)"
)


@dataclass(frozen=True)
class Row:
    """One operation; times in µs from the recording's begin."""

    rank: int
    lane: str
    name: str
    start: float
    duration: float
    step: int = 0
    kind: str | None = None
    phase: str | None = None
    group: str | None = None
    seq: int | None = None
    correlation: int | None = None
    size: int | None = None
    inputs: str | None = None
    """The dimensions of what it is given; without, one of as many as `size`."""


_PLAIN = pa.schema(
    [pa.field(one.name, one.type.value_type if pa.types.is_dictionary(one.type) else one.type) for one in SCHEMA]
)
"""The table's columns, texts as such."""

Spans = dict[tuple[int, int], tuple[float, float]]
"""(rank, step) → begin and duration of the step, in µs."""


def trace(
    folder: Path,
    table: str,
    *,
    shift: Mapping[int, float] | None = None,
    hosts: Mapping[int, str] | None = None,
    layout: Layout | None = None,
    apart: bool = False,
) -> Trace:
    """The trace that `table` describes; `shift` puts whole ranks' clocks forward, in µs.

    `apart` gives each rank a file of its own.
    """
    rows, spans = parse(table)
    return build(folder, rows, spans, shift=shift, hosts=hosts, layout=layout, apart=apart)


def operations(folder: Path, table: str, **how: Mapping[int, float]) -> Operations:
    """The arrays of the table's first step."""
    made = trace(folder, table, **how)
    return load_step(made, made.steps[0])


def parse(table: str) -> tuple[list[Row], Spans]:
    """The rows of a table, and each rank's steps."""
    step, rows = 0, []
    spans: Spans = {}
    of_all: dict[int, tuple[float, float]] = {}
    for line in filter(None, map(str.strip, table.splitlines())):
        if begins := _STEP.fullmatch(line):
            step = int(begins[1])
            of_all[step] = _span(begins[2])
            continue
        found = _LINE.fullmatch(line)
        assert found, f"not a line of a table: {line}"
        for rank in _ranks(found["ranks"]):
            spans.setdefault((rank, step), of_all.get(step, (0, 100)))
            if found["lane"] == "step":
                spans[rank, step] = _span(found["operations"].strip())
            else:
                rows += [_row(text, rank, found["lane"], step) for text in found["operations"].split("|")]
    return rows, spans


def build(
    folder: Path,
    rows: Iterable[Row],
    spans: Spans,
    *,
    shift: Mapping[int, float] | None = None,
    hosts: Mapping[int, str] | None = None,
    layout: Layout | None = None,
    apart: bool = False,
) -> Trace:
    """Writes a fragment of all ranks below `folder`, or one of each, and returns it as a trace."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = list(rows)
    on_device = any(row.lane.startswith("gpu") for row in rows)
    ranks = tuple(sorted({rank for rank, _ in spans}))
    of_step: dict[tuple[int, int], list[Row]] = {span: [] for span in spans}
    for row in rows:
        of_step[row.rank, row.step].append(row)
    fragments = []
    for number, together in enumerate([[rank] for rank in ranks] if apart else [ranks]):
        columns: list[dict[str, object]] = []
        for rank, step in sorted((span for span in spans if span[0] in together), key=lambda span: (span[1], span[0])):
            moved = (shift or {}).get(rank, 0.0)
            columns += _columns(of_step[rank, step], spans[rank, step], rank, step, moved, on_device)
        fragments.append(folder / f"ranks{number}.parquet")
        write_fragment(fragments[-1], [pa.Table.from_pylist(columns, schema=_PLAIN)], {})
    counts = {span: len(own) for span, own in of_step.items()}
    job = _job(folder, ranks, spans, counts, on_device, shift or {}, hosts or {}, layout)
    return Trace(job, tuple(fragments), job.steps)


def _row(text: str, rank: int, lane: str, step: int) -> Row:
    found = _OPERATION.fullmatch(text.strip())
    assert found, f"not an operation: {text}"
    row = Row(rank, lane, found["name"], float(found["start"]), float(found["duration"]), step)
    row = replace(row, group=found["group"], seq=int(found["seq"]) if found["seq"] else None)
    for mark in found["marks"].split():
        value = mark[1:]
        fields = {":": {"kind": value}, "/": {"phase": value}}
        number = "size" if mark[0] == "=" else "correlation"
        row = replace(row, **(fields.get(mark[0]) or {number: int(value)}))
    return row


def _span(text: str) -> tuple[float, float]:
    begin, duration = text.split("+")
    return float(begin), float(duration)


def _ranks(text: str) -> Iterable[int]:
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _lane(lane: str) -> str:
    if lane.startswith("gpu"):
        return f"stream {lane[3:]}"
    return f"thread {1 if lane == 'main' else int(lane.removeprefix('th'))}"


def _kind(row: Row, on_device: bool) -> str:
    if row.kind is not None:
        return row.kind
    if row.group is not None:
        return "collective"
    return "host" if on_device and not row.lane.startswith("gpu") else "compute"


def _ns(us: float) -> int:
    return round(us * 1000)


def _columns(
    rows: Sequence[Row], span: tuple[float, float], rank: int, step: int, shift: float, on_device: bool
) -> list[dict[str, object]]:
    """One step of one rank, as the readers write it: by lane and start, occurrences counted by start."""
    scope = Row(rank, "main", STEP_SCOPE, *span, step=step, kind="scope")
    seen: Counter[tuple[str, str, str | None]] = Counter()
    columns: list[dict[str, object]] = []
    for row in sorted((*rows, scope), key=lambda row: row.start):
        kind = _kind(row, on_device)
        which = (row.name, kind, row.phase)
        columns.append(
            {
                "step": step,
                "rank": rank,
                "lane": _lane(row.lane),
                "name": row.name,
                "kind": kind,
                "phase": row.phase,
                "occurrence": seen[which],
                "start_ns": EPOCH_NS + _ns(row.start) + _ns(shift),
                "duration_ns": _ns(row.duration),
                "group": row.group,
                "bytes": row.size,
                "inputs": None if row.size is None else row.inputs or str(row.size),
                "group_seq": row.seq,
                "correlation": row.correlation,
            }
        )
        seen[which] += 1
    columns.sort(key=lambda row: (row["lane"], row["start_ns"], -int(str(row["duration_ns"]))))
    return columns


def _job(
    folder: Path,
    ranks: tuple[int, ...],
    spans: Spans,
    counts: Mapping[tuple[int, int], int],
    on_device: bool,
    shift: Mapping[int, float],
    hosts: Mapping[int, str],
    layout: Layout | None,
) -> Job:
    cells = sorted(spans)
    begins = tuple(EPOCH_NS + _ns(spans[cell][0]) + _ns(shift.get(cell[0], 0)) for cell in cells)
    return Job(
        name=folder.name,
        source=str(folder),
        format="kineto",
        world_size=max(ranks) + 1,
        ranks=ranks,
        hosts=dict(hosts),
        layout=layout,
        device=None,
        has_device=on_device,
        absolute_time=True,
        steps=tuple(sorted({step for _, step in spans})),
        step_times=StepTimes(
            tuple(rank for rank, _ in cells),
            tuple(step for _, step in cells),
            begins,
            tuple(_ns(spans[cell][1]) for cell in cells),
            tuple(counts[cell] for cell in cells),
        ),
        operations=sum(counts.values()),
        warnings=(),
    )
