"""Reads what-if traces (the ByteDance StragglerAnalysis format): all workers of a job in one Parquet file.

A worker is one (dp rank, pipeline stage); its rank is the first of the ranks it stands for. Times are float32 seconds
from each step's own zero, so steps are laid end to end on one clock.

Columns are read and checked, and times converted to whole nanoseconds.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from kair_engine.arrays import order_by, whole_parts
from kair_engine.errors import InputError
from kair_engine.readers.formats import NotATraceError
from kair_engine.readers.paths import MAX_RANKS, read_sizes
from kair_engine.trace.columns import Int64s, Integers, dictionary, filled, nullable, numbers, occurrences
from kair_engine.trace.format import KINDS, PHASES, SCHEMA, STEP_SCOPE, STREAM_PREFIX, FragmentWriter
from kair_engine.trace.model import FragmentInfo, KairWarning, Layout, StepTimes, short_warning

COLUMNS: Final = (
    "dp_rank",
    "stage",
    "rank",
    "step",
    "optype",
    "start_ts",
    "duration",
    "seq_id",
    "mc",
    "gmc",
    "mb_id",
)
_REQUIRED: Final = frozenset(COLUMNS) - {"mc", "gmc", "mb_id"}
_INTEGERS: Final = ("dp_rank", "stage", "rank", "step", "seq_id", "mc", "gmc", "mb_id")
_MAX_SECONDS: Final = 1e9
Int32s = npt.NDArray[np.int32]
_MAX_NUMBER: Final = 1_000_000
"""Larger numbers of chunks and microbatches count as absent."""


@dataclass
class WhatifOperations:
    """The valid rows as columns; times in ns from each step's zero, -1 for absent."""

    dp_rank: Int32s
    stage: Int32s
    rank: Int32s
    step: Int32s
    operator: Int32s
    start: Int64s
    duration: Int64s
    seq_id: Int32s
    mc: Int32s
    gmc: Int32s
    mb_id: Int32s

    def __len__(self) -> int:
        return len(self.rank)

    def take(self, rows: npt.NDArray[Any] | slice) -> "WhatifOperations":
        """Return the rows that a mask, an index or a slice selects."""
        return WhatifOperations(**{name: values[rows] for name, values in vars(self).items()})


def read_operations(source: Path) -> tuple[list[str], WhatifOperations, int]:
    """Return the operator names, the valid rows, and the number of rows without a valid time or identity.

    Raises NotATraceError if the file has other columns, InputError if it is damaged.
    """
    try:
        # Column by column, so that the whole table and its converted copy are never in memory together.
        file = pq.ParquetFile(source)
        schema = file.schema_arrow
        missing = ", ".join(sorted(_REQUIRED - set(schema.names)))
        if missing:
            text = f"{source.name} is a Parquet file without the columns of a what-if trace ({missing})"
            raise NotATraceError(text)
        # Arrow encodes a plain column's texts while reading them.
        file = pq.ParquetFile(source, read_dictionary=["optype"])
        operators, operator = _operator_column(file)
        columns = {name: _integer_column(file, schema, name) for name in _INTEGERS}
        start, start_valid = _time_column(file, "start_ts")
        duration, valid = _time_column(file, "duration")
    except OSError as error:
        # Arrow reports a corrupt page as an OSError too.
        raise InputError(f"cannot read {source.name}: {str(error).splitlines()[0]}") from error
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise InputError(f"{source.name} is damaged: {str(error).splitlines()[0]}") from error
    if {len(start), len(duration), *map(len, columns.values())} != {len(operator)}:
        # A damaged footer counts more or fewer rows than a column has.
        raise InputError(f"{source.name} is damaged: its columns are of different lengths")
    valid &= start_valid & (duration >= 0) & (columns["step"] >= 0) & (operator >= 0) & (operator < len(operators))
    for name in ("dp_rank", "stage", "rank"):
        valid &= (columns[name] >= 0) & (columns[name] < MAX_RANKS)
    for name in ("mc", "gmc", "mb_id"):
        columns[name][(columns[name] < 0) | (columns[name] >= _MAX_NUMBER)] = -1
    bad = len(valid) - int(np.count_nonzero(valid))
    operations = WhatifOperations(**columns, operator=operator, start=start, duration=duration)
    return operators, operations.take(valid) if bad else operations, bad


