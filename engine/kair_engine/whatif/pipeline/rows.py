"""Reads the operations of a job whose recording has pipeline stages and operation types (what-if traces).

Chooses operations for a scenario, by what they are and not by when they ran.

Extracts the recorded order of a pipeline job: what of its times decides who waits for whom.

Pairs the forward and the backward computation of each microbatch.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kair_engine.arrays import NONE, Bools, Codes, Floats, Ints, dense, order_by, present, whole_parts
from kair_engine.errors import InputError, UsageError
from kair_engine.frozen import dataclass
from kair_engine.trace.batches import step_batches
from kair_engine.trace.columns import coded, filled
from kair_engine.trace.model import Trace

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
    """NONE where the recording does not have it."""
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
        """Return some of them."""
        changed: dict[str, Any] = {name: of[rows] for name, of in vars(self).items() if isinstance(of, np.ndarray)}
        return replace(self, **changed)

    def of_type(self, *names: str) -> Ints:
        """Return the rows of these types."""
        return np.flatnonzero(is_type(self.type, *names))

    def ranks(self, rank_of: Mapping[tuple[int, int], int]) -> Ints:
        """Return the rank of each row, by its data-parallel rank and stage; NONE where nobody has that place."""
        ranks = np.full((self.dp_size, self.pp_size), NONE, dtype=np.int64)
        for place, rank in rank_of.items():
            ranks[place] = rank
        return np.asarray(ranks[self.dp, self.stage])

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
    """Return the chosen steps of a what-if trace.

    Raises UsageError if it has no pipeline stages, InputError if its workers' numbers are those of far more.
    """
    layout = trace.job.layout
    if layout is None:
        raise UsageError("the recording does not say which pipeline stage a rank belongs to")
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
        of, rows, of_batch = _read(trace, batch)
        unknown |= of_batch
        part = {name: values[filled : filled + len(rows)] for name, values in columns.items()}
        steps += _fill(part, of, rows, len(steps), dp_of, stage_of)
        filled += len(rows)
        del of, rows, part  # or they are still there while the next ones are read
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


def _read(trace: Trace, steps: list[int]) -> tuple[dict[str, Ints], Ints, set[str]]:
    """(columns of these steps, their rows that are operations of known types, the names of those of unknown ones)."""
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
    return of, np.flatnonzero(kept & known), unknown


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
    """Return the steps that occur, in order, and each row's place among them."""
    begins = np.flatnonzero(np.diff(step, prepend=NONE))
    numbers, place = np.unique(step[begins], return_inverse=True)
    return numbers.tolist(), np.repeat(place, np.diff(begins, append=len(step)))


def _fill(  # noqa: PLR0917 (one call)
    columns: dict[str, Any], of: dict[str, Ints], rows: Ints, first: int, dp_of: Codes, stage_of: Codes
) -> list[int]:
    """Fill these parts of the columns of PipelineRows; the steps' numbers, which have the codes from `first` on."""
    numbers, step = _numbered(of["step"][rows])
    rank = of["rank"][rows]
    dp, stage, kind, start = dp_of[rank], stage_of[rank], of["type"][rows], of["start_ns"][rows]
    dps, stages = int(dp_of.max(initial=0)) + 1, int(stage_of.max(initial=0)) + 1
    worker_step = ((step + first) * dps + dp) * stages + stage
    origin = np.full(len(numbers), np.iinfo(np.int64).max)
    np.minimum.at(origin, step, start)
    # The table has the operations of a type of a worker-step in the order of their starts.
    order: Ints = order_by(worker_step, kind)
    by_worker: dict[str, Any] = {"step": step + first, "dp": dp, "stage": stage, "type": kind}
    by_worker |= {"worker_step": worker_step, "start_ns": (start - origin[step]).astype(float)}
    for name, values in by_worker.items():
        # In place only where nothing is checked.
        np.take(values, order, out=columns[name], mode="clip")
    order = rows[order]
    for name, column in (("turn", "occurrence"), ("chunk", "chunk"), ("microbatch", "microbatch")):
        np.take(of[column], order, out=columns[name], mode="clip")
    np.add(columns["start_ns"], of["duration_ns"][order], out=columns["end_ns"])
    # Without virtual stages a recording need not name the chunk: it is the stage.
    untold = (columns["chunk"] == NONE) & is_type(columns["type"], *FORWARD_BACKWARD)
    np.copyto(columns["chunk"], columns["stage"], where=untold)
    return numbers


