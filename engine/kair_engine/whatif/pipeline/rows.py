"""Reads the operations of a job whose recording tells pipeline stages and operation types (what-if traces)."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kair_engine.arrays import NONE, Bools, Codes, Floats, Ints, order_by, present
from kair_engine.errors import InputError, UsageError
from kair_engine.frozen import dataclass
from kair_engine.trace.columns import coded, filled
from kair_engine.trace.model import Trace
from kair_engine.trace.steps.step_batches import step_batches

FORWARD, BACKWARD = "forward-compute", "backward-compute"
FORWARD_BACKWARD = (FORWARD, BACKWARD)
TRANSFERS = ("forward-send", "forward-recv", "backward-send", "backward-recv")
SENDS = ("forward-send", "backward-send")
GATHER, SCATTER, SEPARATE = "params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce"
LAYERNORM, EMBEDDING = "layernorm-grads-all-reduce", "embedding-grads-all-reduce"
CLIP, OPTIMIZER, GARBAGE = "optimizer-clip-main-grad", "optimizer", "gc"
TYPES = (
    *(FORWARD, BACKWARD, *TRANSFERS, GATHER, SCATTER, SEPARATE),
    *(LAYERNORM, EMBEDDING, CLIP, OPTIMIZER, GARBAGE),
)
COMMUNICATION = frozenset((*TRANSFERS, GATHER, SCATTER, SEPARATE, LAYERNORM, EMBEDDING, CLIP))
"""Types whose ideal is the median; of all others it is the mean [W]."""

_AT_ONCE = 1 << 18
"""Operations that are read together; all at once would take half of the memory that the analysis needs."""
_FEW_PLACES = 1 << 13
_PLACES_A_WORKER = 64
"""Data-parallel ranks times stages, for each worker that left a recording."""
_COLUMNS = ("step", "rank", "start_ns", "duration_ns", "occurrence")
_CODED = ("kind", "name")
_KINDS = {
    **dict.fromkeys(("step", "worker_step"), np.int64),
    **dict.fromkeys(("dp", "stage", "type", "turn", "chunk", "microbatch"), np.int32),
    **dict.fromkeys(("start_ns", "end_ns"), np.float64),
}


@dataclass(frozen=True)
class PipelineRows:
    """Every operation of the chosen steps, sorted by worker-step, type, start.

    Times are ns from the begin of each operation's step. A worker is one pipeline stage of one data-parallel rank; a
    worker-step is one of its steps.
    """

    step: Ints
    """A code: a position in `steps`."""
    dp: Ints
    stage: Ints
    type: Ints
    """A position in TYPES."""
    turn: Ints
    """The n-th of its type in the worker-step."""
    chunk: Ints
    """Of the whole model (virtual stages counted in order); of gathers and scatters within the stage."""
    microbatch: Ints
    """NONE where the recording does not tell it."""
    start_ns: Floats
    end_ns: Floats
    worker_step: Ints
    steps: tuple[int, ...]
    dp_size: int
    pp_size: int
    unknown: tuple[str, ...]
    """Types that are none of TYPES; their operations are left out."""

    def __len__(self) -> int:
        return len(self.step)

    def chunk_of_stage(self, chosen: Ints) -> Ints:
        """Of the chosen rows the chunk within the stage."""
        chunk = self.chunk[chosen]
        computes = is_type(self.type[chosen], *FORWARD_BACKWARD)
        return np.where(computes & (chunk != NONE), chunk // self.pp_size, np.maximum(chunk, 0))

    def take(self, rows: slice | Ints) -> "PipelineRows":
        """Some of them."""
        changed: dict[str, Any] = {name: of[rows] for name, of in vars(self).items() if isinstance(of, np.ndarray)}
        return replace(self, **changed)

    def of_type(self, *names: str) -> Ints:
        """The rows of these types."""
        return np.flatnonzero(is_type(self.type, *names))

    def closing(self) -> Ints:
        """Those whose end is the step's: optimizers; everything of a data-parallel rank that recorded none."""
        cell = self.step * self.dp_size + self.dp
        optimizer = is_type(self.type, OPTIMIZER)
        has = np.bincount(cell[optimizer], minlength=int(cell.max(initial=NONE)) + 1) > 0
        return np.flatnonzero(optimizer | ~has[cell])


def is_type(code: Ints, *names: str) -> Bools:
    """Which of the codes stand for these types."""
    # Comparing with each is several times as fast as a look-up of every code.
    result = np.zeros(len(code), dtype=bool)
    for name in names:
        result |= code == TYPES.index(name)
    return result


def read_pipeline(trace: Trace) -> PipelineRows:
    """The chosen steps of a what-if trace. Raises UsageError where it tells no pipeline stages.

    InputError where its workers' numbers are those of far more.
    """
    layout = trace.job.layout
    if layout is None:
        raise UsageError("the recording does not tell which pipeline stage a rank belongs to")
    chosen, times = set(trace.steps), trace.job.step_times
    held = [at for at, step in enumerate(times.step) if step in chosen]
    stage_of, dp_of = (_lookup(of, {times.rank[at] for at in held}) for of in (layout.pipeline_stage, layout.dp_rank))
    _require_plausible(dp_of, stage_of, len({times.rank[at] for at in held}))
    # Made at their full size: joining parts would leave holes in memory as large as the parts.
    size, filled = sum(times.operations[at] for at in held), 0
    columns: dict[str, Any] = {name: np.empty(size, kind) for name, kind in _KINDS.items()}
    steps: list[int] = []
    unknown: set[str] = set()
    for batch in step_batches(trace, _AT_ONCE):
        read, of_batch = _read(trace, batch)
        unknown |= of_batch
        part = {name: values[filled : filled + len(read.rows)] for name, values in columns.items()}
        steps += _fill(part, read, len(steps), dp_of, stage_of)
        filled += len(read.rows)
    return PipelineRows(
        **{name: values[:filled] for name, values in columns.items()},
        steps=tuple(steps),
        dp_size=int(dp_of.max(initial=0)) + 1,
        pp_size=int(stage_of.max(initial=0)) + 1,
        unknown=tuple(sorted(unknown)),
    )