def _column(file: pq.ParquetFile, name: str, kind: pa.DataType) -> pa.ChunkedArray:
    """Return a column, unchanged or cast to `kind`. Raises InputError if it has another type."""
    column = file.read([name], use_threads=False)[name]
    try:
        # A cast, even to the same type, loads all of Arrow's functions, which takes 25 ms.
        return column if column.type == kind else column.cast(kind)
    except pa.ArrowException as error:
        raise InputError(f"a column of the what-if trace has another type: {error}") from error


def _operator_column(file: pq.ParquetFile) -> tuple[list[str], Int32s]:
    kind = file.schema_arrow.field("optype").type
    of_texts = pa.types.is_dictionary(kind) and kind.value_type in {pa.string(), pa.large_string()}
    column = _column(file, "optype", kind if of_texts else pa.string())
    column = (column if of_texts else column.dictionary_encode()).unify_dictionaries().combine_chunks()
    names = [name or "" for name in column.dictionary.to_pylist()]
    return names, filled(pa.chunked_array([column.indices])).astype(np.int32)


def _integer_column(file: pq.ParquetFile, schema: pa.Schema, name: str) -> Int32s:
    """Return a column of integers; values beyond int32 count as absent, like those below 0."""
    if name not in schema.names:
        return np.full(file.metadata.num_rows, -1, np.int32)
    kind = schema.field(name).type
    column = _column(file, name, kind if pa.types.is_signed_integer(kind) else pa.int64())
    values = filled(column)
    if values.dtype.itemsize >= 4 and values.dtype != np.int32:
        values = np.where((values >= 0) & (values < 1 << 31), values, -1)
    return values.astype(np.int32)


def _time_column(file: pq.ParquetFile, name: str) -> tuple[Int64s, npt.NDArray[np.bool_]]:
    """Return whole nanoseconds, and which of them are valid."""
    kind = file.schema_arrow.field(name).type
    column = _column(file, name, kind if pa.types.is_floating(kind) else pa.float64())
    values = filled(column, np.nan).astype(np.float64)
    with np.errstate(invalid="ignore"):
        valid = np.abs(values) < _MAX_SECONDS
    return np.round(np.where(valid, values, 0) * 1e9).astype(np.int64), valid


COMPUTATIONS: Final = ("forward-compute", "backward-compute")
_COMPUTE: Final = f"{STREAM_PREFIX}compute"
_ROWS_AT_A_TIME: Final = 1 << 17
_LARGEST: Final = 20_000_000
"""Ranks × operation types: a million ranks have room for 20."""


def read_whatif(source: Path, out: Path, *, rank_hint: int | None = None) -> FragmentInfo:  # noqa: ARG001  (it states its ranks)
    """Write `source` as the fragment `out`: whole steps in each row group.

    Raises NotATraceError if the Parquet file has other columns, InputError if it is damaged, empty or no job's, OSError
    if the disk is full.
    """
    names, operations, bad = read_operations(source)
    if not len(operations):
        raise InputError(f"{source.name} holds no operations")
    if np.any(operations.step[1:] < operations.step[:-1]):
        operations = operations.take(np.argsort(operations.step, kind="stable"))
    builder = _TableBuilder(names, operations, read_sizes(source))
    with FragmentWriter(out) as writer:
        # Small steps share a row group.
        for begin, end in whole_parts(builder.bounds, _ROWS_AT_A_TIME):
            writer.write(builder.table(begin, end))
        info = _info(source, builder, operations, bad)
        writer.commit(info)
    return info