def _lookup(of_rank: dict[int, int], ranks: Collection[int]) -> Codes:
    result = np.zeros(max(ranks, default=0) + 1, dtype=np.int32)
    for rank in ranks:
        result[rank] = of_rank.get(rank, 0)
    return result


Choice = Callable[[PipelineRows], Bools]
"""A mask over rows, by all that alike steps have in common: dp rank, stage, type and turn."""
_MERGED = {
    **dict.fromkeys(TRANSFERS[:2], "forward-pp-comm"),
    **dict.fromkeys(TRANSFERS[2:], "backward-pp-comm"),
}


def everything(rows: PipelineRows) -> Bools:
    """All operations."""
    return np.ones(len(rows), dtype=bool)


def first_operations(rows: PipelineRows) -> Bools:
    """Return what a step begins with: the first stage's first forward computation, the other stages' first receive."""
    computes = (rows.type == TYPES.index(FORWARD)) & (rows.stage == 0)
    receives = (rows.type == TYPES.index("forward-recv")) & (rows.stage > 0)
    return np.asarray((computes | receives) & (rows.turn == 0))


def of_stage(stage: int) -> Choice:
    """Those of a pipeline stage."""
    return lambda rows: rows.stage == stage


def of_dp_rank(dp: int) -> Choice:
    """Those of a data-parallel rank."""
    return lambda rows: rows.dp == dp


def of_types(rows: PipelineRows) -> dict[str, Choice]:
    """Operation type → those of it; sends and receives of one direction count together [W]."""
    names = dict.fromkeys(_MERGED.get(TYPES[code], TYPES[code]) for code in np.flatnonzero(np.bincount(rows.type)))
    return {name: _of_type(name) for name in names}


def both(one: Choice, other: Choice) -> Choice:
    """Those that both choose."""
    return lambda rows: one(rows) & other(rows)


def all_but(choice: Choice) -> Choice:
    """Those that it does not choose."""
    return lambda rows: ~choice(rows)


def _of_type(name: str) -> Choice:
    chosen = np.array([_MERGED.get(one, one) == name for one in TYPES])
    return lambda rows: chosen[rows.type]


CLOCK_NS = 50_000.0
"""Clocks agree within this: a transfer that begins later than the last computation of its kind belongs to none."""
_ORDERED_AT_ONCE = 1 << 18
"""Operations."""


@dataclass(frozen=True)
class RecordedOrder:
    """Per row what its worker-step's order says of it."""

    turn: Codes
    """Of computations the how many-th to start, of gathers and scatters too; of others 0."""
    launched: Bools
    """Of transfers whether a computation of their direction can belong to them: the profiler records more."""
    last: Bools
    """The computation that ends last."""
    last_of_chunk: Bools
    """The backward computation that ends last of its chunk."""

    def take(self, rows: slice | Ints) -> "RecordedOrder":
        """Of some of them."""
        return RecordedOrder(self.turn[rows], self.launched[rows], self.last[rows], self.last_of_chunk[rows])


def recorded_order(rows: PipelineRows) -> RecordedOrder:
    """Of every row."""
    result = RecordedOrder(np.zeros(len(rows), dtype=np.int32), *(np.zeros(len(rows), dtype=bool) for _ in range(3)))
    begins = np.searchsorted(rows.step, np.arange(len(rows.steps) + 1))
    # Few steps at a time need little memory.
    for first, last in whole_parts(begins, _ORDERED_AT_ONCE):
        own = slice(begins[first], begins[last])
        _find(rows.take(own), result.take(own))
    return result