def _require_plausible(dp_of: Codes, stage_of: Codes, workers: int) -> None:
    """Each place is replayed, one without a worker too. Raises InputError where damaged numbers make far too many."""
    dp_size, pp_size = int(dp_of.max(initial=0)) + 1, int(stage_of.max(initial=0)) + 1
    if dp_size * pp_size > max(_FEW_PLACES, _PLACES_A_WORKER * workers):
        counted = f"{dp_size:,} data-parallel ranks and {pp_size:,} stages"
        raise InputError(f"the recording's {workers:,} workers are numbered as if there were {counted}")


@dataclass(frozen=True)
class _Read:
    """Columns as they were read, and which of their rows are operations of known types."""

    of: dict[str, Ints]
    rows: Ints


def _read(trace: Trace, steps: list[int]) -> tuple[_Read, set[str]]:
    """The operations of these steps, and the names of those of unknown types."""
    # Arrow hands over a dictionary's codes; a DataFrame takes four times as long for this.
    table = pa.concat_tables([_row_groups(fragment, steps) for fragment in trace.fragments])
    of = {name: filled(table[name]) for name in _COLUMNS}
    for name in ("chunk", "microbatch"):
        of[name] = np.maximum(filled(table[name]), NONE).astype(np.int32)
    kind, kinds = coded(table["kind"])
    code, names = coded(table["name"])
    of["type"] = np.array([TYPES.index(name) if name in TYPES else NONE for name in names], dtype=np.int32)[code]
    kept = np.isin(of["step"], steps) & np.array([name != "scope" for name in kinds])[kind]
    for step, ranks in trace.job.cut_off.items():
        kept &= (of["step"] != step) | ~np.isin(of["rank"], ranks)
    known = of["type"] != NONE
    unknown = {names[at] for at in present(code[kept & ~known]).tolist()}
    return _Read(of, np.flatnonzero(kept & known)), unknown


def _row_groups(fragment: Path, steps: list[int]) -> pa.Table:
    """Those that may hold some of the steps, which are in order."""
    file = pq.ParquetFile(fragment)
    at = file.schema_arrow.get_field_index("step")
    spans = [file.metadata.row_group(group).column(at).statistics for group in range(file.num_row_groups)]
    first = np.searchsorted(steps, [span.min for span in spans])
    past = np.searchsorted(steps, [span.max for span in spans], side="right")
    held = np.flatnonzero(first < past).tolist()
    return file.read_row_groups(held, [*_COLUMNS, *_CODED, "chunk", "microbatch"], use_threads=False)


def _numbered(step: Ints) -> tuple[list[int], Ints]:
    """The steps that occur, in order, and each row's place among them."""
    begins = np.flatnonzero(np.diff(step, prepend=NONE))
    numbers, place = np.unique(step[begins], return_inverse=True)
    return numbers.tolist(), np.repeat(place, np.diff(begins, append=len(step)))


def _fill(columns: dict[str, Any], read: _Read, first: int, dp_of: Codes, stage_of: Codes) -> list[int]:
    """Fills these parts of the columns of PipelineRows; the steps' numbers, which have the codes from `first` on."""
    of, rows = read.of, read.rows
    numbers, step = _numbered(of["step"][rows])
    rank = of["rank"][rows]
    dp, stage, kind, start = dp_of[rank], stage_of[rank], of["type"][rows], of["start_ns"][rows]
    dps, stages = int(dp_of.max(initial=0)) + 1, int(stage_of.max(initial=0)) + 1
    worker_step = ((step + first) * dps + dp) * stages + stage
    origin = np.full(len(numbers), np.iinfo(np.int64).max)
    np.minimum.at(origin, step, start)
    # The table has the operations of a type of a worker-step in the order of their starts.
    order = order_by(worker_step, kind)
    by_worker: dict[str, Any] = {"step": step + first, "dp": dp, "stage": stage, "type": kind}
    by_worker |= {"worker_step": worker_step, "start_ns": (start - origin[step]).astype(float)}
    for name, values in by_worker.items():
        # In place only where nothing is checked.
        np.take(values, order, out=columns[name], mode="clip")
    order = rows[order]
    for name, column in (("turn", "occurrence"), ("chunk", "chunk"), ("microbatch", "microbatch")):
        np.take(of[column], order, out=columns[name], mode="clip")
    np.add(columns["start_ns"], of["duration_ns"][order], out=columns["end_ns"])
    # Without virtual stages a recording need not tell the chunk: it is the stage.
    untold = (columns["chunk"] == NONE) & is_type(columns["type"], *FORWARD_BACKWARD)
    np.copyto(columns["chunk"], columns["stage"], where=untold)
    return numbers


def _lookup(of_rank: dict[int, int], ranks: Collection[int]) -> Codes:
    result = np.zeros(max(ranks, default=0) + 1, dtype=np.int32)
    for rank in ranks:
        result[rank] = of_rank.get(rank, 0)
    return result