class _TableBuilder:
    """Makes the tables of successive ranges of steps, from operations in the order of their steps."""

    def __init__(self, names: list[str], operations: WhatifOperations, sizes: dict[str, int]) -> None:
        self.names = [*names, STEP_SCOPE]
        self.operations = operations
        present = np.zeros(int(operations.rank.max()) + 1, dtype=bool)
        present[operations.rank] = True
        self.ranks = np.flatnonzero(present)
        self._worker = (np.cumsum(present) - 1).astype(np.int32)
        if len(self.ranks) * len(self.names) > _LARGEST:
            found = f"{len(names)} operation types on {len(self.ranks)} ranks"
            raise InputError(f"the recording has {found}: no training job has as many")
        example = np.zeros(len(present), dtype=np.int64)
        example[operations.rank] = np.arange(len(operations))
        places = [values[example[self.ranks]].tolist() for values in (operations.stage, operations.dp_rank)]
        self.pipeline_stage, self.dp_rank = (dict(zip(self.ranks.tolist(), of, strict=True)) for of in places)
        self.dp = sizes.get("dp_size") or max(self.dp_rank.values()) + 1
        self.pp = sizes.get("pp_size") or max(self.pipeline_stage.values()) + 1
        self.tp = sizes.get("tp_size")
        world_size = sizes.get("world_size") or _stride(self.ranks.tolist()) * self.dp * self.pp
        self.world_size = world_size if world_size <= MAX_RANKS else max(self.dp_rank) + 1
        kinds, phases, lanes = zip(*map(classify, names), strict=True)
        self._lanes = sorted({*lanes, _COMPUTE})
        # The last entry is the step's scope.
        # Small numbers in small arrays: fresh memory costs more than what is done in it.
        self._kind = np.array([*kinds, KINDS.index("scope")], np.int8)
        self._phase = np.array([*phases, -1], np.int8)
        self._lane = np.array([self._lanes.index(lane) for lane in (*lanes, _COMPUTE)], np.int16)
        self._computes = np.array([name in COMPUTATIONS for name in names])
        self.groups, self._group_of, self._peer_of = self._communication()
        first = np.flatnonzero(np.diff(operations.step, prepend=-1))
        self.steps, self.bounds = operations.step[first], np.append(first, len(operations))
        self._offsets = self._clock()
        self.scopes: list[tuple[Integers, ...]] = []
        """Columns of rank, step, begin, duration and operations, for the written steps."""

    def _clock(self) -> Int64s:
        """Return the clock time of each step's zero: the end of the step before it on all ranks."""
        begin = np.minimum.reduceat(self.operations.start, self.bounds[:-1])
        end = np.maximum.reduceat(self.operations.start + self.operations.duration, self.bounds[:-1])
        return np.asarray(np.cumsum(end - begin) - end)

    def table(self, begin: int, end: int) -> pa.Table:
        """Return the rows of these steps on all ranks, in the table's order, including each rank's scope row."""
        rows = self.operations.take(slice(self.bounds[begin], self.bounds[end]))
        step = np.repeat(np.arange(begin, end, dtype=np.int32), np.diff(self.bounds[begin : end + 1]))
        start, lane = rows.start + self._offsets[step], self._lane[rows.operator]
        order = order_by(step, rows.rank, lane, start)
        by_step, by_rank, by_start = step[order], rows.rank[order], start[order]
        fresh = np.append(True, (np.diff(by_step) != 0) | (np.diff(by_rank) != 0))
        first = np.flatnonzero(fresh)
        begins = np.minimum.reduceat(by_start, first)
        lasted = np.maximum.reduceat(by_start + rows.duration[order], first) - begins
        counts = np.diff(first, append=len(rows))
        self.scopes.append((by_rank[first], self.steps[by_step[first]], begins, lasted, counts))
        # A scope comes before its rank's operations: it begins with the first and lasts longest.
        scope = first + np.arange(len(first))
        source = np.repeat(order, fresh + 1)

        def column(of_rows: Integers, of_scopes: Integers | int | None = None) -> Integers:
            values = of_rows[source]
            if of_scopes is not None:
                values[scope] = of_scopes
            return values

        columns = {
            "step": column(step),
            "rank": column(rows.rank),
            "operator": column(rows.operator, len(self.names) - 1),
            "start": column(start, begins),
            "duration": column(rows.duration, lasted),
            "seq_id": column(rows.seq_id, -1),
            "microbatch": column(rows.mb_id, -1),
            "chunk": column(self._chunk(rows), -1),
        }
        return self._arrow(columns)

    def _chunk(self, rows: WhatifOperations) -> Integers:
        """Return the model chunk of computations, even if only the stage's is given; others are unchanged.

        Chunk c of the model lies on stage c modulo the number of stages: a column that contradicts this is not used.
        """
        computes = self._computes[rows.operator] & (rows.mc >= 0)
        of_stage = np.where(computes, rows.mc.astype(np.int64) * self.pp + rows.stage, rows.mc)
        is_known = (rows.gmc >= 0) & (~computes | (rows.gmc % self.pp == rows.stage))
        return np.where(is_known, rows.gmc, of_stage)

    def _communication(self) -> tuple[list[str], Int32s, Int32s]:
        """Return the groups' names, (ranks × operators) codes of their groups, and the peers of sends and receives."""
        groups: dict[str, int] = {}
        group, peer = (np.full((len(self.ranks), len(self.names)), -1, np.int32) for _ in range(2))
        rank_at = {(dp, self.pipeline_stage[rank]): rank for rank, dp in self.dp_rank.items()}
        communicating = np.flatnonzero((self._kind != KINDS.index("compute")) & (self._kind != KINDS.index("scope")))
        for at, (rank, dp) in enumerate(self.dp_rank.items()):
            for operator in communicating.tolist():
                text, other = self._group(self.names[operator], dp, self.pipeline_stage[rank])
                if text is not None:
                    group[at, operator] = groups.setdefault(text, len(groups))
                    peer[at, operator] = -1 if other is None else rank_at.get((dp, other), -1)
        return list(groups), group, peer

    def _sequence(self, columns: dict[str, Integers], kind: Integers, group: Int32s) -> Int64s:
        """Return the number of each communication in its group."""
        sequence = np.full(len(kind), -1)
        transfers = np.isin(kind, [KINDS.index("send"), KINDS.index("recv")])
        sequence[transfers] = columns["seq_id"][transfers]
        collective = np.flatnonzero(kind == KINDS.index("collective"))
        # Numbered by operator and then by seq_id, which all members share: a number in a group is one call.
        order = columns["operator"][collective] * np.int64(1 << 32) + columns["seq_id"][collective]
        sequence[collective] = occurrences(
            group[collective], columns["rank"][collective], columns["step"][collective], order
        )
        return sequence

    def _group(self, name: str, dp: int, stage: int) -> tuple[str | None, int | None]:
        """Return the group an operation belongs to, and the pipeline stage at its other end."""
        forward = name.startswith("forward")
        if name.endswith("-send"):
            other = (stage + (1 if forward else -1)) % self.pp
            return f"pp dp={dp} {stage}→{other}", other
        if name.endswith("-recv"):
            other = (stage - (1 if forward else -1)) % self.pp
            return f"pp dp={dp} {other}→{stage}", other
        if name.startswith("embedding"):
            return f"embedding dp={dp}", None
        if name.startswith("layernorm"):
            # Within one worker: its members are not in the recording.
            return f"layernorm dp={dp} stage={stage}", None
        if name == "optimizer-clip-main-grad":
            return "world", None
        return (None, None) if name == "gc" else (f"dp stage={stage}", None)

    def _arrow(self, columns: dict[str, Integers]) -> pa.Table:
        step, rank, operator = columns["step"], columns["rank"], columns["operator"]
        kind, worker = self._kind[operator], self._worker[rank]
        # A single index is twice as fast as two.
        of_worker = worker * len(self.names) + operator
        group = self._group_of.ravel()[of_worker]
        occurs = np.zeros(len(self.names), dtype=bool)
        occurs[operator] = True
        present, at = np.flatnonzero(occurs), (np.cumsum(occurs) - 1)[operator]
        arrays = [
            numbers(self.steps[step].astype(np.int32)),
            numbers(rank.astype(np.int32, copy=False)),
            *(
                dictionary(of, values, at)
                for of, values in (
                    (self._lane[present], self._lanes),
                    (present, self.names),
                    (self._kind[present], KINDS),
                    (self._phase[present], PHASES),
                )
            ),
            numbers(_counted(step, of_worker, operator)),
            numbers(columns["start"]),
            numbers(columns["duration"]),
            dictionary(group, self.groups),
            nullable(self._sequence(columns, kind, group), pa.int64()),
            pa.nulls(len(rank), pa.int64()),
            pa.nulls(len(rank), SCHEMA.field("inputs").type),
            nullable(self._peer_of.ravel()[of_worker], pa.int32()),
            nullable(columns["microbatch"], pa.int32()),
            nullable(columns["chunk"], pa.int32()),
            pa.nulls(len(rank), pa.int64()),
        ]
        return pa.table(arrays, schema=SCHEMA)