def _find(rows: PipelineRows, order: RecordedOrder) -> None:
    for names in (FORWARD_BACKWARD, (GATHER, SCATTER)):
        chosen = rows.of_type(*names)
        by_start = chosen[order_by(rows.worker_step[chosen], rows.start_ns[chosen].astype(np.int64), rows.turn[chosen])]
        order.turn[by_start] = turns(rows.worker_step[by_start])
    workers = int(rows.worker_step.max(initial=NONE)) + 1
    for name, (send, receive) in zip(FORWARD_BACKWARD, (TRANSFERS[:2], TRANSFERS[2:]), strict=True):
        computes, sends, receives = rows.of_type(name), rows.of_type(send), rows.of_type(receive)
        of = rows.worker_step[computes]
        last_start, first_end = np.full(workers, -np.inf), np.full(workers, np.inf)
        np.maximum.at(last_start, of, rows.start_ns[computes])
        np.minimum.at(first_end, of, rows.end_ns[computes])
        order.launched[sends] = rows.end_ns[sends] >= first_end[rows.worker_step[sends]] - CLOCK_NS
        order.launched[receives] = rows.start_ns[receives] <= last_start[rows.worker_step[receives]] + CLOCK_NS
    computes, backwards = rows.of_type(*FORWARD_BACKWARD), rows.of_type(BACKWARD)
    order.last[_last_to_end(rows, computes, rows.worker_step[computes])] = True
    chunk = rows.chunk_of_stage(backwards)
    of_chunk = rows.worker_step[backwards] * (int(chunk.max(initial=0)) + 1) + chunk
    order.last_of_chunk[_last_to_end(rows, backwards, of_chunk)] = True


def _last_to_end(rows: PipelineRows, chosen: Ints, of: Ints) -> Ints:
    """Of each the row that ends last; of equal ones the last."""
    end = rows.end_ns[chosen]
    latest = np.full(int(of.max(initial=NONE)) + 1, -np.inf)
    np.maximum.at(latest, of, end)
    at = end == latest[of]
    result = np.full(len(latest), NONE)
    # The last of those written stays.
    result[of[at]] = chosen[at]
    return np.asarray(result[result != NONE])


def turns(worker_step: Ints) -> Ints:
    """Return the place of each within its run of equal ones."""
    begins = np.flatnonzero(np.diff(worker_step, prepend=NONE))
    return np.arange(len(worker_step)) - np.repeat(begins, np.diff(begins, append=len(worker_step)))


@dataclass(frozen=True)
class Microbatches:
    """Per microbatch of a chunk on a worker-step the rows of its computations; NONE for what is not recorded."""

    forward: Ints
    backward: Ints


def microbatches(rows: PipelineRows) -> Microbatches:
    """In the order of worker-steps, chunks and numbers."""
    computes = rows.of_type(*FORWARD_BACKWARD)
    batch = dense(np.stack((rows.worker_step[computes], rows.chunk[computes], numbers(rows, computes))))
    row = np.full((2, int(batch.max(initial=NONE)) + 1), NONE)
    # Backwards, so that the first of several stays.
    back = is_type(rows.type[computes], BACKWARD).astype(np.int64)
    row[back[::-1], batch[::-1]] = computes[::-1]
    return Microbatches(row[0], row[1])


def numbers(rows: PipelineRows, computes: Ints) -> Ints:
    """Return the number of each computation's microbatch; its turn if the recording has no number."""
    return np.where(rows.microbatch[computes] == NONE, rows.turn[computes], rows.microbatch[computes])


def forward_backward(rows: PipelineRows, of: Microbatches, own_ns: Floats) -> tuple[float | None, float | None]:
    """Correlation of forward and backward time per microbatch, and the forward's variation: medians over workers."""
    both = (of.forward != NONE) & (of.backward != NONE)
    f, b = of.forward[both], of.backward[both]
    worker = rows.dp[f] * rows.pp_size + rows.stage[f]
    count = np.maximum(np.bincount(worker), 1)

    def mean(values: Floats) -> Floats:
        return np.asarray(np.bincount(worker, weights=values) / count)

    x, y = own_ns[f], own_ns[b]
    mean_x = mean(x)
    x, y = x - mean_x[worker], y - mean(y)[worker]
    deviation_x, deviation_y = np.sqrt(mean(x * x)), np.sqrt(mean(y * y))
    known = (count > 2) & (deviation_x > 0) & (deviation_y > 0)
    if not known.any():
        return None, None
    correlations = mean(x * y)[known] / (deviation_x * deviation_y)[known]
    return float(np.median(correlations)), float(np.median((deviation_x / np.maximum(mean_x, 1e-9))[known]))