def _counted(step: Integers, of_worker: Integers, operator: Integers) -> Int32s:
    """Return how many rows of the same operator, worker and step precede each row; rows are in the order of their
    steps.

    `of_worker` has a number per operator and worker.
    """
    order = order_by(operator)
    fresh = np.ones(len(order), np.bool_)
    fresh[1:] = (np.diff(step[order]) != 0) | (np.diff(of_worker[order]) != 0)
    begins = np.flatnonzero(fresh).astype(np.int32)
    result = np.empty(len(order), np.int32)
    result[order] = np.arange(len(order), dtype=np.int32) - np.repeat(begins, np.diff(begins, append=len(order)))
    return result


def classify(name: str) -> tuple[int, int, str]:
    """Return indices into KINDS and PHASES, and the lane, of an operation type."""
    kind = "compute"
    if name.endswith(("-send", "-recv")):
        kind = name[-4:]
    elif name.endswith(("all-gather", "reduce-scatter", "all-reduce")) or name == "optimizer-clip-main-grad":
        kind = "collective"
    elif name == "gc":
        kind = "gc"
    phase = "forward"
    if name.startswith(("backward", "grads")):
        phase = "backward"
    elif name.startswith(("optimizer", "layernorm", "embedding", "separate")):
        phase = "optimizer"
    lane = "compute"
    if kind in ("send", "recv"):
        lane = f"pp-{name}"
    elif kind == "collective":
        lane = "dp"
    return KINDS.index(kind), PHASES.index(phase), f"{STREAM_PREFIX}{lane}"


def _stride(ranks: list[int]) -> int:
    """Return the number of ranks per worker, if the ranks themselves show it."""
    return int(np.gcd.reduce(ranks)) or 1 if len(ranks) > 1 else 1


def _info(source: Path, builder: _TableBuilder, operations: WhatifOperations, bad: int) -> FragmentInfo:
    scopes = np.concatenate([np.stack(columns) for columns in builder.scopes], axis=1)
    rank, step, begin, duration, counts = scopes[:, np.lexsort(scopes[1::-1])].tolist()
    warnings: list[KairWarning] = []
    if bad:
        text = f"{bad} rows of {source.name} have no valid time, rank or step, and are left out"
        warnings.append(short_warning("bad_events", text))
    return FragmentInfo(
        source=str(source),
        format="whatif",
        ranks=tuple(sorted(builder.dp_rank)),
        rank_known=True,
        world_size=builder.world_size,
        has_device=True,
        absolute_time=False,
        operations=len(operations),
        layout=Layout(builder.dp, builder.pp, builder.tp, builder.pipeline_stage, builder.dp_rank),
        step_times=StepTimes(*map(tuple, (rank, step, begin, duration, counts))),
        warnings=tuple(warnings),
    )
